"""What can be known of an expression without Spark: its shape, its columns, its name, sometimes its type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark.topology.ddl import quoted
from spark.topology.errors import Place, TopologyError, did_you_mean
from spark.topology.nodes import Column
from spark.topology.refused import refused_call, refused_word
from spark.topology.roles import Roles, depths, roles
from spark.topology.tokens import Sql, Token, lex, text_of

# Their types are the landing's business.
OWN_COLUMNS = tuple(Column(name, None) for name in ("_timestamp", "_topic", "_partition", "_offset"))

_WANT_AN_OPERAND = (
    *("*", "/", "%", "+", "-", "=", "==", "!=", "<>", "<", "<=", ">", ">=", "<=>", "|", "&", "^", "~", "!"),
    *("||", "->", "=>", "::", ".", ",", "(", "["),
    *("and", "or", "like", "ilike", "rlike", "regexp", "between", "in", "div", "when", "then", "else"),
)
_CANNOT_BEGIN = (
    *("*", "/", "%", "=", "==", "!=", "<>", "<", "<=", ">", ">=", "<=>", "|", "&", "^", "||"),
    *("->", "=>", "::", ".", ",", ")", "[", "]", ":"),
    *("and", "or", "between", "in", "div", "is", "then", "else", "end"),
)
_HAS_FIELDS = ("struct<", "array<", "map<", "variant")


@dataclass(frozen=True)
class Expression:
    """SQL text, the type it certainly has, and the column it is, if it is nothing but a column."""

    text: str
    type: str | None
    column: Column | None = None


def parse_expression(text: str, place: Place) -> Expression:
    """An expression that has no name."""
    name, expression = parse_item(text, place)
    if name is not None:
        raise place.mistake(f"{text!r} has a name, and here a name means nothing", f"leave out 'AS {name}'")
    return expression


def parse_item(text: str, place: Place) -> tuple[str | None, Expression]:
    """The name behind the last AS, if there is one, and the expression before it."""
    sql = lex(text, place)
    depth = depths(sql.tokens)
    named = [index for index, token in enumerate(sql.tokens) if token.is_("as") and depth[index] == 0]
    if not named:
        return None, _expression(sql)
    if named != [len(sql.tokens) - 2] or not sql.at(named[0] + 1).is_name:
        raise sql.wrong(named[0], "AS is not followed by one name at the end", "write 'expression AS name'")
    return sql.at(named[0] + 1).name, _expression(Sql(text, sql.tokens[: named[0]], place))


def column_named(name: str, columns: tuple[Column, ...]) -> Column | None:
    """The column of a name; case does not count, as in Spark SQL."""
    return next((column for column in columns if column.name.lower() == name.lower()), None)


def _expression(sql: Sql) -> Expression:
    found = roles(sql)
    _check_words(found)
    _check_calls(found)
    _check_shape(found)
    columns = {span: _resolve(found.sql, *span) for span in found.names("column")}
    column = columns.get((0, len(found.sql.tokens)))
    if column is None:
        return Expression(text_of(sql.tokens), _cast_type(found))
    side = "" if "" in sql.place.columns else f"{sql.at(0).lower}."
    return Expression(side + quoted(column.name), column.type, column)


def _check_words(found: Roles) -> None:
    for index, token in enumerate(found.sql.tokens):
        if found.roles[index] == "word" and token.is_("select"):
            do = "declare the other table and join it"
            raise found.sql.wrong(index, "a subquery reads a table that the plan does not know", do)
        if found.roles[index] == "word" and token.is_("over"):
            do = "windows are not available in this release"
            raise found.sql.wrong(index, "a window function reads other rows, and an expression sees one", do)


def _check_calls(found: Roles) -> None:
    for start, end in found.names("function"):
        name = found.sql.at(end - 1).name.lower()
        refused = refused_call(name, has_arguments=not found.sql.at(end + 1).is_(")"))
        if refused is not None:
            raise found.sql.wrong(start, f"{name}() {refused[0]}", refused[1])


def _check_shape(found: Roles) -> None:
    """Operators stand between operands, and operands between operators."""
    sql = found.sql
    if not sql.tokens:
        raise sql.place.mistake("an expression is empty", "write SQL text over the columns")
    for index in range(len(sql.tokens) + 1):
        before, token = sql.before(index), sql.at(index)
        if token.is_("*") and (before.kind == "end" or before.is_("(", ",", ".")):
            raise sql.wrong(index, "* stands for all columns only as an item of its own", "name the columns")
        if token.is_(",") and depths(sql.tokens)[index] == 0:
            raise sql.wrong(
                index, "one text holds several expressions", "write a list with one text for each"
            )
        if before.is_("(") and token.is_(")") and sql.before(index - 1).is_name:
            continue
        wants = index == 0 or (before.is_(*_WANT_AN_OPERAND) and _speaks(found, index - 1))
        if wants and (token.kind == "end" or (token.is_(*_CANNOT_BEGIN) and _speaks(found, index))):
            what = (
                f"nothing stands before {token.text!r}" if index == 0 else f"nothing follows {before.text!r}"
            )
            raise sql.wrong(index, what, "write what is missing")
        if _ends_operand(found, index - 1) and _begins_operand(found, index):
            what = f"no operator stands between {before.text!r} and {token.text!r}"
            raise sql.wrong(index, what, "write one, or 'expression AS name' for a name")
        if token.is_(":"):
            raise sql.wrong(
                index, "':' means nothing in an expression", "take it out; a cast is written with '::'"
            )


def _speaks(found: Roles, index: int) -> bool:
    """Whether a token is an operator or a keyword, and not the name of a column or a function."""
    return found.roles[index] in ("operator", "word")


def _ends_operand(found: Roles, index: int) -> bool:
    if index < 0:
        return False
    token = found.sql.at(index)
    return (
        token.kind == "type"
        or token.is_(")", "]")
        or found.roles[index] in ("column", "part", "variable", "constant")
    )


def _begins_operand(found: Roles, index: int) -> bool:
    if index == len(found.roles):
        return False
    strings = found.sql.at(index).kind == "string" and found.sql.before(index).kind == "string"
    return not strings and found.roles[index] in ("column", "function", "variable", "constant")


def _resolve(sql: Sql, start: int, end: int) -> Column | None:
    """The column that a dotted name is; None if the name is a field of one."""
    names = [token.name for token in sql.tokens[start:end:2]]
    sides = sql.place.columns
    side = "" if "" in sides else names[0].lower()
    if side not in sides or (side != "" and len(names) == 1):
        raise _unqualified(sql, start, names[0])
    path = names if side == "" else names[1:]
    column = column_named(path[0], sides[side] + OWN_COLUMNS)
    if column is None:
        raise _unknown(sql, start, names, path[0], side)
    if len(path) == 1:
        return column
    if column.type is not None and not column.type.startswith(_HAS_FIELDS):
        what = f"{path[1]!r} is asked of {path[0]!r}, which is {column.type} and has no fields"
        raise sql.wrong(start, what, f"write {path[0]} alone, or a column that is a struct")
    return None


def _unknown(sql: Sql, start: int, names: list[str], name: str, side: str) -> TopologyError:
    token = sql.at(start)
    refused = refused_word(token.lower) if token.kind == "word" and len(names) == 1 else None
    if refused is not None:
        return sql.wrong(start, f"{token.lower} {refused[0]}", refused[1])
    known = [column.name for column in sql.place.columns[side]]
    if side == "" and len(names) > 1 and column_named(names[1], sql.place.columns[""]) is not None:
        return sql.wrong(
            start, f"{'.'.join(names)!r} is qualified, and there is one source here", f"write {names[1]}"
        )
    of = f"the {side} side" if side else "the source"
    return sql.wrong(
        start, f"{name!r} is not a column of {of}", f"write one of its columns{did_you_mean(name, known)}"
    )


def _unqualified(sql: Sql, start: int, name: str) -> TopologyError:
    token = sql.at(start)
    holders = [
        side for side, columns in sql.place.columns.items() if column_named(name, columns + OWN_COLUMNS)
    ]
    refused = refused_word(token.lower) if token.kind == "word" and not holders else None
    if refused is not None:
        return sql.wrong(start, f"{token.lower} {refused[0]}", refused[1])
    do = " or ".join(f"{side}.{name}" for side in holders or ("left", "right"))
    return sql.wrong(start, f"{name!r} does not say which side it is of", f"write {do}")


def _cast_type(found: Roles) -> str | None:
    """The type of an expression that is a cast and nothing around it."""
    tokens = found.sql.tokens
    if len(tokens) < 2:
        return None
    if tokens[-2].is_("::") and _is_primary(found, len(tokens) - 2):
        return tokens[-1].text or None
    if (
        tokens[0].is_("cast", "try_cast")
        and tokens[-2].kind == "type"
        and _closes(tokens, 1) == len(tokens) - 1
    ):
        return tokens[-2].text or None
    return None


def _closes(tokens: Sequence[Token], opened: int) -> int:
    """The bracket that closes the one at an index."""
    depth = depths(tokens)
    return next(
        i for i in range(opened + 1, len(tokens)) if depth[i] == depth[opened] and tokens[i].is_(")", "]")
    )


def _is_primary(found: Roles, end: int) -> bool:
    """Whether the tokens before an index bind closer than `::`: nothing but names, constants and calls."""
    depth = depths(found.sql.tokens)
    outside = [index for index in range(end) if depth[index] == 0]
    operators = ("(", ")", "[", "]", ".", "::")
    return all(
        found.roles[i] != "word"
        and (
            found.roles[i] != "operator" or found.sql.at(i).is_(*operators) or found.sql.at(i).kind == "type"
        )
        for i in outside
    )
