"""JSON bytes to typed columns, and back. What does not decode is said in `_error`; nothing is dropped.

A value must be one JSON object whose fields have the declared types; fields that are not declared are left out,
declared ones that are missing are null, and of one that is there twice the last counts. A record without a value, or
with the JSON literal null, is a tombstone. A key of one column may be an object, a bare JSON scalar or plain text:
`{"id": 7}`, `7`, `"7"`, `seven`; a key of several columns is an object. A key that is null, or an object without the
declared fields, is a record without a key.

Spark's reader is more generous than that, and where it would make a wrong value of what it read, we refuse it: so a
decimal with more places than are declared, or a time with more than microseconds, unless they are zeros, and a date
that is not written yyyy-MM-dd. The text is looked at first, and a field is read again, as it is written, only where it
may be one of those.

What is encoded decodes to the same values. A key of one column is a bare JSON scalar, `7` or `"seven"`: equal keys are
equal bytes, since a column's type says how each of its values is written. Nulls are written, times in microseconds UTC.
"""

from __future__ import annotations

import re
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from spark.topology.columns import published_name
from spark.topology.errors import Place
from spark.topology.sql.ddl import fields, quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame

    from spark.topology.columns import Column
    from spark.topology.consumed import Consumed

CORRUPT = "_corrupt"
DECIMAL = re.compile(r"\bdecimal\b\s*(\(|[,>]|$)")
OPTIONS = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": CORRUPT,
    "allowSingleQuotes": "false",
    "enableDateTimeParsingFallback": "false",  # "1" is no date
}
WRITING = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",  # Spark's own has milliseconds
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}

KEY = "the key is not JSON of"
KEY_PLACES = "the key has more digits behind the point than"
VALUE = "the value is not JSON of"
DIFFERS = "the value says otherwise than the key of"
VALUE_PLACES = "the value has more digits behind the point than"

LEAF = re.compile(
    r"(?:(?<=[:<,])|^)(?:decimal\(\d+,(?P<scale>\d+)\)|timestamp_ntz|timestamp|date|tinyint|float|double)(?=[,>]|$)"
)
"""In a type, one whose values Spark may read as others than were written."""
TIMES = ("timestamp", "timestamp_ntz")
DATE = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
ESCAPED = r"\\u00[0-7]"
"""In a text, a character that might stand there as it is: nothing is known by looking."""
MISREAD = {
    "decimal": r'"[^",]*,',
    "timestamp": r'-?[0-9]{13}|"\s*T?[0-9]{1,2}:',
    "timestamp_ntz": r'-?[0-9]{13}|"\s*T?[0-9]{1,2}:',
    "date": rf'"(?!{DATE}")[^"0-9]{{0,9}}[0-9]{{4}}',
    "tinyint": "-?[0-9]{3}",
    "float": r"[0-9.][eE]|[0-9]{39}",
    "double": r"[0-9.][eE]|[0-9]{309}",
}
"""What a value looks like, roughly, of which Spark makes another one; by type."""
NUMBER = r"^[+-]?([0-9]*)\.?([0-9]*)(?:[eE]([+-]?[0-9]+))?$"

NUMBERS = r'("(?:[^"\\]++|\\.)*+")|([+-]?[0-9][0-9.eE+-]*+)(?=[^"]*+("))'
"""A string of JSON, the first group; or a number, the second, and a quote somewhere behind it, the third."""

ENDLESS = r"[+-]?[0-9.]+[eE][+-]?[0-9]{4,}"
"""A number whose power of ten no column holds. Spark writes it out, 1e5000000 in 8 seconds."""
END = r"\s*[,}\]]"
"""What follows a value of an object or an array: without it a UUID begins with such a number."""


def decode(records: DataFrame, consumed: Consumed, *, key_from_value: bool = False) -> DataFrame:
    """Records with binary `_key` and `_value`, plus: typed columns (key first), `_deleted`, `_error`.

    With `key_from_value`, a column that the key lacks, and that is declared in the value too, is the value's.
    Where there is an error, the columns are null: what was read of a broken record may be anything.
    The columns of `records` begin with an underscore, so that no user column has the name of one.
    """
    trimmed = records.select("*", _trimmed("_key").alias("_kt"), _trimmed("_value").alias("_vt"))
    texts = trimmed.select("*", _text("_key", "_kt").alias("_k"), _text("_value", "_vt").alias("_v"))
    bare, value = len(consumed.key) == 1, consumed.value + consumed.again
    parsed = texts.select(
        "*",
        _object("_k", consumed.key).alias("_ko"),
        _object("_v", value).alias("_vo"),
        *([_scalar(consumed.key[0]).alias("_ks")] if bare else []),
    )
    key = [_field("_ko", column) for column in consumed.key]
    bad_key = _broken("_k", "_ko", consumed.key)
    if bare:
        is_object = F.startswith("_k", F.lit("{"))
        key = [F.when(is_object, key[0]).otherwise(F.col("_ks"))]
        bad_key = F.when(is_object, bad_key).otherwise(_bad_scalar(consumed.key[0]))
    rounded_key = _rounded("_k", "_ko", consumed.key)
    if bare:
        finer = F.coalesce(_finer(str(consumed.key[0].type), _content()), F.lit(False))
        rounded_key = F.when(is_object, rounded_key).otherwise(finer)
    has_key, has_value = F.col("_k").isNotNull(), F.col("_v").isNotNull()
    error = (
        F.when(has_key & bad_key, _says(KEY, consumed.key))
        .when(has_key & rounded_key, _says(KEY_PLACES, consumed.key))
        .when(has_value & _broken("_v", "_vo", value), _says(VALUE, value))
        .when(has_value & _rounded("_v", "_vo", value), _says(VALUE_PLACES, value))
        .when(has_key & has_value & _differs(consumed, key), _says(DIFFERS, consumed.again))
    )
    if key_from_value:
        again = {column.name.lower(): _field("_vo", column) for column in consumed.again}
        key = [
            F.coalesce(field, again[column.name.lower()]) if column.name.lower() in again else field
            for field, column in zip(key, consumed.key, strict=True)
        ]
    judged = parsed.withColumn("_error", error)
    right = F.col("_error").isNull()
    return judged.select(
        *records.columns,
        *(F.when(right, field).alias(column.name) for field, column in zip(key, consumed.key, strict=True)),
        *(F.when(right, _field("_vo", column)).alias(column.name) for column in consumed.value),
        F.col("_v").isNull().alias("_deleted"),
        "_error",
    )


def _trimmed(name: str) -> Expression:
    """Bytes that are no plain object, as nearly all values are, as text without blanks around it."""
    text = F.col(name).cast("string")
    return F.when(~_is_plain(text), F.btrim(text, F.lit(" \t\r\n")))


def _text(name: str, trimmed: str) -> Expression:
    """Bytes as text, JSON without blanks around it; absent where there are no bytes, or where they say null."""
    text = F.col(name).cast("string")
    json = F.startswith(trimmed, F.lit("{")) | F.startswith(trimmed, F.lit('"'))
    return F.when(_is_plain(text), text).when(json, F.col(trimmed)).when(F.col(trimmed) != "null", text)


def _is_plain(text: Expression) -> Expression:
    return F.startswith(text, F.lit("{")) & F.endswith(text, F.lit("}"))


def _object(text: str, columns: tuple[Column, ...]) -> Expression:
    types = {column.name: "smallint" if column.type == "tinyint" else column.type for column in columns}
    schema = ", ".join([*(f"{quoted(name)} {kind}" for name, kind in types.items()), f"{CORRUPT} string"])
    # Text that is no object would cost an exception for every record.
    return F.when(F.startswith(text, F.lit("{")) & ~_endless(text, columns), F.from_json(text, schema, OPTIONS))


def _endless(text: str, columns: tuple[Column, ...]) -> Expression:
    """Whether a decimal would be written out."""
    names = [column.name for column in columns if str(column.type).startswith("decimal")]
    nested = [str(column.type) for column in columns if not str(column.type).startswith("decimal")]
    found = F.lit(False)
    if names:
        any_of = "|".join(map(re.escape, names))
        found |= F.col(text).rlike(rf'"(?:{any_of})"\s*:\s*(?:"{ENDLESS}"|{ENDLESS}){END}')
    if any(DECIMAL.search(kind) for kind in nested):  # in quotes, elsewhere, "12e45678" may be a short hash
        found |= F.col(text).rlike(rf"[:,\[]\s*{ENDLESS}{END}")
    return found


def _broken(text: str, parsed: str, columns: tuple[Column, ...]) -> Expression:
    """Whether text is no object of the declared types. Spark ignores what follows an object; we do not."""
    # One closing brace, and it is the last character: nothing follows it. Else the text is read once more, as it is
    # where it may hold NaN or Infinity without quotes: they are no JSON, and the second reader knows it.
    infinite = F.contains(F.col(text), F.lit("INF")) | F.contains(F.col(text), F.lit("Infinity"))
    plain = (F.locate("}", F.col(text)) == F.length(text)) & ~infinite & ~F.contains(F.col(text), F.lit("NaN"))
    alone = F.coalesce(F.json_array_length(F.concat(F.lit("["), text, F.lit("]"))) == 1, F.lit(False))
    fits = F.lit(True)
    for column in columns:
        fits &= F.coalesce(_fits(text, F.col(f"{parsed}.{quoted(column.name)}"), column), F.lit(True))
    return ~(
        F.col(parsed).isNotNull()
        & fits
        & F.startswith(text, F.lit("{"))
        & F.endswith(text, F.lit("}"))
        & F.col(f"{parsed}.{CORRUPT}").isNull()
        & F.is_valid_utf8(text)  # Spark puts a replacement character where it is not
        & F.when(plain, True).otherwise(alone)
    )


def _fits(text: str, value: Expression, column: Column) -> Expression:
    """Whether a value is the one that was written, where Spark's reader may make another of it; null is none."""
    kind = str(column.type)
    if kind == "tinyint":  # read as smallint: Spark takes 200 for a tinyint, and makes -56 of it
        return value.between(-128, 127)
    if kind in ("float", "double"):
        return F.when(F.abs(value) == float("inf"), ~_misread(kind, _written(text, column))).otherwise(F.lit(True))
    kinds = {leaf[0].partition("(")[0] for leaf in LEAF.finditer(kind)}
    if not kinds:
        fits = F.lit(True)
    else:
        field = rf'"{re.escape(column.name)}"\s*+:\s*+' if LEAF.fullmatch(kind) else ""
        roughly = "|".join(rf"{field}(?:{MISREAD[one]})" for one in sorted(kinds))
        fits = ~_suspected(text, value, column, roughly, _misread)
    if kind == "date" or kind in TIMES:
        return fits & _has_a_year(value)
    if kind.startswith("map"):  # a key that is there twice
        return fits & (F.size(F.array_distinct(F.map_keys(value))) == F.size(value))
    return fits


def _has_a_year(value: Expression) -> Expression:
    return F.year(value).between(1, 9999)


def _suspected(
    text: str, value: Expression, column: Column, roughly: str, judge: Callable[[str, Expression], Expression]
) -> Expression:
    """Whether a judge finds something in a field as it is written; it is read where the text looks like it."""
    found = F.coalesce(_any(str(column.type), _written(text, column), judge), F.lit(False))
    return F.when(value.isNotNull() & F.col(text).rlike(f"{roughly}|{ESCAPED}"), found).otherwise(F.lit(False))


def _written(text: str, column: Column) -> Expression:
    """A field with all that Spark might read as something else as it is written.

    Spark makes a double of a number before it reads it as a string, so numbers are put in quotes first.
    """
    kind = LEAF.sub("string", str(column.type))
    # The quote behind the text is what the last number finds; it is taken away again.
    strings = F.regexp_replace(F.concat(text, F.lit('"')), NUMBERS, "$1$3$2$3")
    return F.from_json(F.rtrim(strings, F.lit('"')), f"{quoted(column.name)} {kind}", OPTIONS)[column.name]


def _any(kind: str, value: Expression, judge: Callable[[str, Expression], Expression]) -> Expression:
    """Whether a judge finds something in any value of a type."""
    if kind.startswith("array<"):
        return F.exists(value, lambda one: _any(kind[len("array<") : -1], one, judge))
    if kind.startswith("map<string,"):
        return F.exists(F.map_values(value), lambda one: _any(kind[len("map<string,") : -1], one, judge))
    if kind.startswith("struct<"):
        parts = [_any(str(one.type), value[one.name], judge) for one in fields(kind, Place(kind, None)) if one.type]
        return reduce(or_, (F.coalesce(part, F.lit(False)) for part in parts))
    return judge(kind, value)


def _misread(kind: str, written: Expression) -> Expression:
    """Whether Spark makes a value of a text that says none of this type, or another one."""
    if kind.startswith("decimal"):  # "1,5" is read as 15
        return F.contains(written, F.lit(","))
    if kind in TIMES:
        # Milliseconds are read as seconds, and more digits wrap around; a time alone is read as one of today.
        wrong = written.rlike(r"^-?[0-9]{13,}$|^\s*T?[0-9]{1,2}:")
        return wrong if kind == "timestamp" else wrong | written.rlike("[T ].*[A-Za-z+-]")  # a zone, which is left out
    if kind == "date":  # what follows a date is left out, and what it lacks is the first
        return ~written.rlike(f"^{DATE}$")
    if kind == "tinyint":
        return ~written.try_cast("int").between(-128, 127)
    if kind in ("float", "double"):  # 1e999; an infinity that is meant is spelled, in quotes
        endless = F.coalesce(F.abs(written.try_cast(kind)) == float("inf"), F.lit(True))
        return endless & ~written.rlike("^[+-]?I")
    return F.lit(False)


def _finer(kind: str, written: Expression) -> Expression:
    """Whether a text has digits, other than zeros, that its type does not keep."""
    if leaf := LEAF.fullmatch(kind):
        if leaf["scale"] is not None:
            return ~_within(written, int(leaf["scale"]))
        if kind in TIMES:
            return written.rlike(r"\.[0-9]{6}[0-9]*[1-9]")
    return F.lit(False)


def _differs(consumed: Consumed, key: list[Expression]) -> Expression:
    """Whether the value has another key than the key; a null there, or nothing, says none."""
    of_key = dict(zip((column.name.lower() for column in consumed.key), key, strict=True))
    found = [_field("_vo", column) != of_key[column.name.lower()] for column in consumed.again]
    return F.coalesce(reduce(or_, found, F.lit(False)), F.lit(False))


def _rounded(text: str, parsed: str, columns: tuple[Column, ...]) -> Expression:
    """Whether a decimal or a time has more digits than are kept; Spark cuts them, and two keys become one."""
    found = F.lit(False)
    for column in columns:
        leaves = list(LEAF.finditer(str(column.type)))
        scales = [int(leaf["scale"]) for leaf in leaves if leaf["scale"] is not None]
        roughly = [rf"\.[0-9]{{{min(scales) + 1}}}|[0-9.][eE][+-]?[0-9]"] if scales else []
        roughly += [r"\.[0-9]{7}"] if any(leaf[0] in TIMES for leaf in leaves) else []
        if roughly:
            value = F.col(f"{parsed}.{quoted(column.name)}")
            found |= _suspected(text, value, column, "|".join(roughly), _finer)
    return found


def _within(number: Expression, places: int) -> Expression:
    """Whether a number, as it is written, has no more places than that but zeros; null where there is none."""
    whole, fraction, power = (F.regexp_extract(number, NUMBER, group) for group in (1, 2, 3))
    digits = F.concat(whole, fraction)
    zeros = F.length(digits) - F.length(F.rtrim(digits, F.lit("0")))
    exponent = F.coalesce(power.try_cast("int"), F.lit(0))
    return (zeros == F.length(digits)) | (F.length(fraction) - zeros - exponent <= places)


def _field(parsed: str, column: Column) -> Expression:
    field = F.col(f"{parsed}.{quoted(column.name)}")
    return field.try_cast("tinyint") if column.type == "tinyint" else field


def _content() -> Expression:
    """What a key says that is no object: the content of a JSON string, or the text as it is; null where it is none."""
    array = F.concat(F.lit("["), "_k", F.lit("]"))
    string = F.when(F.json_array_length(array) == 1, F.get_json_object(array, "$[0]"))
    text = F.when(F.startswith("_k", F.lit('"')), string).otherwise(F.col("_k"))
    return F.when(F.is_valid_utf8("_k"), text)


def _scalar(column: Column) -> Expression:
    """A key that is no object, null where it says none."""
    return _content().try_cast(str(column.type))


def _bad_scalar(column: Column) -> Expression:
    """Whether a key that is no object is none of its type."""
    kind, value = str(column.type), F.col("_ks")
    bad = value.isNull()
    if kind == "date" or kind in TIMES:
        bad |= ~_has_a_year(value) | F.coalesce(_misread(kind, _content()), F.lit(False))
    return bad


def _says(what: str, columns: tuple[Column, ...]) -> Expression:
    declared = ", ".join(f"{column.name} {column.type}" for column in columns)
    return F.lit(f"{what} ({declared})")


def encode_key(rows: DataFrame, key: tuple[str, ...]) -> Expression:
    """A row's key as JSON text; null where every column of it is."""
    if len(key) > 1 or rows.schema[key[0]].dataType.typeName() == "binary":  # a bare scalar is read as text
        return F.when(F.greatest(*(F.col(quoted(name)).isNotNull() for name in key), F.lit(False)), _encoded(key))
    array = F.to_json(F.array(F.col(quoted(key[0]))), WRITING)
    return F.when(F.col(quoted(key[0])).isNotNull(), F.substring(array, F.lit(2), F.length(array) - 2))


def encode_value(columns: tuple[str, ...]) -> Expression:
    """A row's value as JSON text."""
    return _encoded(columns) if columns else F.lit("{}")


def _encoded(columns: Iterable[str]) -> Expression:
    return F.to_json(F.struct(*(F.col(quoted(name)).alias(published_name(name)) for name in columns)), WRITING)
