"""Which aggregates fold: the old value and the change give the new one, and the group's other rows are not read.

Counts always do. Sums and averages do over exact numbers, since what was added must subtract without a rest; over a
stream, which only grows, over doubles too. A minimum or maximum does too, except that a group whose extreme row left
has to be computed again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spark.topology.errors import Place
from spark.topology.nodes import Fold, Partial, Window, is_stream
from spark.topology.roles import depths, roles
from spark.topology.sql import aggregate_calls, parse_expression
from spark.topology.tokens import Sql, lex

if TYPE_CHECKING:
    from typing import Literal

    from spark.topology.nodes import Aggregate

_INTEGERS = ("tinyint", "smallint", "int", "bigint")
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
# A sum of decimal(p,s) is decimal(p + 10,s), and 38 digits is all there is.
_SUMMED = 28
# An average of decimal(p,s) is decimal(p + 4,s + 4), and a quotient keeps 28 digits behind what it must hold.
_AVERAGED = 24


@dataclass
class _Partials:
    """The partials found so far, each text once."""

    found: dict[tuple[str, str], Partial] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.found["sum", "count(1)"] = Partial("_rows", "count(1)", "sum")

    def name(self, how: Literal["sum", "min", "max"], text: str) -> str:
        """The hidden column that holds an aggregate."""
        name = f"_partial{len(self.found)}"
        return self.found.setdefault((how, text), Partial(name, text, how)).name


class _Whole(Exception):
    """An aggregate that needs all rows of its group; says why."""


def fold_of(aggregate: Aggregate | Window) -> Fold | str:
    """How an aggregate folds, or why it does not, in words."""
    place = Place(f"aggregate by {', '.join(aggregate.by)}", aggregate.line, {"": aggregate.source.columns})
    partials = _Partials()
    select = aggregate.select if isinstance(aggregate, Window) else aggregate.select[len(aggregate.by) :]
    try:
        folded = tuple(
            (name, _folded(lex(text, place), partials, only_grows=is_stream(aggregate.source))) for name, text in select
        )
    except _Whole as why:
        return str(why)
    return Fold(tuple(partials.found.values()), folded)


def _folded(sql: Sql, partials: _Partials, only_grows: bool) -> str:
    """An expression with partials in the place of its aggregates."""
    found = roles(sql)
    text, behind = "", 0
    calls = aggregate_calls(found)
    for start, opened, close in calls:
        call = found.sql.tokens[start : close + 1]
        inner = Sql(sql.text, found.sql.tokens[opened + 1 : close], sql.place)
        first, last = call[0].at, call[-1].at + 1
        part = _part(
            sql.text[first:last], sql.text[call[opened - start].at + 1 : last - 1], inner, partials, only_grows
        )
        alone = (first, last) == (0, len(sql.text))
        text += sql.text[behind:first] + (part if alone else f"({part})")
        behind = last
    return text + sql.text[behind:]


def _part(call: str, of: str, inner: Sql, partials: _Partials, only_grows: bool) -> str:
    """What stands in the place of a call, `of` some arguments."""
    name = call.partition("(")[0].strip().lower()
    depth = depths(inner.tokens)
    several = any(token.is_(",") and depth[index] == 0 for index, token in enumerate(inner.tokens))
    if several or inner.at(0).is_("distinct", "all"):
        raise _Whole(f"{call} needs all rows of its group")
    match name:
        case "count" | "count_if":
            return partials.name("sum", call)
        case "min" | "max":
            _check_stores(call, of, inner)
            return partials.name("min" if name == "min" else "max", call)
        case "sum" | "avg" | "mean":
            return _summed(name, of, parse_expression(of, inner.place).type or "", partials, only_grows)
        case _:
            raise _Whole(f"{call} needs all rows of its group")


def _check_stores(call: str, of: str, inner: Sql) -> None:
    """Refuse to keep a value whose type a table may not be able to hold."""
    kind = parse_expression(of, inner.place).type
    if kind is None or kind.startswith(("map", "variant")):
        raise _Whole(f"{call} has a type that only Spark knows; {call.partition('(')[0]}(cast({of} AS ...)) would fold")


def _summed(name: str, of: str, kind: str, partials: _Partials, only_grows: bool) -> str:
    decimal = _DECIMAL.fullmatch(kind.replace(" ", ""))
    digits = int(decimal[1]) if decimal else 0
    exact = kind in _INTEGERS or 0 < digits <= (_SUMMED if name == "sum" else _AVERAGED)
    if not exact and not (only_grows and kind in ("float", "double")):
        is_kind = f"is {kind}" if kind else "has a type that only Spark knows"
        raise _Whole(f"{of} {is_kind}; an integer, or a decimal of fewer digits, would fold: {name}(cast({of} AS ...))")
    # Nothing summed is 0 here, as it is again when all that was added has been taken away. An average is of doubles
    # in Spark, and never too large: so are integers here.
    summed = f"cast({of} AS decimal(19,0))" if name != "sum" and kind in _INTEGERS else of
    total, count = partials.name("sum", f"coalesce(sum({summed}), 0)"), partials.name("sum", f"count({of})")
    if name == "sum":
        quotient = total
    elif decimal:
        quotient = f"cast({total} / {count} AS decimal({digits + 4},{int(decimal[2]) + 4}))"
    else:
        quotient = f"cast({total} AS double) / {count}"
    return f"CASE WHEN {count} > 0 THEN {quotient} END"
