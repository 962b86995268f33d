"""What is known of an expression without Spark: its columns, its name, and sometimes its type."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from spark.topology.columns import Column
from spark.topology.errors import Place, TopologyError, did_you_mean, shown
from spark.topology.sql.ddl import fields, quoted
from spark.topology.sql.functions import is_aggregate, refused_word
from spark.topology.sql.roles import Roles, closes, depths, roles
from spark.topology.sql.tokens import Sql, lex, text_of
from spark.topology.sql.validate import check_one, check_row_alone, check_shape

_OWN_TYPES = {"_timestamp": "timestamp", "_topic": "string", "_partition": "int", "_offset": "bigint"}
# Their types are not part of a plan: the landing defines them.
OWN_COLUMNS = tuple(Column(name, None) for name in _OWN_TYPES)

_TRUE_OR_FALSE = (
    *("=", "==", "!=", "<>", "<", "<=", ">", ">=", "<=>", "!"),
    *("and", "or", "not", "is", "in", "like", "ilike", "rlike", "regexp", "between"),
)


@dataclass(frozen=True)
class Expression:
    """SQL text, its type if that is certain, and its column if it is nothing but a column.

    `known` is the type even if a plan does not hold it: the type of a field, or of one of our columns.
    """

    text: str
    type: str | None
    column: Column | None = None
    known: str | None = field(default=None, compare=False)


class _Reached(NamedTuple):
    """The end of a path of fields and elements: the column if the path is empty, the type, and the index after it."""

    column: Column | None
    type: str | None
    end: int


def parse_expression(text: str, place: Place) -> Expression:
    """An expression without a name.

    Raises:
        TopologyError: the text has a name, or is no valid expression over the columns.
    """
    name, expression = parse_item(text, place)
    if name is not None:
        raise place.mistake(f"{text!r} has an alias, which is not allowed here", f"leave out 'AS {name}'")
    return expression


def parse_item(text: str, place: Place) -> tuple[str | None, Expression]:
    """The name after the last AS, or None, and the expression before it.

    Raises:
        TopologyError: AS is not followed by one name at the end, or the expression is invalid.
    """
    sql = lex(text, place)
    depth = depths(sql.tokens)
    named = [index for index, token in enumerate(sql.tokens) if token.is_("as") and depth[index] == 0]
    if not named:
        return None, _expression(sql)
    if named != [len(sql.tokens) - 2] or not sql.at(named[0] + 1).is_name:
        check_one(roles(sql))
        raise sql.wrong(named[0], "AS is not followed by one name at the end", "write 'expression AS name'")
    return sql.at(named[0] + 1).name, _expression(Sql(text, sql.tokens[: named[0]], place))


def parse_aggregate(text: str, by: tuple[str, ...], place: Place) -> Expression:
    """An expression over aggregates of a group's rows and over the grouping columns.

    Raises:
        TopologyError: it has no aggregate, a nested one, a name, or another column outside an aggregate; or is invalid.
    """
    lexed = _counting(lex(text, place))
    found = roles(lexed)
    check_row_alone(found, but_aggregates=True)
    check_shape(found)
    sql = found.sql
    calls = [(start, close) for start, _, close in aggregate_calls(found)]
    depth = depths(sql.tokens)
    if any(token.is_("as") and depth[index] == 0 for index, token in enumerate(sql.tokens)):
        raise place.mistake(f"{text!r} has an alias", "leave out AS: the argument's name is the name of the column")
    if not calls:
        do = "write one, such as count(*), sum(amount), max(at)"
        raise place.mistake(f"{text!r} has no aggregate function", do)
    for start, end in calls:
        if any(other < start and end < close for other, close in calls):
            raise sql.wrong(start, "aggregate functions cannot be nested", "aggregate twice, one after the other")
    for start, end in found.names("column"):
        column = _resolve(sql, start, end).column
        inside = any(call < start and end <= close for call, close in calls)
        if not inside and (column is None or column.name not in by):
            what = f"{sql.at(start).text} is neither a grouping column nor inside an aggregate function"
            raise sql.wrong(start, what, f"write max({sql.at(start).text}), or group by it")
    counts = len(calls) == 1 and calls[0] == (0, len(sql.tokens) - 1) and sql.at(0).is_("count", "count_if")
    return Expression(text_of(lexed.tokens), "bigint" if counts else _cast_type(found))


def aggregate_calls(found: Roles) -> list[tuple[int, int, int]]:
    """For each call of an aggregate, the indexes of its first token and of its opening and closing brackets."""
    return [
        (start, end, closes(found.sql.tokens, end))
        for start, end in found.names("function")
        if is_aggregate(found.sql.at(end - 1).name.lower())
    ]


def _counting(sql: Sql) -> Sql:
    """The tokens with `count(*)` as `count(1)`, which is equivalent: `*` is no operand."""
    tokens = tuple(
        replace(token, kind="number", text="1")
        if token.is_("*") and sql.before(index).is_("(") and sql.before(index - 1).is_("count")
        else token
        for index, token in enumerate(sql.tokens)
    )
    return replace(sql, tokens=tokens)


def column_named(name: str, columns: tuple[Column, ...]) -> Column | None:
    """The column of a name, ignoring case as Spark SQL does; None if there is none."""
    return next((column for column in columns if column.name.lower() == name.lower()), None)


def _expression(sql: Sql) -> Expression:
    found = roles(sql)
    check_row_alone(found)
    check_shape(found)
    reached = {start: _resolve(found.sql, start, end) for start, end in found.names("column")}
    column, known, end = reached.get(0, _Reached(None, None, 0))
    if end < len(found.sql.tokens) or column is None:
        cast = _cast_type(found)
        return Expression(text_of(sql.tokens), cast, known=known if end == len(found.sql.tokens) else cast)
    side = "" if "" in sql.place.columns else f"{sql.at(0).lower}."
    return Expression(side + quoted(column.name), column.type, column, known)


def is_condition(text: str, place: Place) -> bool:
    """True if a text is certainly a condition: a comparison, words of logic, or one of true, false and null."""
    found = roles(lex(text, place))
    sql, depth, cases = found.sql, depths(found.sql.tokens), 0
    for index, token in enumerate(sql.tokens):
        cases += token.is_("case") - token.is_("end") if found.roles[index] == "word" else 0
        outside = found.roles[index] in ("word", "operator") and depth[index] == cases == 0
        if outside and token.is_(*_TRUE_OR_FALSE) and not _shifts(sql, index):
            return True
    return len(sql.tokens) == 1 and sql.at(0).is_("true", "false", "null")


def _shifts(sql: Sql, index: int) -> bool:
    """True if a token is part of `>>`."""
    return any(sql.before(at).is_(">") and sql.at(at).is_(">") and not sql.at(at).spaced for at in (index, index + 1))


def _resolve(sql: Sql, start: int, end: int) -> _Reached:
    """The column of a dotted name, and the type at the end of the fields and elements after it."""
    names = [token.name for token in sql.tokens[start:end:2]]
    sides = sql.place.columns
    refused = refused_word(names[0].lower()) if len(names) == 1 else None
    if refused is not None and not any(column_named(names[0], columns) for columns in sides.values()):
        raise sql.wrong(start, f"{names[0]} {refused[0]}", refused[1])
    if "" in sides:
        side, path = "", names
    elif names[0].lower() in sides and len(names) > 1:
        side, path = names[0].lower(), names[1:]
    else:
        raise _unqualified(sql, start, names)
    column = column_named(path[0], sides[side] + OWN_COLUMNS)
    if column is None:
        raise _unknown(sql, start, path, side)
    after = end - 2 * (len(path) - 1)
    type_, reached = column.type or _OWN_TYPES.get(column.name), after
    while sql.at(reached).is_(".", "["):
        type_, reached = _inside(sql, reached, type_)
    return _Reached(column if reached == after else None, type_, reached)


def _inside(sql: Sql, at: int, type_: str | None) -> tuple[str | None, int]:
    """The type of a field or an element, if it is known, and the index of the token after it."""
    if sql.at(at).is_("["):
        if sql.at(at + 1).kind == "string":  # on an array of structs this is a field
            return None, closes(sql.tokens, at) + 1
        element = type_.removeprefix("array<").removesuffix(">") if type_ and type_.startswith("array<") else None
        return element, closes(sql.tokens, at) + 1
    if type_ is None or type_.startswith(("map<", "variant")):
        return None, at + 2
    name, struct = sql.at(at + 1).name, type_.removeprefix("array<")
    if not struct.startswith("struct<"):
        parent = "an element" if sql.before(at).is_("]") else repr(sql.before(at).name)
        what = f"{parent} is {type_}, which has no field {name!r}"
        raise sql.wrong(at + 1, what, f"leave out .{name}, or name a column that is a struct")
    known = fields(struct, sql.place)
    field = column_named(name, known)
    if field is None:
        do = "write one of them" + did_you_mean(name, [column.name for column in known])
        raise sql.wrong(at + 1, f"{name!r} is not one of the fields {shown(known)}", do)
    return field.type if struct == type_ else f"array<{field.type}>", at + 2


def _unknown(sql: Sql, start: int, path: list[str], side: str) -> TopologyError:
    columns = sql.place.columns[side] + OWN_COLUMNS
    if side == "" and len(path) > 1 and column_named(path[1], columns) is not None:
        what = f"{'.'.join(path)!r} has a qualifier, and there is only one source"
        return sql.wrong(start, what, f"write {path[1]}")
    what = f"{path[0]!r} is not a column of the {f'{side} side' if side else 'source'}"
    return sql.wrong(start, what, "write one of its columns" + did_you_mean(path[0], [c.name for c in columns]))


def _unqualified(sql: Sql, start: int, names: list[str]) -> TopologyError:
    for name in names:
        sides = [side for side, columns in sql.place.columns.items() if column_named(name, columns + OWN_COLUMNS)]
        if sides:
            what = f"{'.'.join(names)!r} does not name a side"
            return sql.wrong(start, what, "write " + " or ".join(f"{side}.{name}" for side in sides))
    known = [column.name for columns in sql.place.columns.values() for column in columns + OWN_COLUMNS]
    what = f"{'.'.join(names)!r} is not a column of either side"
    return sql.wrong(start, what, "write left.column or right.column" + did_you_mean(names[-1], known))


def _cast_type(found: Roles) -> str | None:
    """The type of an expression that is only a cast; None otherwise, or if no column can have the type."""
    tokens = found.sql.tokens
    if len(tokens) > 2 and tokens[-2].is_("::") and _binds_closer(found, len(tokens) - 2):
        return tokens[-1].text or None
    whole_call = found.roles[0] == "function" and closes(tokens, 1) == len(tokens) - 1
    if whole_call and tokens[0].is_("cast", "try_cast") and tokens[-2].kind == "type":
        return tokens[-2].text or None
    return None


def _binds_closer(found: Roles, end: int) -> bool:
    """True if the tokens before an index are one operand of `::`: only names, constants and calls."""
    depth = depths(found.sql.tokens)
    outside = [index for index in range(end) if depth[index] == 0]
    return all(
        found.roles[index] not in ("word", "operator")
        or found.sql.at(index).kind == "type"
        or found.sql.at(index).is_("(", ")", "[", "]", ".", "::")
        for index in outside
    )
