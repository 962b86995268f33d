"""The role of every token of an expression: a column, a function, a constant, or only a word of SQL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from spark.topology.sql.ddl import parse_type
from spark.topology.sql.tokens import Sql, Token

# A dotted name has its role at its first token; the tokens after it are "part".
Role = Literal["column", "function", "variable", "constant", "word", "part", "operator"]

_WORDS = """
    all and any as between both case collate distinct div else end escape for from ilike in interval is
    leading like not or over placing regexp rlike select some then to trailing unknown when
"""
_KEYWORDS = frozenset(_WORDS.split())
_CONSTANTS = ("null", "true", "false")
# x'1F' is binary
_LITERALS = ("date", "interval", "time", "timestamp", "timestamp_ltz", "timestamp_ntz", "x")
_UNITS = frozenset(
    unit + plural
    for unit in (
        *("year", "quarter", "month", "week", "day", "dayofyear", "hour", "minute", "second"),
        *("millisecond", "microsecond", "nanosecond"),
    )
    for plural in ("", "s")
)
_BEFORE_OPERANDS = ("and", "between", "case", "div", "else", "ilike", "like", "not", "or", "rlike", "then", "when")
_TAKE_UNITS = ("dateadd", "date_add", "datediff", "date_diff", "timediff", "timestampadd", "timestampdiff")
_CASTS = ("cast", "try_cast")
# Types that an expression may cast to, but that no column can be declared with.
_ONLY_CAST = ("char", "character", "interval", "varchar", "void")


@dataclass(frozen=True)
class Roles:
    """An expression in which each type is one token, and the role of every token."""

    sql: Sql
    roles: tuple[Role, ...]

    def names(self, role: Role) -> Iterator[tuple[int, int]]:
        """The index of the first token of each dotted name of a role, and the index after its last."""
        for start in (index for index, found in enumerate(self.roles) if found == role):
            end = start + 1
            while self.roles[end : end + 1] == ("part",):
                end += 1
            yield start, end


@dataclass(frozen=True)
class _Lambda:
    """The variables of a lambda, and the range of tokens in which they are defined."""

    variables: frozenset[str]
    start: int
    end: int


def depths(tokens: Sequence[Token]) -> list[int]:
    """The number of open brackets around every token; a bracket itself is outside."""
    found: list[int] = []
    depth = 0
    for token in tokens:
        depth -= token.is_(")", "]")
        found.append(depth)
        depth += token.is_("(", "[")
    return found


def closes(tokens: Sequence[Token], opened: int) -> int:
    """The index of the bracket that closes the one at an index."""
    depth = depths(tokens)
    return next(index for index in range(opened + 1, len(tokens)) if depth[index] == depth[opened])


def roles(sql: Sql) -> Roles:
    """The role of every token of an expression."""
    folded = _fold_types(sql)
    lambdas = list(_lambdas(folded))
    found: list[Role] = []
    while len(found) < len(folded.tokens):
        start = len(found)
        if not folded.at(start).is_name:
            found.append("operator" if folded.at(start).kind in ("operator", "type") else "constant")
            continue
        end = start + 1
        while folded.at(end).is_(".") and folded.at(end + 1).is_name:
            end += 2
        previous = found[-1] if found else "operator"
        found.append(_role(folded, start, end, lambdas, previous))
        found.extend("part" for _ in range(start + 1, end))
    return Roles(folded, tuple(found))


def _role(sql: Sql, start: int, end: int, lambdas: Sequence[_Lambda], previous: Role) -> Role:
    before, token, after = sql.before(start), sql.at(start), sql.at(end)
    word = token.lower if token.kind == "word" and end == start + 1 else ""
    if before.is_("."):
        return "part"
    if before.is_("as", "collate") or after.is_("=>") or (word in _LITERALS and after.kind == "string"):
        return "word"
    if _is_unit(sql, start, word):
        return "word"
    if any(token.name.lower() in known.variables and known.start <= start < known.end for known in lambdas):
        return "variable"
    if after.is_("("):
        # `like any (...)` is a list of patterns, `any(x)` an aggregate
        listed = word in _KEYWORDS - {"any", "some"} or before.is_("like", "ilike", "rlike")
        return "word" if listed else "function"
    if word in _CONSTANTS:
        return "constant"
    if word not in _KEYWORDS or len(sql.tokens) == 1:
        return "column"
    # a column may be named `end` or `to`: where an operand must stand, the word is that column
    columns = {column.name.lower() for column in sql.place.columns.get("", ())}
    begins = word == "case" and after.is_("when")
    return "column" if word in columns and not begins and _wants_operand(before, previous) else "word"


def _wants_operand(before: Token, previous: Role) -> bool:
    if previous == "word":
        return before.is_(*_BEFORE_OPERANDS)
    return previous == "operator" and before.kind != "type" and not before.is_(")", "]")


def _is_unit(sql: Sql, index: int, word: str) -> bool:
    before, function = sql.before(index), sql.before(index - 1)
    if before.is_("(") and function.is_("extract"):
        return sql.at(index + 1).is_("from")
    if before.is_("(") and function.is_(*_TAKE_UNITS):
        return word in _UNITS
    return word in _UNITS and (before.kind in ("number", "string") or before.is_("to"))


def _lambdas(sql: Sql) -> Iterator[_Lambda]:
    depth = depths(sql.tokens)
    for arrow in (index for index, token in enumerate(sql.tokens) if token.is_("->")):
        start, end = arrow - 1, arrow + 1
        if sql.before(arrow).is_(")"):
            start = max(i for i in range(arrow - 1) if depth[i] == depth[arrow] and sql.at(i).is_("("))
        while (
            end < len(depth)
            and depth[end] >= depth[arrow]
            and not (depth[end] == depth[arrow] and sql.at(end).is_(","))
        ):
            end += 1
        variables = {sql.at(i).name.lower() for i in range(max(start, 0), arrow) if sql.at(i).is_name}
        yield _Lambda(frozenset(variables), start, end)


def _fold_types(sql: Sql) -> Sql:
    """The tokens with each type after `::` and inside a cast as one token."""
    found: list[Token] = []
    calls: list[str] = []
    index = 0
    while index < len(sql.tokens):
        token = sql.at(index)
        if token.is_("(", "["):
            calls.append(found[-1].lower if found and token.is_("(") else "")
        elif token.is_(")", "]"):
            calls.pop()
        found.append(token)
        index += 1
        if token.is_("::") or (token.is_("as") and calls and calls[-1] in _CASTS):
            type_, after = _cast_target(sql, index)
            found.append(Token("type", type_, sql.at(index).at, spaced=True))
            index = after
    return Sql(sql.text, tuple(found), sql.place)


def _cast_target(sql: Sql, index: int) -> tuple[str, int]:
    """The type of a cast, empty if no column can have it, and the index of the token after it."""
    if not sql.at(index).is_(*_ONLY_CAST):
        return parse_type(sql, index)
    after = index + 1
    while sql.at(after).is_("to", *_UNITS):
        after += 1
    if sql.at(after).is_("("):
        after = next(i for i in range(after, len(sql.tokens)) if sql.at(i).is_(")")) + 1
    return "", after
