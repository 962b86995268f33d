"""Protobuf messages to columns: what runs in the Python workers of the engine.

Its functions are sent to the engine by value, since Tidetable need not be installed there. So this module imports the
standard library alone; the functions import pyarrow and protobuf where they run.

A batch is read column by column. The fields of a nested message are read as columns too, of the messages of all rows.
"""

from __future__ import annotations

import json
from itertools import accumulate, chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    Fail = Callable[[int, str], None]
    Read = Callable[[list[Any], Sequence[int], Fail], Any]
    """The values of a field, with the number of the row of each, to an Arrow array. A value may be None."""

Kind = tuple[Any, ...]
"""A declared type: its name, and what is inside: ("array", of), ("map", key, value), ("struct", ((name, kind), ...)).
Other types are only a name, such as ("bigint",)."""

MAGIC_ID, MAGIC_GUID = 0, 1  # the first byte of a record with a schema id, with a GUID
ID_HEADER, GUID_HEADER = 5, 17  # bytes before the message indexes
FIRST_TAG = 8  # the tag of field 1; a message never begins with a smaller byte
LONGEST = 5  # bytes of an index
FIRST = (0,)  # the index of the first message
DEEPEST = 100  # messages inside each other, as Protobuf allows

VARINT, LENGTH = 0, 2  # wire types of a number, and of an entry of a map

MAX_LONG = 2**63 - 1
FIRST_SECOND, LAST_SECOND, BILLION = -62_135_596_800, 253_402_300_799, 1_000_000_000  # the years 1 to 9999

EXACT = 2**53  # integers below it are exact as a double

TIMESTAMP = "google.protobuf.Timestamp"
JSON = ("google.protobuf.Struct", "google.protobuf.Value", "google.protobuf.ListValue")


class _Broken(ValueError):
    """A record does not decode."""


def reader(
    part: str, name: str, files: tuple[bytes, ...], index: tuple[int, ...], columns: tuple[tuple[str, Kind], ...]
) -> Callable[[Iterable[Any]], Iterable[Any]]:
    """What reads Arrow batches with a column `_key` or `_value`, and adds `_<part>_row` and `_<part>_error`.

    Args:
        part: key or value.
        name: the full name of the message.
        files: FileDescriptorProtos, each after those that it imports.
        index: the place of the message in its file.
        columns: the declared columns, which are fields of the message.
    """

    def read(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa  # type: ignore[import-untyped]  # it has no types
        from google.protobuf import descriptor_pool, message_factory
        from google.protobuf.message import DecodeError

        pool = descriptor_pool.DescriptorPool()
        for file in files:
            pool.AddSerializedFile(file)
        descriptor = pool.FindMessageTypeByName(name)
        message = message_factory.GetMessageClass(descriptor)
        struct = _struct(part, descriptor, columns, "")
        may_lack = _has_required(descriptor, set())
        empty = message()

        for batch in batches:
            raw = batch.column(batch.schema.get_field_index(f"_{part}")).to_pylist()
            errors: list[str | None] = [None] * len(raw)

            def fail(row: int, why: str, errors: list[str | None] = errors) -> None:
                errors[row] = errors[row] or why

            messages = []
            for row, one in enumerate(raw):
                found = empty
                if one is not None:
                    try:
                        found = message.FromString(content(part, one, name, index))
                        if may_lack and not found.IsInitialized():
                            raise _Broken(f"the {part} lacks a required field of {name}")
                    except _Broken as error:
                        found = empty
                        fail(row, str(error))
                    except DecodeError:
                        fail(row, f"the {part} does not decode as the Protobuf message {name}")
                messages.append(found)
            values = [None if one is None else found for one, found in zip(raw, messages, strict=True)]
            rows = struct(values, range(len(raw)), fail)
            new = pa.field(f"_{part}_row", rows.type), pa.field(f"_{part}_error", pa.string())
            schema = pa.schema([*batch.schema, *new])  # Spark compares whether columns may be null
            yield pa.RecordBatch.from_arrays([*batch.columns, rows, pa.array(errors, new[1].type)], schema=schema)

    return read


def content(part: str, raw: bytes, name: str, index: tuple[int, ...]) -> bytes:
    """The message of a record: without the framing of a registry, if it has one.

    A byte 0 and a schema id of four bytes, or a byte 1 and a GUID of 16 bytes, are before the message indexes. No
    message begins with either byte: they would be the tag of a field 0.

    Raises:
        _Broken: the framing has another form, or names another message.
    """
    if not raw or raw[0] >= FIRST_TAG:
        return raw
    if index == FIRST and raw[0] == MAGIC_ID and raw[ID_HEADER : ID_HEADER + 1] == b"\0":  # by far most records
        return raw[ID_HEADER + 1 :]
    header = {MAGIC_ID: ID_HEADER, MAGIC_GUID: GUID_HEADER}.get(raw[0])
    found, at = (None, 0) if header is None else _indexes(raw, header)
    if found is None:
        raise _Broken(
            f"the {part} is neither a Protobuf message nor framed: a byte 0, a schema id of four bytes and message "
            f"indexes must be before the message"
        )
    if found != index:
        raise _Broken(f"the {part} is message {list(found)} of its schema, and {name} is message {list(index)}")
    return raw[at:]


def _indexes(raw: bytes, at: int) -> tuple[tuple[int, ...] | None, int]:
    """The message indexes at a place, and the place after them: None if there are none.

    They are zigzag numbers, after their count; a count of 0 stands for the first message.
    """
    count, at = _zigzag(raw, at)
    if count is None or not 0 <= count <= DEEPEST:
        return None, at
    found = []
    for _ in range(count):
        number, at = _zigzag(raw, at)
        if number is None or number < 0:
            return None, at
        found.append(number)
    return tuple(found) or FIRST, at


def _zigzag(raw: bytes, at: int) -> tuple[int | None, int]:
    number = 0
    for shift in range(LONGEST):
        if at >= len(raw):
            return None, at
        number |= (raw[at] & 0x7F) << 7 * shift
        at += 1
        if raw[at - 1] < 0x80:
            return (number >> 1) ^ -(number & 1), at
    return None, at


def _struct(part: str, descriptor: Any, columns: tuple[tuple[str, Kind], ...], path: str) -> Read:
    """What reads messages as a struct of some of their fields."""
    import pyarrow as pa
    from google.protobuf import message_factory

    named = descriptor.fields_by_name
    reads = [(name, _field(part, named[name], kind, f"{path}{name}")) for name, kind in columns]
    whole = _whole([name for name, _ in columns])
    empty = message_factory.GetMessageClass(descriptor)()

    def read(values: list[Any], rows: Sequence[int], fail: Fail) -> Any:
        absent = [value is None for value in values]
        messages = [empty if value is None else value for value in values]
        for row, message in zip(rows, messages, strict=True):
            try:
                whole(message)
            except _Broken as error:
                fail(row, f"the {part}'s {path}{error}")
        arrays = [read_field(messages, rows, fail) for _, read_field in reads]
        fields = [pa.field(name, array.type) for (name, _), array in zip(reads, arrays, strict=True)]
        return pa.StructArray.from_arrays(arrays, fields=fields, mask=pa.array(absent, pa.bool_()))

    return read


def _whole(declared: Sequence[str]) -> Callable[[Any], Any]:
    """What returns a message, or raises `_Broken` if Protobuf did not read a field that the message has.

    A field that has another wire type is among the unknown fields. So is a number that a closed enum (proto2) does not
    have, and an entry of a map with one; that is no error if the field is not declared.
    """
    from google.protobuf.unknown_fields import UnknownFieldSet

    def whole(message: Any) -> Any:
        unknown = UnknownFieldSet(message)
        if len(unknown):
            known = message.DESCRIPTOR.fields_by_number
            for one in unknown:
                field = known.get(one.field_number)
                if field is None:
                    continue
                enum, wire_type = _enum(field)
                if enum is None or one.wire_type != wire_type or not getattr(enum, "is_closed", True):
                    raise _Broken(f"{field.name} was written as another type than {message.DESCRIPTOR.full_name} has")
                if field.name in declared:
                    raise _Broken(f"{field.name} has a number that the enum {enum.full_name} does not have")
        return message

    return whole


def _enum(field: Any) -> tuple[Any, int]:
    """The enum of a field or of a map's values, None if there is none; and the wire type of its numbers or entries."""
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return field.message_type.fields_by_name["value"].enum_type, LENGTH
    return field.enum_type, VARINT  # those of a list too, which Protobuf unpacks


def _field(part: str, field: Any, kind: Kind, path: str) -> Read:
    """What reads a field of messages, none of which is None."""
    import pyarrow as pa

    get, name = attrgetter(field.name), field.name
    if kind[0] == "map":
        entry = field.message_type.fields_by_name
        read_key = _value(part, entry["key"], kind[1], f"{path}.key")
        read_value = _value(part, entry["value"], kind[2], f"{path}.value")

        def maps(messages: list[Any], rows: Sequence[int], fail: Fail) -> Any:
            # In the order of keys: Protobuf has none. A text of proto2 that is no UTF-8 is bytes.
            parts = [sorted(get(message), key=lambda key: (type(key) is bytes, key)) for message in messages]
            flat, of, offsets = _flat(parts, rows)
            keys = read_key(flat, of, fail)
            if keys.null_count:  # a map has no key that is null, and Protobuf finds no value by a key of bytes
                failed = {row for row, key in zip(of, keys, strict=True) if not key.is_valid}
                parts = [[] if row in failed else part for row, part in zip(rows, parts, strict=True)]
                flat, of, offsets = _flat(parts, rows)
                keys = read_key(flat, of, fail)
            found = [get(message)[key] for message, part in zip(messages, parts, strict=True) for key in part]
            return pa.MapArray.from_arrays(offsets, keys, read_value(found, of, fail))

        return maps
    read = _value(part, field, kind[1] if kind[0] == "array" else kind, path)
    if kind[0] == "array":

        def lists(messages: list[Any], rows: Sequence[int], fail: Fail) -> Any:
            flat, of, offsets = _flat(list(map(get, messages)), rows)
            return pa.ListArray.from_arrays(offsets, read(flat, of, fail))

        return lists
    if field.has_presence and not field.has_default_value:

        def present(messages: list[Any], rows: Sequence[int], fail: Fail) -> Any:
            return read([get(message) if message.HasField(name) else None for message in messages], rows, fail)

        return present
    return lambda messages, rows, fail: read(list(map(get, messages)), rows, fail)


def _flat(parts: list[Any], rows: Sequence[int]) -> tuple[list[Any], list[int], Any]:
    """The elements of lists, the row of each, and where each list begins and ends."""
    import pyarrow as pa

    of = [row for row, part in zip(rows, parts, strict=True) for _ in range(len(part))]
    offsets = pa.array(accumulate(map(len, parts), initial=0), pa.int32())
    return list(chain.from_iterable(parts)), of, offsets


def _value(part: str, field: Any, kind: Kind, path: str) -> Read:
    """What reads values of a field: those of all messages, or the elements of lists and maps."""
    import pyarrow as pa

    of = None if field.message_type is None else field.message_type.full_name
    if kind[0] == "struct":
        return _struct(part, field.message_type, kind[1], f"{path}.")
    arrow = {
        **{"int": pa.int32(), "bigint": pa.int64(), "decimal(20,0)": pa.decimal128(20, 0), "float": pa.float32()},
        **{"double": pa.float64(), "boolean": pa.bool_(), "string": pa.string(), "binary": pa.binary()},
        "timestamp": pa.timestamp("us", "UTC"),
    }[kind[0]]
    wrong = f"the {part}'s {path} does not fit {kind[0]}: "
    whole = _whole([])  # no message of Google's has closed enums

    def plain(values: list[Any], _: Sequence[int], __: Fail) -> Any:
        return pa.array(values, arrow)

    def checked(convert: Callable[[Any], Any], then: Read = plain) -> Read:
        def read(values: list[Any], rows: Sequence[int], fail: Fail) -> Any:
            out = []
            for row, value in zip(rows, values, strict=True):
                try:
                    out.append(None if value is None else convert(value))
                except _Broken as error:
                    out.append(None)
                    fail(row, f"{wrong}{error}")
            return then(out, rows, fail)

        return read

    if of == TIMESTAMP:
        return checked(lambda value: _micros(whole(value)))
    if of in JSON:
        return checked(lambda value: _json(value, whole))
    if of is not None:  # a wrapper
        inside = _value(part, field.message_type.fields_by_name["value"], kind, path)
        return checked(lambda value: whole(value).value, inside)
    if field.enum_type is not None and kind[0] == "string":
        names = {number: one.name for number, one in field.enum_type.values_by_number.items()}
        return lambda values, _, __: pa.array([v if v is None else names.get(v) or str(v) for v in values], arrow)
    if kind[0] == "string":
        slow = checked(_utf8)
        # proto2 does not check texts: one that is no UTF-8 is bytes.
        return lambda values, rows, fail: (
            slow(values, rows, fail) if bytes in set(map(type, values)) else plain(values, rows, fail)
        )
    if kind[0] == "bigint":
        return checked(_long) if field.cpp_type == field.CPPTYPE_UINT64 else plain
    return plain


def _micros(value: Any) -> int:
    seconds, nanos = value.seconds, value.nanos
    if not (FIRST_SECOND <= seconds <= LAST_SECOND and 0 <= nanos < BILLION):
        raise _Broken("it is outside of the years 1 to 9999")
    if nanos % 1000:
        raise _Broken("it is finer than microseconds")
    return int(seconds * 1_000_000 + nanos // 1000)


def _json(value: Any, whole: Callable[[Any], Any]) -> str:
    """The JSON text of a Struct, Value or ListValue. Versions of protobuf differ in how they would write numbers."""
    plain = _plain(value, whole)
    try:
        return json.dumps(plain, ensure_ascii=False, separators=(",", ":"), sort_keys=True, allow_nan=False)
    except ValueError as error:
        raise _Broken("JSON has no such value") from error


def _plain(value: Any, whole: Callable[[Any], Any]) -> Any:
    name = whole(value).DESCRIPTOR.name
    if name == "Struct":
        return {key: _plain(one, whole) for key, one in value.fields.items()}
    if name == "ListValue":
        return [_plain(one, whole) for one in value.values]
    held = value.WhichOneof("kind")
    if held is None or held == "null_value":
        return None
    found = getattr(value, held)
    if held == "number_value":
        return int(found) if abs(found) < EXACT and found == int(found) else found
    return found if held in ("string_value", "bool_value") else _plain(found, whole)


def _utf8(value: Any) -> str:
    if not isinstance(value, str):
        raise _Broken("it is no UTF-8")
    return value


def _long(value: int) -> int:
    if value > MAX_LONG:
        raise _Broken("it is too great")
    return value


def _has_required(descriptor: Any, seen: set[str]) -> bool:
    """Whether a message, or one inside it, has required fields (proto2)."""
    if descriptor.full_name in seen:
        return False
    seen.add(descriptor.full_name)
    inside = [field.message_type for field in descriptor.fields if field.message_type is not None]
    required = any(_has_label(field, "required") for field in descriptor.fields)
    return required or any(_has_required(one, seen) for one in inside)


def _has_label(field: Any, label: str) -> bool:
    """Whether a field is required, or repeated."""
    found = getattr(field, f"is_{label}", None)  # older versions have `label` only
    return bool(field.label == getattr(field, f"LABEL_{label.upper()}") if found is None else found)
