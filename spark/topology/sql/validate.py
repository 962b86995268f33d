"""Checks of an expression that need no column types: it is complete, and it depends only on its row."""

from __future__ import annotations

import re

from spark.topology.sql.functions import REPLAYED, is_aggregate, refused_aggregate, refused_call, wrong_call
from spark.topology.sql.roles import Roles, closes, depths

_WANT_AN_OPERAND = (
    *(
        "*",
        "/",
        "%",
        "+",
        "-",
        "=",
        "==",
        "!=",
        "<>",
        "<",
        "<=",
        ">",
        ">=",
        "<=>",
        "<<",
        "|",
        "&",
        "^",
        "~",
        "!",
    ),
    *("||", "->", "=>", "::", ".", ",", "(", "["),
    *("and", "or", "like", "ilike", "rlike", "regexp", "between", "in", "div", "when", "then", "else"),
)
_CANNOT_BEGIN = (
    *("*", "/", "%", "=", "==", "!=", "<>", "<", "<=", ">", ">=", "<=>", "<<", "|", "&", "^", "||"),
    *("->", "=>", "::", ".", ",", ")", "[", "]"),
    *("and", "or", "between", "in", "div", "is", "then", "else", "end"),
)
# Inside a date or timestamp literal, Spark reads these as the time of the run.
_MOVING_DATE = re.compile(r"\W*(now|today|tomorrow|yesterday)\b", re.IGNORECASE)


def check_shape(found: Roles) -> None:
    """Check that operands and operators alternate.

    Raises:
        TopologyError: an operand or an operator is missing, or a symbol has no meaning in SQL.
    """
    sql = found.sql
    if not sql.tokens:
        raise sql.place.mistake(f"the expression {sql.text!r} is empty", "write SQL text over the columns")
    check_one(found)
    for index in range(len(sql.tokens) + 1):
        before, token = sql.before(index), sql.at(index)
        if token.is_("*") and (index == 0 or before.is_("(", ",", ".")):
            raise sql.wrong(index, "* is allowed only as an item of its own", "name the columns")
        if token.is_(":"):
            raise sql.wrong(index, "unexpected ':'", "remove it; a cast is written with '::'")
        if token.is_("&") and before.is_("&"):
            raise sql.wrong(index, "SQL has no '&&'", "write AND")
        if _is_missing(found, index):
            where, text = ("before", token.text) if index == 0 else ("after", before.text)
            raise sql.wrong(index, f"an operand is missing {where} {text!r}", "write it")
        if _ends_operand(found, index - 1) and _begins_operand(found, index):
            what = f"an operator is missing between {before.text!r} and {token.text!r}"
            raise sql.wrong(index, what, "write one, or 'expression AS name' for a name")


def check_one(found: Roles) -> None:
    """Check that a text holds one expression.

    Raises:
        TopologyError: it holds several.
    """
    depth = depths(found.sql.tokens)
    for index, token in enumerate(found.sql.tokens):
        if token.is_(",") and depth[index] == 0:
            raise found.sql.wrong(index, "one string has several expressions", "write a list with one string for each")


def check_row_alone(found: Roles, but_aggregates: bool = False) -> None:
    """Check that an expression depends only on one row: not on other rows, another table, the time or chance.

    With `but_aggregates` it may also read the rows of its group, if their order does not matter.

    Raises:
        TopologyError: it depends on more, or calls an unknown function or one with a wrong number of arguments.
    """
    sql = found.sql
    for index, token in enumerate(sql.tokens):
        if found.roles[index] != "word":
            continue
        if token.is_("select"):
            do = "declare the other table and join it"
            raise sql.wrong(index, "a subquery reads a table that is not an input of the plan", do)
        if token.is_("over"):
            do = "aggregate with group_by(...), or with windowed_by(...) over windows of time"
            raise sql.wrong(index, "a window function reads several rows, and an expression reads one", do)
        if sql.at(index + 1).kind == "string" and _MOVING_DATE.match(sql.at(index + 1).text):
            raise sql.wrong(index, f"{token.text} {sql.at(index + 1).text} {REPLAYED[0]}", REPLAYED[1])
    for start, end in found.names("function"):
        name, given = sql.at(end - 1).name.lower(), _given(found, end)
        if but_aggregates and is_aggregate(name):
            refused = refused_aggregate(name, sql.before(start - 1).text.lower() if sql.before(start).is_("(") else "")
        else:
            refused = refused_call(name, given)
        if refused is None and end == start + 1 and sql.at(start).kind == "word":
            refused = wrong_call(name, given)
        if refused is not None:
            raise sql.wrong(start, f"{name}() {refused[0]}", refused[1])


def _given(found: Roles, opens: int) -> int | None:
    """The number of a call's arguments; None if words separate them, as in `substring(name FROM 2)`."""
    tokens, depth = found.sql.tokens, depths(found.sql.tokens)
    inside = range(opens + 1, closes(tokens, opens))
    own = [index for index in inside if depth[index] == depth[opens] + 1]
    if any(found.roles[index] == "word" and tokens[index].is_("for", "from", "in", "placing") for index in own):
        return None
    return 1 + sum(tokens[index].is_(",") for index in own) if inside else 0


def _is_missing(found: Roles, index: int) -> bool:
    """True if an operand is expected at a token that cannot begin one."""
    before, token = found.sql.before(index), found.sql.at(index)
    without_arguments = before.is_("(") and token.is_(")") and found.sql.before(index - 1).is_name
    shift = before.is_(">") and token.is_(">") and not token.spaced
    wanted = index == 0 or (before.is_(*_WANT_AN_OPERAND) and found.roles[index - 1] in ("operator", "word"))
    if not wanted or without_arguments or shift:
        return False
    return token.kind == "end" or (token.is_(*_CANNOT_BEGIN) and found.roles[index] in ("operator", "word"))


def _ends_operand(found: Roles, index: int) -> bool:
    if index < 0:
        return False
    token, role = found.sql.at(index), found.roles[index]
    return token.kind == "type" or token.is_(")", "]") or role in ("column", "part", "variable", "constant")


def _begins_operand(found: Roles, index: int) -> bool:
    if index == len(found.roles):
        return False
    both_strings = found.sql.at(index).kind == "string" and found.sql.before(index).kind == "string"
    return not both_strings and found.roles[index] in ("column", "function", "variable", "constant")
