"""The effects of every verb, each named once and wrapped from outside: a process can be stopped before any of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar
from unittest.mock import patch

from pyspark.sql.connect.session import SparkSession as ConnectSession

from resources.engine import Engine
from resources.kafka import Kafka
from resources.publisher import Publisher
from spark.engine import compact, land, quarantine, rebuild, step
from spark.engine.log import commit, definition, table
from spark.engine.log.stored_table import StoredTable

if TYPE_CHECKING:
    from collections.abc import Iterator

P = ParamSpec("P")
R = TypeVar("R")

Door = tuple[object, str]

BOUNDARIES: dict[str, tuple[Door, ...]] = {
    "offsets asked": ((Kafka, "end_offsets"),),
    "first offsets asked": ((Kafka, "beginning_offsets"),),
    "position asked": ((Kafka, "published"),),
    "position read": ((StoredTable, "state"),),
    "inputs pinned": ((step, "pin"), (rebuild, "pin")),
    "session opened": ((Engine, "session"),),
    "table created": ((table, "create"),),
    "columns added": (
        (land, "evolve_landing"),
        (quarantine, "evolve_landing"),
        (definition, "add_columns"),
    ),
    "properties set": ((table, "set_properties"),),
    "epoch closed": ((commit, "close_epoch"),),
    "appended": ((commit, "append"),),
    "replaced": ((commit, "replace_all"),),
    "rows replaced": ((commit, "replace_where"), (commit, "replace_on")),
    "merged": ((commit, "merge"),),
    "files compacted": ((compact, "_optimize"),),
    "files removed": ((compact, "_vacuum"),),
    "read back": ((commit, "_read_back"),),
    "publisher opened": ((Publisher, "__init__"),),
    "record sent": ((Publisher, "send"),),
    "transaction told": ((Publisher, "_insist"),),
    "session closed": ((ConnectSession, "stop"),),
}
"""By name, the doors it goes through. `transaction told`: its offset, then its end."""

READS = ("offsets asked", "first offsets asked", "position asked", "position read", "inputs pinned", "read back")
"""What changes nothing."""

IN_ENGINE = (
    *("table created", "columns added", "properties set", "epoch closed"),
    *("appended", "replaced", "rows replaced", "merged", "files compacted", "files removed"),
)
IN_BROKER = ("publisher opened", "record sent", "transaction told")
LASTING = (*IN_ENGINE, *IN_BROKER)
"""What changes tables or topics, and may be under way when something dies."""

WHOLE = ("table created", "read back", "inputs pinned", "publisher opened")
"""What these do inside is theirs."""


@dataclass
class Crossed:
    """The boundaries a process came to, in order, and those it is inside of."""

    names: list[str] = field(default_factory=list)
    inside: list[str] = field(default_factory=list)


Told = Callable[[str, int], None]
"""What is told the name and the number of a boundary."""


@contextmanager
def watched(before: Told, behind: Told = lambda *_: None) -> Iterator[Crossed]:
    """Call `before` where a boundary is about to be crossed, and `behind` where it was."""
    crossed = Crossed()

    def wrapped(name: str, function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def wrapper(*arguments: P.args, **options: P.kwargs) -> R:
            number = None
            if not any(whole in crossed.inside for whole in WHOLE):
                number = len(crossed.names)
                crossed.names.append(name)
                before(name, number)
            crossed.inside.append(name)
            try:
                return function(*arguments, **options)
            finally:
                crossed.inside.pop()
                if number is not None:
                    behind(name, number)

        return wrapper

    with ExitStack() as patches:
        for name, doors in BOUNDARIES.items():
            for owner, attribute in doors:
                patches.enter_context(patch.object(owner, attribute, wrapped(name, getattr(owner, attribute))))
        yield crossed
