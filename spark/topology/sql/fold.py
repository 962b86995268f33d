"""Aggregates that fold: the new value follows from the old value and the change, without the group's other rows.

Counts always fold. Sums and averages fold over exact numbers, since what was added must subtract without a remainder;
over a stream, which only grows, they fold over doubles too. A minimum or maximum folds, except that a group is computed
again when its extreme row leaves.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from spark.topology.errors import Place
from spark.topology.sql.expressions import aggregate_calls, parse_expression
from spark.topology.sql.roles import depths, roles
from spark.topology.sql.tokens import Sql, lex

if TYPE_CHECKING:
    from collections.abc import Iterable

How = Literal["sum", "min", "max"]

_INTEGERS = ("tinyint", "smallint", "int", "bigint")
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
# A sum of decimal(p,s) is decimal(p + 10,s), and a decimal has at most 38 digits.
_SUMMED = 28
# An average of decimal(p,s) is decimal(p + 4,s + 4). Its quotient has 28 - (p - s) digits after the point.
_AVERAGED = 24


@dataclass(frozen=True)
class Partial:
    """A partial aggregate: the hidden column that stores it, its SQL text, and how two of its values combine."""

    name: str
    text: str
    how: How


@dataclass(frozen=True)
class Fold:
    """How an aggregate's new value is computed from its old value and the change, without the group's other rows.

    `select` holds (column, expression over the partials) for every aggregated column. The first partial counts rows.
    """

    partials: tuple[Partial, ...]
    select: tuple[tuple[str, str], ...]


@dataclass
class _Partials:
    """The partials found so far, each once."""

    by_text: dict[tuple[str, str], Partial] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.by_text["sum", "count(1)"] = Partial("_rows", "count(1)", "sum")

    def name(self, how: How, text: str) -> str:
        """The hidden column that stores a partial, which is added if it is new."""
        name = f"_partial{len(self.by_text)}"
        return self.by_text.setdefault((how, text), Partial(name, text, how)).name


class _NeedsAllRows(Exception):
    """An aggregate needs all rows of its group; the message says why."""


def fold_of(select: Iterable[tuple[str, str]], place: Place, insert_only: bool) -> Fold | str:
    """How aggregates fold, or the reason, in words, why they do not.

    Args:
        select: (column, expression over aggregates) for every aggregated column.
        place: the user's line of the grouping, with the columns of its source.
        insert_only: whether the source is a stream, whose groups lose no rows.
    """
    partials = _Partials()
    try:
        folded = tuple((name, _folded(lex(text, place), partials, insert_only)) for name, text in select)
    except _NeedsAllRows as why:
        return str(why)
    return Fold(tuple(partials.by_text.values()), folded)


def _folded(sql: Sql, partials: _Partials, insert_only: bool) -> str:
    """An expression with its aggregates replaced by expressions over partials."""
    found = roles(sql)
    text, end = "", 0
    calls = aggregate_calls(found)
    for start, opened, close in calls:
        call = found.sql.tokens[start : close + 1]
        inner = Sql(sql.text, found.sql.tokens[opened + 1 : close], sql.place)
        first, last = call[0].at, call[-1].at + 1
        part = _part(
            sql.text[first:last], sql.text[call[opened - start].at + 1 : last - 1], inner, partials, insert_only
        )
        whole = (first, last) == (0, len(sql.text))
        text += sql.text[end:first] + (part if whole else f"({part})")
        end = last
    return text + sql.text[end:]


def _part(call: str, argument: str, inner: Sql, partials: _Partials, insert_only: bool) -> str:
    """The expression over partials that replaces the call of an aggregate function."""
    name = call.partition("(")[0].strip().lower()
    depth = depths(inner.tokens)
    several = any(token.is_(",") and depth[index] == 0 for index, token in enumerate(inner.tokens))
    if several or inner.at(0).is_("distinct", "all"):
        raise _NeedsAllRows(f"{call} needs all rows of its group")
    match name:
        case "count" | "count_if":
            return partials.name("sum", call)
        case "min" | "max":
            _check_storable(call, argument, inner)
            return partials.name("min" if name == "min" else "max", call)
        case "sum" | "avg" | "mean":
            return _summed(name, argument, parse_expression(argument, inner.place).type or "", partials, insert_only)
        case _:
            raise _NeedsAllRows(f"{call} needs all rows of its group")


def _check_storable(call: str, argument: str, inner: Sql) -> None:
    """Refuse to store a value whose type a table may not support."""
    kind = parse_expression(argument, inner.place).type
    if kind is None or kind.startswith(("map", "variant")):
        raise _NeedsAllRows(
            f"the type of {call} is not known before Spark runs it; "
            f"{call.partition('(')[0]}(cast({argument} AS ...)) folds"
        )


def _summed(name: str, argument: str, kind: str, partials: _Partials, insert_only: bool) -> str:
    decimal = _DECIMAL.fullmatch(kind.replace(" ", ""))
    digits = int(decimal[1]) if decimal else 0
    exact = kind in _INTEGERS or 0 < digits <= (_SUMMED if name == "sum" else _AVERAGED)
    if not exact and not (insert_only and kind in ("float", "double")):
        typed = f"{argument} is {kind}" if kind else f"the type of {argument} is not known before Spark runs it"
        cast = f"{name}(cast({argument} AS ...))"
        raise _NeedsAllRows(f"{typed}; an integer, or a decimal with fewer digits, folds: {cast}")
    # The sum of no values is 0 here, as it is after all values are subtracted again. Spark averages integers as
    # doubles, which do not overflow; a sum of decimal(19,0) does not either.
    summed = f"cast({argument} AS decimal(19,0))" if name != "sum" and kind in _INTEGERS else argument
    total, count = partials.name("sum", f"coalesce(sum({summed}), 0)"), partials.name("sum", f"count({argument})")
    if name == "sum":
        quotient = total
    elif decimal:
        quotient = f"cast({total} / {count} AS decimal({digits + 4},{int(decimal[2]) + 4}))"
    else:
        quotient = f"cast({total} AS double) / {count}"
    return f"CASE WHEN {count} > 0 THEN {quotient} END"
