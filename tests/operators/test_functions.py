"""What is known of Spark's functions without Spark is what the engine says of them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from spark.topology.errors import Place, TopologyError
from spark.topology.sql.expressions import parse_expression
from spark.topology.sql.functions import REFUSED, TAKES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LANGUAGE = {"and", "between", "case", "collate", "div", "ilike", "in", "like", "not", "or", "regexp", "rlike", "when"}
GRAMMAR = {"timediff", "timestampadd", "timestampdiff", "try_cast"}


def names(session: SparkSession) -> set[str]:
    """All of them, without operators."""
    return {name for (name,) in session.sql("SHOW SYSTEM FUNCTIONS").collect() if name.isidentifier()}


def test_every_function_of_the_engine_is_known(session: SparkSession) -> None:
    assert names(session) - TAKES.keys() - REFUSED.keys() == LANGUAGE
    assert TAKES.keys() - names(session) == GRAMMAR


def test_no_example_of_sparks_documentation_has_an_unknown_function_or_a_wrong_number_of_arguments(
    session: SparkSession,
) -> None:
    told, tried = [], 0
    for name in sorted(names(session)):
        described = session.sql(f"DESCRIBE FUNCTION EXTENDED `{name}`").collect()
        for example in re.findall(r"> SELECT (.*?);$", "\n".join(text for (text,) in described), re.MULTILINE):
            tried += 1
            try:
                parse_expression(example, Place(name, None))
            except TopologyError as error:
                told.append(str(error))
    assert tried > 500
    assert [one for one in told if "is no function" in one or "is given" in one] == []
