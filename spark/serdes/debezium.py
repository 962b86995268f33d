"""Events of a Debezium connector to columns: the row, or its deletion, and what the event leaves out.

An event has the row after the change (`after`), what changed it (`op`), and where and when (`source`). Nothing but the
key is read from `before`: with the default replica identity it has defaults in all other columns.

A JSON text is parsed twice: as an envelope, of which `after` and `source` are texts, and `after` by the serde of plain
JSON. Columns whose JSON depends on the connector's settings (times, decimals) are read as text, and converted here: by
the name that the schema gives them, or, without schemas, only where the text has one meaning. `debezium_avro` decodes
Avro.
"""

from __future__ import annotations

import base64
import hashlib
import re
import uuid
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from spark.serdes import debezium_avro, json
from spark.serdes.schemas import NO_SCHEMAS, NONE
from spark.topology.columns import Column
from spark.topology.envelope import may_be_unavailable
from spark.topology.sql.ddl import quoted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame

    from spark.serdes.part import Part
    from spark.serdes.schemas import Schemas
    from spark.topology.consumed import Consumed
    from spark.topology.envelope import Envelope

    Text = tuple[Expression, Expression]
    """The text of a column, and what its schema says of it."""

OLD_KEY, NEW_KEY = "__debezium.oldkey", "__debezium.newkey"
"""Headers of the two events that tell a change of a key."""

ENVELOPE = (
    "op string, after string, source string, schema string, payload string, status string, id string, ddl string, "
    "tableChanges string, message string, ts_ms string"
)
FLAT = "__deleted string, __op string, __source_ts_ms string, schema string, payload string, before string, op string"
PARAMETERS = "struct<scale: string>"
ROW = f"array<struct<field: string, name: string, type: string, parameters: {PARAMETERS}>>"
"""The fields of a row in the schema that Kafka Connect writes, as far as they are read here."""
ROWS = ROW.replace(PARAMETERS, f"{PARAMETERS}, fields: {ROW}")
"""The fields of an envelope."""

CONVERTED = re.compile(r"date|timestamp|timestamp_ntz|decimal\((?P<precision>\d+),(?P<scale>\d+)\)")
"""The types of the columns that are converted here."""
CONNECT, DEBEZIUM = "org.apache.kafka.connect.data", "io.debezium.time"
DATES: Final = (f"{DEBEZIUM}.Date", f"{CONNECT}.Date")
TIMES: Final[Mapping[str, str]] = {
    f"{DEBEZIUM}.Timestamp": "milliseconds",
    f"{CONNECT}.Timestamp": "milliseconds",
    f"{DEBEZIUM}.MicroTimestamp": "microseconds",
    f"{DEBEZIUM}.NanoTimestamp": "nanoseconds",
}
"""By name in the schema, the unit of a time that is a number."""
DECIMAL, VARIABLE = f"{CONNECT}.Decimal", "io.debezium.data.VariableScaleDecimal"
TRAILING = r"\}\s*[^\s,}\]]"
"""A closing brace, and what may be behind the end of the value."""
INTEGER = r"^-?[0-9]+$"
NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?$"
BASE64 = r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
DAY = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
ISO_DATE = rf"^{DAY}Z?$"
ISO_TIME = rf"^{DAY}[T ][0-9]{{2}}:[0-9]{{2}}(:[0-9]{{2}}(\.[0-9]{{1,6}}0*)?)?"
ZONE = r"(Z|[+-][0-9]{2}(:?[0-9]{2})?)?$"
WIDTH = 34  # hexadecimal digits: 17 bytes, which the greatest number of 38 digits needs with its sign
LAST_MICROS = 253_402_300_800_000_000
"""The microseconds from 1970 to the year 10000, the first that no column can hold."""

OPERATIONS = ("c", "u", "r", "d", "t", "m")
NO_ROWS = "and the topic that holds it has no rows of a table: declare the topic of the table alone"


def decode(
    records: DataFrame, consumed: Consumed, envelope: Envelope, schemas: Mapping[Part, Schemas] = NONE
) -> DataFrame:
    """Decode records of a Debezium topic.

    Args:
        records: binary `_key` and `_value`, `_headers` (array of structs of key and value), `_timestamp`, and other
            columns whose names begin with an underscore.
        consumed: the declared columns.
        envelope: the form of the topic.
        schemas: by part, the schemas of a registry that the records name.

    Returns:
        The columns of `records`; `_key_row`, `_key_error`, `_value_row`, `_value_error` as of a serde, where an event
        that deletes has no value; `_at` (timestamp), the time of the change, null for a tombstone; and `CAPTURED`. One
        row for every record.
    """
    columns = consumed.value + consumed.again
    if consumed.format == "avro":
        parsed = _from_avro(records, consumed, envelope, schemas)
    else:
        opened = _opened(_with_key(records, consumed, envelope), envelope)
        parsed = _parsed(opened, "value", "_after", columns, envelope)
    with_headers = parsed.select("*", _header(OLD_KEY).alias("_old"), _header(NEW_KEY).alias("_new"))
    for header in ("_old", "_new"):
        with_headers = _with_digits(with_headers, _key_texts(header, consumed, envelope))
    with_keys = with_headers.select(
        "*",
        _other_key("_old", consumed, envelope).alias("_old_key"),
        _other_key("_new", consumed, envelope).alias("_new_key"),
    )
    changes_key = F.col("_old_key").isNotNull() | F.col("_new_key").isNotNull()
    long = [column for column in consumed.value if may_be_unavailable(column)]
    missing = {column.name: _is_missing(column, envelope.placeholder) for column in long}
    names = [F.when(is_missing, F.lit(name)) for name, is_missing in missing.items()]
    unavailable = F.array_compact(F.array(*names)) if names else F.lit(None).cast("array<string>")
    row = F.struct(
        *(
            (F.when(missing[one.name], F.lit(None)).otherwise(field) if one.name in missing else field).alias(one.name)
            for one, field in ((one, _field("value", one)) for one in columns)
        )
    )
    is_row = F.col("_value_row").isNotNull()
    return with_keys.withColumn("_missing", F.when(is_row, unavailable)).select(
        *records.columns,
        "_key_row",
        "_key_error",
        F.when(is_row, row).alias("_value_row"),
        F.coalesce("_event_error", "_value_error").alias("_value_error"),
        "_at",
        F.when(F.size("_missing") > 0, F.col("_missing")).alias("_unavailable"),
        "_old_key",
        "_new_key",
        F.when(changes_key, F.col("_event")).alias("_change"),
        "_truncated",
    )


def decode_key(records: DataFrame, consumed: Consumed, envelope: Envelope, schemas: Schemas) -> DataFrame:
    """Decode the keys of records: adds `_key_row` and `_key_error`, as a serde does, and columns of its own."""
    if consumed.format == "avro":
        return debezium_avro.decode(records, "key", consumed.key, schemas, envelope)
    return _with_key(records, consumed, envelope)


def _from_avro(
    records: DataFrame, consumed: Consumed, envelope: Envelope, schemas: Mapping[Part, Schemas]
) -> DataFrame:
    """Records with key and value decoded from Avro: with the columns that `_opened` and `_parsed` make of JSON."""
    columns = consumed.value + consumed.again
    with_key = debezium_avro.decode(records, "key", consumed.key, schemas["key"], envelope)
    decoded = debezium_avro.decode(with_key, "value", columns, schemas["value"], envelope)
    is_read, op, millis = F.col("_value_beside").isNotNull(), F.col("_value_beside.op"), F.col("_value_beside.millis")
    if envelope.flattened:
        error, at, event = F.lit(None).cast("string"), _flat_at(millis), millis
    else:
        no_op = F.when(op.isNull(), F.lit("the event has no op"))
        error = F.coalesce(no_op, _refused(op, F.col("_value_row").isNotNull(), envelope))
        at, event = _at(millis), F.col("_value_beside.change")
    return decoded.select(
        "*",
        F.when(is_read & F.col("_value_error").isNull(), error).alias("_event_error"),
        F.when((op == "t") & F.lit(envelope.truncate), F.lit(True)).alias("_truncated"),
        F.when(is_read, at).alias("_at"),
        event.alias("_event"),
    )


def _with_key(records: DataFrame, consumed: Consumed, envelope: Envelope) -> DataFrame:
    """Records with `_key_row`, `_key_error`, and `_key_schema`, the fields of the key's schema."""
    text = F.col("_key").cast("string")
    if envelope.schemas:
        opened = records.withColumn("_both", F.from_json(text, "schema string, payload string"))
        with_text = opened.withColumns({"_key_json": F.col("_both.payload"), "_key_schema": _fields("_both.schema")})
    else:
        with_text = records.withColumns({"_key_json": text, "_key_schema": F.lit(None).cast(ROW)})
    decoded = _parsed(with_text, "key", "_key_json", consumed.key, envelope)
    error = F.col("_key_error")
    if envelope.schemas:
        bare = text.isNotNull() & F.col("_both.payload").isNull()
        what = 'the key has no payload beside a schema: write format="json" if key.converter.schemas.enable is false'
        error = F.when(bare, F.lit(what)).otherwise(error)
    return decoded.withColumn("_key_error", error)


def _header(name: str) -> Expression:
    """A header that names another key, and the two parts of its text if it has a schema.

    Null if there is none, or no value: a tombstone repeats the headers of the deletion before it.
    """
    found = F.filter("_headers", lambda one: one["key"] == name)
    text = F.when(F.col("_value").isNotNull(), F.get(found, 0)["value"].cast("string"))
    # Kafka Connect writes headers by a converter of their own, with or without a schema.
    both = F.from_json(text, "schema string, payload string")
    return F.when(
        text.isNotNull(), F.struct(text.alias("text"), both["schema"].alias("schema"), both["payload"].alias("payload"))
    )


def _key_texts(header: str, consumed: Consumed, envelope: Envelope) -> dict[str, Text]:
    """The text and the semantics of the key's decimals in a header, if they have schemas."""
    parsed = _key_in(header, consumed)
    texts = {}
    for column in consumed.key:
        if str(column.type).startswith("decimal") and envelope.schemas:
            texts[f"{header}_{column.name}"] = (parsed[column.name], _semantics_in(header, column, envelope))
    return texts


def _key_in(header: str, consumed: Consumed) -> Expression:
    """The key in a header as a struct; columns that are converted are texts."""
    schema, payload = F.col(f"{header}.schema"), F.col(f"{header}.payload")
    text = F.when(schema.isNotNull() & payload.isNotNull(), payload).otherwise(F.col(f"{header}.text"))
    types = {one.name: "string" if _is_converted(one) else str(one.type) for one in consumed.key}
    return F.from_json(text, ", ".join(f"{quoted(name)} {kind}" for name, kind in types.items()), json.OPTIONS)


def _semantics_in(header: str, column: Column, envelope: Envelope) -> Expression:
    """What the schema in a header, or else that of the record's key, says of a column."""
    own = _semantics("key", column, envelope)
    return F.coalesce(_named(_fields(f"{header}.schema"), column.name), own)


def _other_key(header: str, consumed: Consumed, envelope: Envelope) -> Expression:
    """The key in a header, as a struct; null if there is none, or if it lacks a column."""
    parsed = _key_in(header, consumed)
    fields = []
    for column in consumed.key:
        value = parsed[column.name]
        if _is_converted(column):
            semantics = _semantics_in(header, column, envelope) if envelope.schemas else None
            value, _ = _converted(value, column, semantics, envelope, f"{header}_{column.name}")
        fields.append(value.alias(column.name))
    whole = F.array_position(F.array(*(field.isNull() for field in fields)), F.lit(True)) == 0
    return F.when(whole, F.struct(*fields))


def _opened(records: DataFrame, envelope: Envelope) -> DataFrame:
    """Records with what an envelope has.

    `_after` (JSON text of the row; null if the event deletes it), `_value_schema` (the fields of its schema),
    `_event_error`, `_truncated`, `_at`, and `_event` (bigint), which identifies the change in the database.
    """
    with_text = records.withColumn("_json", _text(F.col("_value").cast("string")))
    kind = f"{FLAT if envelope.flattened else ENVELOPE}, {json.CORRUPT} string"
    if envelope.schemas:
        both = f"schema string, payload string, op string, {json.CORRUPT} string"
        outer = with_text.withColumn("_outer", F.from_json("_json", both, json.OPTIONS))
        after = _named(_fields("_outer.schema", ROWS), "after")["fields"]
        schema = _fields("_outer.schema") if envelope.flattened else after
        row, parsed = F.col("_outer.payload"), outer.withColumn("_value_schema", schema)
        broken = F.col(f"_outer.{json.CORRUPT}").isNotNull()
        bare = row.isNull() & F.col("_outer.schema").isNull()
        what = 'the value has no schema: write format="json" if value.converter.schemas.enable is false'
    else:
        row, parsed = F.col("_json"), with_text.withColumn("_value_schema", F.lit(None).cast(ROW))
        broken = F.col(f"_whole.{json.CORRUPT}").isNotNull()
        bare = F.col("_whole.schema").isNotNull() & F.col("_whole.payload").isNotNull() & F.col("_whole.op").isNull()
        what = 'the value has a schema beside its payload: write format="json_with_schemas"'
    whole = parsed.withColumn("_whole", F.from_json(row, kind, json.OPTIONS))
    parts = _flat_parts(row) if envelope.flattened else _parts(envelope)
    text = F.col("_json")
    is_one = F.when(text.rlike(TRAILING), json.is_one_value(text)).otherwise(F.lit(True))
    not_json = broken | ~F.startswith(text, F.lit("{")) | ~F.is_valid_utf8(text) | ~is_one
    # The converter writes a tombstone as a schema with the payload null.
    has_value = row.isNotNull() if not envelope.schemas else text.isNotNull() & (row.isNotNull() | bare)
    error = F.coalesce(
        F.when(not_json, F.lit("the value does not decode as JSON")), F.when(bare, F.lit(what)), parts["_event_error"]
    )
    return whole.select(
        "*",
        F.when(~F.coalesce(parts["_deletes"], F.lit(False)), parts["_after"]).alias("_after"),
        F.when(text.isNotNull() & (not_json | has_value), error).alias("_event_error"),
        parts["_truncated"].alias("_truncated"),
        F.when(has_value, parts["_at"]).alias("_at"),
        parts["_event"].alias("_event"),
    )


def _fields(schema: str, kind: str = ROW) -> Expression:
    """The fields in a schema that is JSON text."""
    return F.from_json(schema, f"fields {kind}")["fields"]


def _text(text: Expression) -> Expression:
    """JSON text without surrounding blanks; null if it is the JSON null."""
    trimmed = F.btrim(text, F.lit(" \t\r\n"))
    return F.when(json.is_plain(text), text).otherwise(F.when(trimmed != "null", trimmed))


def _parts(envelope: Envelope) -> dict[str, Expression]:
    """What an envelope has, from `_whole`."""
    op, source = F.col("_whole.op"), F.col("_whole.source")
    no_op = (
        F.when(
            F.col("_whole.status").isin("BEGIN", "END") & F.col("_whole.id").isNotNull(),
            F.lit(f"this tells where a transaction begins or ends, {NO_ROWS}"),
        )
        .when(
            F.col("_whole.ddl").isNotNull() | F.col("_whole.tableChanges").isNotNull(),
            F.lit(f"this tells of a change of a schema, {NO_ROWS}"),
        )
        .when(
            F.col("_whole.ts_ms").isNotNull() & source.isNull() & F.col("_whole.after").isNull(),
            F.lit(f"this is a heartbeat, {NO_ROWS}"),
        )
        .otherwise(
            F.lit(
                "the value is no envelope of Debezium: it has no op. Write flattened=True if the transformation "
                "ExtractNewRecordState has removed the envelope"
            )
        )
    )
    error = F.when(op.isNull(), no_op).otherwise(_refused(op, F.col("_whole.after").isNotNull(), envelope))
    millis = F.from_json(source, "ts_ms bigint")["ts_ms"]
    return {
        "_after": F.col("_whole.after"),
        "_event_error": error,
        "_deletes": op.isin("d", "t"),
        "_truncated": F.when((op == "t") & F.lit(envelope.truncate), F.lit(True)),
        "_at": _at(millis),
        "_event": F.when(source.isNotNull(), F.xxhash64(source)),
    }


def _refused(op: Expression, has_after: Expression, envelope: Envelope) -> Expression:
    """Why an event with an op is no change of a row; null if it is one."""
    refused = "TRUNCATE (op t) would leave rows that the database has not: "
    if envelope.truncate:
        many = F.col("_partition") > 0
        what = f"{refused}truncate=True needs a topic of one partition, and this is another one"
        truncate = F.when(many, F.lit(what))
    else:
        what = (
            f"{refused}write truncate=True, which needs a topic of one partition, and replay the quarantine; or let "
            f"the connector skip it (skipped.operations=t)"
        )
        truncate = F.lit(what)
    return (
        F.when(op == "t", truncate)
        .when(op == "m", F.lit(f"this is a message of pg_logical_emit_message, {NO_ROWS}"))
        .when(~op.isin(*OPERATIONS), F.concat(F.lit("the event has an unknown op: "), op))
        .when((op != "d") & ~has_after, F.concat(F.lit("the event has no after, and op is "), op))
    )


def _at(millis: Expression) -> Expression:
    """The time of a change from the milliseconds since 1970; null if no column can hold it."""
    return F.timestamp_millis(F.when(F.abs(millis) < LAST_MICROS // 1000, millis))


def _flat_at(millis: Expression) -> Expression:
    """The time of a flattened record: that of the change, or else its own."""
    return F.coalesce(_at(millis), F.when(F.unix_millis("_timestamp") >= 0, F.col("_timestamp")))


def _flat_parts(row: Expression) -> dict[str, Expression]:
    """What a flattened record has, from `_whole`; `row` is its text."""
    millis = F.col("_whole.__source_ts_ms").try_cast("bigint")
    enveloped = F.col("_whole.op").isNotNull() & F.col("_whole.before").isNotNull()
    what = "the value is an envelope of Debezium: leave out flattened=True"
    return {
        "_after": row,
        "_event_error": F.when(enveloped, F.lit(what)),
        "_deletes": (F.lower("_whole.__deleted") == "true") | (F.col("_whole.__op") == "d"),
        "_truncated": F.lit(None).cast("boolean"),
        "_at": _flat_at(millis),
        "_event": millis,
    }


# A row.


def _parsed(records: DataFrame, part: Part, text: str, columns: tuple[Column, ...], envelope: Envelope) -> DataFrame:
    """Records with a part decoded from a column of JSON text: `_<part>_row` and `_<part>_error`.

    `_<part>_schema` has the fields of the part's schema.
    """
    raw, row, failed = f"_{part}", f"_{part}_row", f"_{part}_error"
    as_text = tuple(Column(one.name, "string") if _is_converted(one) else one for one in columns)
    swapped = records.withColumns({"_raw": F.col(raw), raw: F.col(text)})
    decoded = json.decode(swapped, part, as_text, NO_SCHEMAS).withColumn(raw, F.col("_raw")).drop("_raw")
    if as_text == columns:
        return decoded
    semantics = {one.name: _semantics(part, one, envelope) if envelope.schemas else None for one in columns}
    texts = {
        f"_{part}_{one.name}": (_field(part, one), said)
        for one in columns
        if str(one.type).startswith("decimal") and (said := semantics[one.name]) is not None
    }
    decoded = _with_digits(decoded, texts)
    fields, errors = [], []
    for column in columns:
        value, error = _field(part, column), None
        if _is_converted(column):
            value, error = _converted(value, column, semantics[column.name], envelope, f"_{part}_{column.name}")
            errors.append(F.when(F.col(row).isNotNull(), error))
        fields.append(value.alias(column.name))
    whole = F.when(F.col(row).isNotNull(), F.struct(*fields))
    with_row = decoded.withColumns({row: whole, failed: F.coalesce(F.col(failed), *errors)})
    return with_row.drop(*(f"{name}_digits" for name in texts))


def _is_converted(column: Column) -> bool:
    return CONVERTED.fullmatch(str(column.type)) is not None


def _semantics(part: Part, column: Column, envelope: Envelope) -> Expression:
    """What the schema says of a column: a struct of name, type and parameters."""
    assert envelope.schemas, "there is a schema"
    return _named(F.col(f"_{part}_schema"), column.name)


def _named(fields: Expression, name: str) -> Expression:
    """The field with a name; null if there is none."""
    return F.get(F.filter(fields, lambda one: one["field"] == name), 0)


def _converted(
    text: Expression, column: Column, schema: Expression | None, envelope: Envelope, name: str
) -> tuple[Expression, Expression]:
    """A column's value from its text, and its error; both are null if the text is. `name` is as in `_with_digits`."""
    kind = str(column.type)
    if kind == "date":
        value, hint = _date(text, schema)
    elif kind.startswith("decimal"):
        value, hint = _decimal(text, kind, None if schema is None else name)
    else:
        value, hint = _time(text, kind, schema, envelope)
    said = F.lit(f"{column.name} is declared {kind}, and the event has ")
    what = F.concat(said, F.substring(text, 1, 40), F.coalesce(hint, F.lit("")))
    return value, F.when(text.isNotNull() & value.isNull(), what)


def _date(text: Expression, schema: Expression | None) -> tuple[Expression, Expression]:
    days = text.try_cast("int")
    is_number = text.rlike(INTEGER)
    counted = F.when(days.between(-719_162, 2_932_896), F.date_from_unix_date(days))  # the years 1 to 9999
    if schema is not None:
        counted = F.when(schema["name"].isin(*DATES), counted)
    written = F.when(text.rlike(ISO_DATE), F.rtrim(text, F.lit("Z")).try_cast("date"))
    name = F.lit(None).cast("string") if schema is None else schema["name"]
    hint = F.when(is_number & name.isNotNull(), F.concat(F.lit(" of "), name))
    return F.when(is_number, counted).otherwise(F.when(F.year(written).between(1, 9999), written)), hint


def _time(text: Expression, kind: str, schema: Expression | None, envelope: Envelope) -> tuple[Expression, Expression]:
    is_number = text.rlike(INTEGER)
    if schema is None:
        unit = F.lit(envelope.time_unit).cast("string")
        what = (
            ", whose unit JSON without schemas does not say: write time_unit=, or declare a bigint and compute with it"
        )
        hint = F.when(is_number & unit.isNull(), F.lit(what))
    else:
        by_name = [F.when(schema["name"] == name, F.lit(unit_)) for name, unit_ in TIMES.items()]
        unit = F.coalesce(*by_name)
        hint = F.when(is_number, F.concat(F.lit(" of "), F.coalesce(schema["name"], schema["type"])))
    number = text.try_cast("bigint")
    of_nanos = (number.cast("decimal(20,0)") / F.lit(1000).cast("decimal(4,0)")).cast("bigint")
    micros = (
        F.when(unit == "milliseconds", F.try_multiply(number, F.lit(1000)))
        .when(unit == "microseconds", number)
        .when((unit == "nanoseconds") & (number % 1000 == 0), of_nanos)
    )
    counted = F.timestamp_micros(F.when(micros.between(-62_135_596_800_000_000, LAST_MICROS - 1), micros))
    zoned = text.rlike(ISO_TIME + ZONE)
    if kind == "timestamp_ntz":
        zoned = text.rlike(f"{ISO_TIME}Z?$")
        written = F.rtrim(text, F.lit("Z")).try_cast("timestamp_ntz")
    else:
        written = text.try_cast("timestamp")
    iso = F.when(zoned, written)
    return (
        F.when(is_number, counted.cast(kind)).otherwise(F.when(F.year(iso).between(1, 9999), iso)),
        hint,
    )


def _decimal(text: Expression, kind: str, name: str | None) -> tuple[Expression, Expression]:
    if name is not None:
        return _exact(F.col(quoted(f"{name}_digits")), kind), F.lit(None).cast("string")
    what = (
        ", which looks like the bytes of a decimal, whose scale JSON without schemas does not say: set "
        "decimal.handling.mode=string in the connector, or write values with schemas"
    )
    bytes_ = text.rlike(BASE64) & ~text.rlike(NUMBER) & ~text.isin("", "Infinity")
    return _exact(text, kind), F.when(bytes_, F.lit(what))


def _exact(text: Expression, kind: str) -> Expression:
    """A decimal from text; null if the text is no number, or has other digits than zeros beyond the scale."""
    match = CONVERTED.fullmatch(kind)
    assert match is not None, f"{kind} is a decimal"
    value = text.try_cast(kind)
    digits = F.rtrim(F.regexp_extract(text, r"\.([0-9]*)", 1), F.lit("0"))
    # An exponent is written by decimal.handling.mode=double alone.
    exact = F.when(text.rlike("[eE]"), value.cast("double") == text.try_cast("double")).otherwise(
        F.length(digits) <= int(match["scale"])
    )
    return F.when(text.rlike(NUMBER) & exact, value)


def _with_digits(records: DataFrame, texts: Mapping[str, Text]) -> DataFrame:
    """Records with `<name>_digits` for each decimal with a schema: its digits as text, from bytes or as written.

    Bytes are Base64 of an integer (two's complement, the highest byte first) without the scale. Each stage is a column,
    since Spark Connect limits how deep expressions nest.
    """
    if not texts:
        return records
    stages: list[dict[str, Expression]] = [{} for _ in range(4)]
    for name, (text, schema) in texts.items():
        made, hexed, whole, scale = (quoted(f"{name}_{what}") for what in ("text", "hex", "whole", "scale"))
        variable = F.from_json(text, "scale int, value string")
        is_variable = schema["name"] == VARIABLE
        base = F.when(is_variable, variable["value"]).when(schema["name"] == DECIMAL, text)
        stages[0][f"{name}_text"] = text
        stages[0][f"{name}_scale"] = F.when(is_variable, variable["scale"]).when(
            schema["name"] == DECIMAL, schema["parameters"]["scale"].try_cast("int")
        )
        stages[0][f"{name}_hex"] = F.hex(F.unbase64(F.when(base.rlike(BASE64), base)))
        negative = F.substring(hexed, 1, 1) >= "8"
        filled = F.when(negative, F.lpad(hexed, WIDTH, "F")).otherwise(F.lpad(hexed, WIDTH, "0"))
        positive = F.when(negative, F.translate(filled, "0123456789ABCDEF", "FEDCBA9876543210")).otherwise(filled)
        fits = (F.length(hexed) <= WIDTH) & (F.substring(positive, 1, 2) == "00")
        stages[1][f"{name}_positive"] = F.when(fits, positive)
        stages[2][f"{name}_whole"] = _whole(quoted(f"{name}_positive"))
        value = F.when(negative, F.try_subtract(F.lit(-1).cast("decimal(38,0)"), F.col(whole))).otherwise(F.col(whole))
        digits = _placed(value.cast("decimal(38,0)").cast("string"), F.col(scale))
        stages[3][f"{name}_digits"] = F.when(F.col(scale).isNull(), F.col(made)).otherwise(digits)
    for stage in stages:
        records = records.withColumns(stage)
    return records.drop(*(name for stage in stages[:3] for name in stage))


def _whole(positive: str) -> Expression:
    """The decimal of 17 bytes in hexadecimal digits; null if it has more than 38 digits."""
    whole = F.lit(0).cast("decimal(38,0)")
    for first in range(3, WIDTH, 8):  # the first byte is 0
        chunk = F.conv(F.substring(positive, first, 8), 16, 10).cast("decimal(38,0)")
        shifted = F.try_multiply(whole, F.lit(1 << 32).cast("decimal(38,0)")).cast("decimal(38,0)")
        whole = F.try_add(shifted, chunk).cast("decimal(38,0)")
    return whole


def _placed(digits: Expression, scale: Expression) -> Expression:
    """An integer with the decimal point before its last `scale` digits, as text."""
    bare = F.ltrim(digits, F.lit("-"))
    filled = F.lpad(bare, F.greatest(F.length(bare), scale + 1), F.lit("0"))
    whole = F.substring(filled, F.lit(1), F.length(filled) - scale)
    fraction = F.substring(filled, F.length(filled) - scale + 1, scale)
    sign = F.when(F.startswith(digits, F.lit("-")), F.lit("-")).otherwise(F.lit(""))
    return F.when(scale >= 0, F.concat(sign, whole, F.lit("."), fraction))


# Values that an event leaves out.


def _is_missing(column: Column, placeholder: str) -> Expression:
    """True if a value is the placeholder, in the form that it has in the column's type."""
    value, kind = F.col(f"_value_row.{quoted(column.name)}"), str(column.type)
    if kind == "string":
        return value.isin(*_texts(placeholder))
    if kind == "binary":
        return value == F.lit(bytearray(placeholder.encode()))
    if kind == "array<string>":
        named = str(uuid.UUID(bytes=hashlib.md5(placeholder.encode(), usedforsecurity=False).digest(), version=3))
        alone = [*_texts(placeholder), named]  # uuid[] has the UUID that is named by the placeholder
        return (F.size(value) == 1) & F.get(value, 0).isin(*alone)
    if kind == "array<binary>":
        return (F.size(value) == 1) & (F.get(value, 0) == F.lit(bytearray(placeholder.encode())))
    if kind in ("array<smallint>", "array<int>", "array<bigint>", "array<float>", "array<double>"):
        return value == F.array(*(F.lit(one) for one in placeholder.encode())).cast(kind)
    if kind == "array<date>":  # as the days since 1970
        return value == F.array(*(F.date_from_unix_date(F.lit(one)) for one in placeholder.encode()))
    if kind == "map<string,string>":
        return (F.size(value) == 1) & (F.try_element_at(value, F.lit(placeholder)) == placeholder)
    return F.lit(False)


def _texts(placeholder: str) -> tuple[str, ...]:
    """The placeholder as text: of a text column, an hstore, and of bytes by `binary.handling.mode`."""
    raw = placeholder.encode()
    encoded = (base64.b64encode(raw).decode(), base64.urlsafe_b64encode(raw).decode(), raw.hex())
    hstore = f'{{"{placeholder}":"{placeholder}"}}'
    return tuple(dict.fromkeys((placeholder, *encoded, hstore)))


def _field(part: Part, column: Column) -> Expression:
    return F.col(f"_{part}_row.{quoted(column.name)}")
