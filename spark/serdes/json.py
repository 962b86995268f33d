"""JSON bytes to typed columns, and back. `_error` says what does not decode; no record is dropped.

A value must be one JSON object whose fields have the declared types. Undeclared fields are ignored, missing declared
fields are null, and of a duplicate field the last one counts. A record without a value, or with the JSON literal null,
is a tombstone. A key of one column may be an object, a bare JSON scalar or plain text: `{"id": 7}`, `7`, `"7"`,
`seven`; a key of several columns is an object. If the key is null, or an object without the declared fields, the
record has no key.

Spark's reader accepts more than that. Where it would return a wrong value, the record does not decode: a decimal with
more places than declared, or a time finer than microseconds, unless the excess digits are zeros; and a date that is not
written yyyy-MM-dd. A regular expression searches the text first. A field is parsed again, as text, only if it may be
one of these.

Encoded values decode to the same values. A key of one column is a bare JSON scalar, `7` or `"seven"`. Equal keys have
equal bytes, since the type of a column determines how each value is written. Nulls are written; times are in
microseconds UTC.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from spark.topology.columns import published_name
from spark.topology.errors import Place
from spark.topology.sql.ddl import fields, quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame

    from spark.serdes.part import Part
    from spark.serdes.schemas import Schemas, Writing
    from spark.topology.columns import Column

CORRUPT = "_corrupt"
DECIMAL = re.compile(r"\bdecimal\b\s*(\(|[,>]|$)")
OPTIONS = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": CORRUPT,
    "allowSingleQuotes": "false",
    "enableDateTimeParsingFallback": "false",  # "1" is not a date
}
WRITING = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",  # Spark's default has milliseconds
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}

REASONS: Final[Mapping[Part, tuple[str, str]]] = {
    "key": ("the key does not decode as JSON", "the key has more decimal places than declared"),
    "value": ("the value does not decode as JSON", "the value has more decimal places than declared"),
}

LEAF = re.compile(
    r"(?:(?<=[:<,])|^)(?:decimal\(\d+,(?P<scale>\d+)\)|timestamp_ntz|timestamp|date|tinyint|float|double)(?=[,>]|$)"
)
"""A type, alone or inside another, whose values Spark may read as other values than were written."""
TIMES = ("timestamp", "timestamp_ntz")
DATE = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
ESCAPED = r"\u00"
"""How an escaped ASCII character begins. A text that has one must be parsed, since a search does not see through it."""
UNESCAPED = re.compile(r"[ !#-.0-\[\]-~]*")
"""A name of which no character needs an escape, or has one other than `ESCAPED`."""
MISREAD = {
    "decimal": r'"[^",]*,',
    "timestamp": r'-?[0-9]{13}|"\s*T?[0-9]{1,2}:',
    "timestamp_ntz": r'-?[0-9]{13}|"\s*T?[0-9]{1,2}:',
    "date": rf'"(?!{DATE}")[^"0-9]{{0,9}}[0-9]{{4}}',
    "tinyint": "-?[0-9]{3}",
    "float": r"[0-9.][eE]|[0-9]{39}",
    "double": r"[0-9.][eE]|[0-9]{309}",
}
"""By type, an approximate pattern of the values that Spark reads as other values."""
NUMBER = r"^[+-]?([0-9]*)\.?([0-9]*)(?:[eE]([+-]?[0-9]+))?$"

NUMBERS = r'("(?:[^"\\]++|\\.)*+")|([+-]?[0-9][0-9.eE+-]*+)(?=[^"]*+("))'
"""A JSON string (group 1); or a number (group 2), and the next quote after it (group 3)."""

ENDLESS = r"[+-]?[0-9.]+[eE][+-]?[0-9]{4,}"
"""A number with an exponent that no column can hold. Spark writes it out in full: 1e5000000 takes 8 seconds."""
END = r"\s*[,}\]]"
"""What follows a value in an object or an array. Without it, a UUID may begin with such a number."""


def decode(
    records: DataFrame,
    part: Part,
    columns: tuple[Column, ...],
    schemas: Schemas,  # noqa: ARG001  # of formats with a registry
) -> DataFrame:
    """Decode a part of records: see `Serde.decode`."""
    raw, trimmed, text, parsed = f"_{part}", f"_{part}_trimmed", f"_{part}_text", f"_{part}_parsed"
    with_text = records.select("*", _trimmed(raw).alias(trimmed)).select("*", _text(raw, trimmed).alias(text))
    bare = [_scalar(text, columns[0]).alias(_bare(part))] if part == "key" and len(columns) == 1 else []
    suspects = [_is_suspect(text, column).alias(_suspect(text, column)) for column in columns if _close_look(column)]
    with_fields = with_text.select("*", *suspects).select("*", _object(text, columns).alias(parsed), *bare)
    fields = [_field(parsed, column) for column in columns]
    broken, rounded = _broken(text, parsed, columns), _rounded(text, parsed, columns)
    if bare:
        [column] = columns
        is_object = F.startswith(text, F.lit("{"))
        fields = [F.when(is_object, fields[0]).otherwise(F.col(_bare(part)))]
        broken = F.when(is_object, broken).otherwise(_bad_scalar(text, _bare(part), column))
        finer = F.coalesce(_finer(str(column.type), _content(text)), F.lit(False))
        rounded = F.when(is_object, rounded).otherwise(finer)
    has_text = F.col(text).isNotNull()
    reasons = REASONS[part]
    error = F.when(has_text & broken, _reason(reasons[0], columns)).when(
        has_text & rounded, _reason(reasons[1], columns)
    )
    if bare or any(column.type == "tinyint" for column in columns):
        row = F.struct(*(field.alias(column.name) for field, column in zip(fields, columns, strict=True)))
    else:
        row = F.col(parsed)  # the same fields, and CORRUPT, without a copy
    decoded = with_fields.select("*", F.when(has_text, row).alias(f"_{part}_row"), error.alias(f"_{part}_error"))
    # Not a selection of the columns of `records`: to ask for them is a request.
    return decoded.drop(trimmed, text, parsed, _bare(part), *(_suspect(text, column) for column in columns))


def _bare(part: Part) -> str:
    return f"_{part}_bare"


def _trimmed(name: str) -> Expression:
    """Bytes as text without surrounding blanks; null for a plain object, as nearly all values are."""
    text = F.col(name).cast("string")
    return F.when(~is_plain(text), F.btrim(text, F.lit(" \t\r\n")))


def _text(name: str, trimmed: str) -> Expression:
    """Bytes as text, JSON without surrounding blanks; null if there are no bytes, or if they are the JSON null."""
    text = F.col(name).cast("string")
    json = F.startswith(trimmed, F.lit("{")) | F.startswith(trimmed, F.lit('"'))
    return F.when(is_plain(text), text).when(json, F.col(trimmed)).when(F.col(trimmed) != "null", text)


def is_plain(text: Expression) -> Expression:
    """True if a text begins and ends as an object does, without blanks around it."""
    return F.startswith(text, F.lit("{")) & F.endswith(text, F.lit("}"))


def _close_look(column: Column) -> list[str]:
    """Return patterns of the values of a column that need a closer look; none for most types."""
    return [*_endless(column), *_misread_as(column), *_finer_than(column)]


def _endless(column: Column) -> list[str]:
    """Return patterns of the decimals of `ENDLESS`."""
    if not DECIMAL.search(str(column.type)):
        return []
    if "<" in str(column.type):  # not in quotes: there "12e45678" may be a short hash
        return [rf"[:,\[]\s*{ENDLESS}{END}"]
    return [rf'"{ENDLESS}"{END}', rf"{ENDLESS}{END}"]


def _misread_as(column: Column) -> list[str]:
    """Return patterns of the values that Spark may read as other values."""
    return [MISREAD[kind] for kind in sorted({leaf[0].partition("(")[0] for leaf in _leaves(column)})]


def _finer_than(column: Column) -> list[str]:
    """Return patterns of the values that may be finer than the type."""
    scales = [int(leaf["scale"]) for leaf in _leaves(column) if leaf["scale"] is not None]
    found = [rf"\.[0-9]{{0,{min(scales)}}}+[0-9eE]", "[eE][+-]?[0-9]"] if scales else []
    found += [r"\.[0-9]{7}"] if any(leaf[0] in TIMES for leaf in _leaves(column)) else []
    if not found or not _is_anchored(column):
        return found
    # A value up to its first dot or exponent is possessive: to try every other place in it takes twice as long.
    return [rf'"?+[^",}}.{"eE" if scales else ""}]*+(?:{"|".join(found)})']


def _leaves(column: Column) -> list[re.Match[str]]:
    return list(LEAF.finditer(str(column.type)))


def _is_anchored(column: Column) -> bool:
    """True if the values of a column follow its name: the name is written in one way, and the type is not nested."""
    return UNESCAPED.fullmatch(column.name) is not None and "<" not in str(column.type)


def _suspect(text: str, column: Column) -> str:
    return f"{text}_suspect_{column.name}"


def _is_suspect(text: str, column: Column) -> Expression:
    """True if a text may have a value of a column that needs a closer look.

    One search for each column, and not one for all: Java's search skips ahead only in a pattern that begins with
    literal characters, as a name. An alternation of names takes several times as long as their searches together.
    """
    return _search(text, column, _close_look(column)) | F.contains(F.col(text), F.lit(ESCAPED))


def _search(text: str, column: Column, patterns: list[str]) -> Expression:
    field = _field_of(column.name) if _is_anchored(column) else ""
    return F.col(text).rlike(f"{field}(?:{'|'.join(patterns)})")


def _object(text: str, columns: tuple[Column, ...]) -> Expression:
    types = {column.name: "smallint" if column.type == "tinyint" else column.type for column in columns}
    schema = ", ".join([*(f"{quoted(name)} {kind}" for name, kind in types.items()), f"{CORRUPT} string"])
    # Spark would write an endless decimal out in full.
    endless = [
        F.col(quoted(_suspect(text, column))) & _search(text, column, found)
        for column in columns
        if (found := _endless(column))
    ]
    # from_json throws and catches an exception for every text that is no object.
    return F.when(F.startswith(text, F.lit("{")) & ~_some(endless), F.from_json(text, schema, OPTIONS))


def _field_of(name: str) -> str:
    """Return a pattern of a field up to its value; of nothing if the name may be written in several ways."""
    return rf'"{re.escape(name)}"\s*+:\s*+' if UNESCAPED.fullmatch(name) else ""


def _broken(text: str, parsed: str, columns: tuple[Column, ...]) -> Expression:
    """True if text is no object of the declared types. Spark ignores what follows an object; this does not."""
    # If the only closing brace is the last character, nothing follows it. Otherwise the text is parsed once more. So is
    # a text that may hold NaN or Infinity without quotes: they are not JSON, and json_array_length refuses them.
    infinite = F.contains(F.col(text), F.lit("INF")) | F.contains(F.col(text), F.lit("Infinity"))
    is_last = F.octet_length(F.substring_index(text, "}", 1)) == F.octet_length(text) - 1
    plain = is_last & ~infinite & ~F.contains(F.col(text), F.lit("NaN"))
    one_value = is_one_value(F.col(text))
    fields = [(F.col(f"{parsed}.{quoted(column.name)}"), column) for column in columns]
    misfits = _some([~F.coalesce(_fits(text, value, column), F.lit(True)) for value, column in fields])
    return ~(
        F.col(parsed).isNotNull()
        & ~misfits
        & F.startswith(text, F.lit("{"))
        & F.endswith(text, F.lit("}"))
        & F.col(f"{parsed}.{CORRUPT}").isNull()
        & F.is_valid_utf8(text)  # Spark replaces invalid bytes by a replacement character
        & F.when(plain, True).otherwise(one_value)
    )


def is_one_value(text: Expression) -> Expression:
    """True if a text is one JSON value, with nothing behind it."""
    return F.coalesce(F.json_array_length(F.concat(F.lit("["), text, F.lit("]"))) == 1, F.lit(False))


def _fits(text: str, value: Expression, column: Column) -> Expression:
    """True if a value is the one that was written, of a type that Spark may misread; a null value may give null."""
    kind = str(column.type)
    if kind == "tinyint":  # read as smallint: as a tinyint, Spark reads 200 as -56
        return value.between(-128, 127)
    if kind in ("float", "double"):
        return F.when(F.abs(value) == float("inf"), ~_misread(kind, _written(text, column))).otherwise(F.lit(True))
    fits = ~_has_error(text, value, column, _misread) if _misread_as(column) else F.lit(True)
    if kind == "date" or kind in TIMES:
        return fits & _has_a_year(value)
    if kind.startswith("map"):  # a duplicate key
        return fits & (F.size(F.array_distinct(F.map_keys(value))) == F.size(value))
    return fits


def _has_a_year(value: Expression) -> Expression:
    return F.year(value).between(1, 9999)


def _has_error(
    text: str, value: Expression, column: Column, is_wrong: Callable[[str, Expression], Expression]
) -> Expression:
    """True if `is_wrong` is true for a field as it was written; only a suspect text is parsed again."""
    wrong = F.coalesce(_any(str(column.type), _written(text, column), is_wrong), F.lit(False))
    return F.when(value.isNotNull() & F.col(quoted(_suspect(text, column))), wrong).otherwise(F.lit(False))


def _written(text: str, column: Column) -> Expression:
    """A field in which every value that Spark may misread is a string, as it was written.

    Spark parses a number as a double before it returns it as a string, so numbers are quoted first.
    """
    kind = LEAF.sub("string", str(column.type))
    # NUMBERS needs a quote after the last number. It is appended here, and removed again.
    strings = F.regexp_replace(F.concat(text, F.lit('"')), NUMBERS, "$1$3$2$3")
    return F.from_json(F.rtrim(strings, F.lit('"')), f"{quoted(column.name)} {kind}", OPTIONS)[column.name]


def _any(kind: str, value: Expression, is_wrong: Callable[[str, Expression], Expression]) -> Expression:
    """True if `is_wrong` is true for any value of a type, including nested values."""
    if kind.startswith("array<"):
        return F.exists(value, lambda element: _any(kind[len("array<") : -1], element, is_wrong))
    if kind.startswith("map<string,"):
        return F.exists(F.map_values(value), lambda entry: _any(kind[len("map<string,") : -1], entry, is_wrong))
    if kind.startswith("struct<"):
        parts = [_any(str(f.type), value[f.name], is_wrong) for f in fields(kind, Place(kind, None)) if f.type]
        return _some([F.coalesce(part, F.lit(False)) for part in parts])
    return is_wrong(kind, value)


def _misread(kind: str, written: Expression) -> Expression:
    """True if Spark returns a value for a text that is not of this type, or a value other than written."""
    if kind.startswith("decimal"):  # "1,5" is read as 15
        return F.contains(written, F.lit(","))
    if kind in TIMES:
        # Spark reads milliseconds as seconds, more digits wrap around, and a time alone becomes a time of today.
        wrong = written.rlike(r"^-?[0-9]{13,}$|^\s*T?[0-9]{1,2}:")
        return wrong if kind == "timestamp" else wrong | written.rlike("[T ].*[A-Za-z+-]")  # Spark drops the zone
    if kind == "date":  # Spark drops what follows a date, and reads a missing month or day as the first
        return ~written.rlike(f"^{DATE}$")
    if kind == "tinyint":
        return ~written.try_cast("int").between(-128, 127)
    if kind in ("float", "double"):  # 1e999; an intended infinity is spelled out, in quotes
        endless = F.coalesce(F.abs(written.try_cast(kind)) == float("inf"), F.lit(True))
        return endless & ~written.rlike("^[+-]?I")
    return F.lit(False)


def _finer(kind: str, written: Expression) -> Expression:
    """True if a text has digits, other than zeros, beyond the precision of its type."""
    if leaf := LEAF.fullmatch(kind):
        if leaf["scale"] is not None:
            return ~_within(written, int(leaf["scale"]))
        if kind in TIMES:
            return written.rlike(r"\.[0-9]{6}[0-9]*[1-9]")
    return F.lit(False)


def _rounded(text: str, parsed: str, columns: tuple[Column, ...]) -> Expression:
    """True if a decimal or a time is finer than its type. Spark cuts excess digits, so two keys could become one."""
    finer = [column for column in columns if _finer_than(column)]
    return _some([_has_error(text, F.col(f"{parsed}.{quoted(column.name)}"), column, _finer) for column in finer])


def _some(conditions: Sequence[Expression]) -> Expression:
    """True if one of the conditions is, and false without any.

    Half of them OR the other half: as a chain, those of 50 columns are nested more deeply than Spark Connect takes.
    """
    if len(conditions) < 2:
        return conditions[0] if conditions else F.lit(False)
    middle = len(conditions) // 2
    return _some(conditions[:middle]) | _some(conditions[middle:])


def _within(number: Expression, places: int) -> Expression:
    """True if a number, as written, has at most `places` decimal places, apart from zeros; null for null."""
    whole, fraction, power = (F.regexp_extract(number, NUMBER, group) for group in (1, 2, 3))
    digits = F.concat(whole, fraction)
    zeros = F.length(digits) - F.length(F.rtrim(digits, F.lit("0")))
    exponent = F.coalesce(power.try_cast("int"), F.lit(0))
    return (zeros == F.length(digits)) | (F.length(fraction) - zeros - exponent <= places)


def _field(parsed: str, column: Column) -> Expression:
    field = F.col(f"{parsed}.{quoted(column.name)}")
    return field.try_cast("tinyint") if column.type == "tinyint" else field


def _content(text: str) -> Expression:
    """The text of a key that is no object: the content of a JSON string, or the text itself; null if it is invalid."""
    array = F.concat(F.lit("["), text, F.lit("]"))
    string = F.when(F.json_array_length(array) == 1, F.get_json_object(array, "$[0]"))
    content = F.when(F.startswith(text, F.lit('"')), string).otherwise(F.col(text))
    return F.when(F.is_valid_utf8(text), content)


def _scalar(text: str, column: Column) -> Expression:
    """A key that is no object, in its type; null if it has no value of that type."""
    return _content(text).try_cast(str(column.type))


def _bad_scalar(text: str, bare: str, column: Column) -> Expression:
    """True if a key that is no object is not of its type."""
    kind, value = str(column.type), F.col(bare)
    bad = value.isNull()
    if kind == "date" or kind in TIMES:
        bad |= ~_has_a_year(value) | F.coalesce(_misread(kind, _content(text)), F.lit(False))
    return bad


def _reason(what: str, columns: tuple[Column, ...]) -> Expression:
    """A reason for quarantine, with the declared columns."""
    declared = ", ".join(f"{column.name} {column.type}" for column in columns)
    return F.lit(f"{what} ({declared})")


def encode_key(
    rows: DataFrame,
    key: tuple[str, ...],
    writing: Writing | None = None,  # noqa: ARG001  # of formats with a registry
) -> Expression:
    """A row's key as JSON text; null if every column of it is null."""
    if len(key) > 1 or rows.schema[key[0]].dataType.typeName() == "binary":  # a bare scalar decodes as plain text
        return F.when(F.greatest(*(F.col(quoted(name)).isNotNull() for name in key), F.lit(False)), _encoded(key))
    array = F.to_json(F.array(F.col(quoted(key[0]))), WRITING)
    return F.when(F.col(quoted(key[0])).isNotNull(), F.substring(array, F.lit(2), F.length(array) - 2))


def encode_value(
    rows: DataFrame,  # noqa: ARG001  # as every serde
    columns: tuple[str, ...],
    writing: Writing | None = None,  # noqa: ARG001  # of formats with a registry
) -> Expression:
    """A row's value as JSON text; never null."""
    return _encoded(columns) if columns else F.lit("{}")


def _encoded(columns: Iterable[str]) -> Expression:
    return F.to_json(F.struct(*(F.col(quoted(name)).alias(published_name(name)) for name in columns)), WRITING)


def to_bytes(part: object, columns: tuple[Column, ...]) -> bytes:  # noqa: ARG001  # as every serde
    """A Python value as JSON text."""
    return json.dumps(part).encode()


def from_bytes(part: bytes, columns: tuple[Column, ...]) -> object:  # noqa: ARG001  # as every serde
    """JSON text as a Python value; a number with a fraction is a Decimal."""
    value: object = json.loads(part, parse_float=Decimal)
    return value
