"""Protobuf descriptors: the messages of a FileDescriptorSet, and the columns that a message can be declared with.

The set is what `protoc --include_imports --descriptor_set_out=FILE` writes. It is a Protobuf message itself, and is
read here without a library, so that a declaration is checked when the topology is built. Rules of the encoding and of
google/protobuf/descriptor.proto.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from spark.topology.columns import Column
from spark.topology.errors import Place, did_you_mean
from spark.topology.sql.ddl import fields as struct_fields
from spark.topology.sql.ddl import parts_of, struct_of

FORMAT: Final = "protobuf"

KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "double": ("double",),
    "float": ("float", "double"),
    "int64": ("bigint",),
    "uint64": ("decimal(20,0)", "bigint"),
    "int32": ("int", "bigint"),
    "fixed64": ("decimal(20,0)", "bigint"),
    "fixed32": ("bigint",),
    "bool": ("boolean",),
    "string": ("string",),
    "bytes": ("binary",),
    "uint32": ("bigint",),
    "enum": ("string", "int"),
    "sfixed32": ("int", "bigint"),
    "sfixed64": ("bigint",),
    "sint32": ("int", "bigint"),
    "sint64": ("bigint",),
}
"""The types that a field can be declared with, by its type. The first is the one of the same values."""

WELL_KNOWN: Final[Mapping[str, tuple[str, ...]]] = {
    "google.protobuf.Timestamp": ("timestamp",),
    "google.protobuf.DoubleValue": KINDS["double"],
    "google.protobuf.FloatValue": KINDS["float"],
    "google.protobuf.Int64Value": KINDS["int64"],
    "google.protobuf.UInt64Value": KINDS["uint64"],
    "google.protobuf.Int32Value": KINDS["int32"],
    "google.protobuf.UInt32Value": KINDS["uint32"],
    "google.protobuf.BoolValue": KINDS["bool"],
    "google.protobuf.StringValue": KINDS["string"],
    "google.protobuf.BytesValue": KINDS["bytes"],
    "google.protobuf.Struct": ("string",),
    "google.protobuf.Value": ("string",),
    "google.protobuf.ListValue": ("string",),
}
"""The same, by message, for messages that stand for one value. `Struct`, `Value` and `ListValue` are read as JSON."""

_TYPES: Final = (
    *("", "double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string", "group", "message"),
    *("bytes", "uint32", "enum", "sfixed32", "sfixed64", "sint32", "sint64"),
)
"""The types of fields, by their number."""
_REPEATED: Final = 3  # a label
_VARINT, _EIGHT, _LENGTH, _FOUR = 0, 1, 2, 5  # wire types

COMPILE: Final = "protoc --include_imports --descriptor_set_out=FILE NAME.proto"


@dataclass(frozen=True)
class Message:
    """The message that a key or a value is.

    `name` is its full name. `descriptors` is a FileDescriptorSet of the files that it needs, each after those that it
    imports, in base64.
    """

    name: str
    descriptors: str = field(repr=False)

    @property
    def files(self) -> tuple[bytes, ...]:
        """The FileDescriptorProtos, each after those that it imports."""
        return tuple(_messages(_read(b64decode(self.descriptors)), 1))

    @property
    def index(self) -> tuple[int, ...]:
        """The place of the message in its file: its index, or those of the messages around it and its own."""
        return _types(self.files)[self.name].index


@dataclass(frozen=True)
class _Field:
    name: str
    type: str
    of: str
    """The full name of a message or an enum."""
    repeated: bool


@dataclass(frozen=True)
class _Type:
    """A message. `is_entry`: of a map."""

    name: str
    fields: tuple[_Field, ...]
    index: tuple[int, ...]
    is_entry: bool


class _NotProtobuf(ValueError):
    """Bytes are no Protobuf message."""


def message_of(name: object, descriptors: object, place: Place, what: str = "message") -> Message:
    """The message of a name in a FileDescriptorSet.

    Args:
        name: its full name, such as "shop.Order".
        descriptors: the set as bytes, or the path of its file; relative to the folder of the user's file.
        place: where the user declares it.
        what: the parameter that has the name.

    Raises:
        TopologyError: there is no such file, it has another form, or it has no such message or not all its imports.
    """
    if not isinstance(name, str) or not name:
        raise place.mistake(f"{what} is {name!r}", f'write the full name of a message: {what}="shop.Order"')
    raw = _content(descriptors, place)
    try:
        files = list(_messages(_read(raw), 1))
        by_name = {_text(_read(one), 1): one for one in files}
        types = _types(files)
    except (_NotProtobuf, UnicodeDecodeError):
        files = []
    if not files:
        raise place.mistake("descriptors are no FileDescriptorSet", f"write the file that `{COMPILE}` makes")
    if name not in types:
        known = [one.name for one in types.values() if not one.is_entry]
        has = ", ".join(known[:20]) + (", ..." if len(known) > 20 else "")
        raise place.mistake(f"the descriptors have no message {name}", f"they have {has}{did_you_mean(name, known)}")
    needed = _needed(next(file for file, raw in by_name.items() if name in _types([raw])), by_name, place)
    data = b"".join(b"\x0a" + _varint(len(one)) + one for one in needed)
    return Message(name, b64encode(data).decode())


def columns_of(message: Message) -> tuple[Column, ...]:
    """The columns that a message can be declared with; the type of one is None if no type can hold it."""
    types = _types(message.files)
    return tuple(_columns(message.name, types, (message.name,)))


def check_message(message: Message, columns: tuple[Column, ...], place: Place) -> None:
    """Check that a message has the declared columns, in types that can hold its fields.

    Raises:
        TopologyError: it has not.
    """
    place = Place(place.node, place.line, {message.name: columns_of(message)})
    _check(message.name, columns, "", _types(message.files), place)


def _content(descriptors: object, place: Place) -> bytes:
    if isinstance(descriptors, bytes):
        return descriptors
    if not isinstance(descriptors, str | Path):
        do = f"write the path of the file that `{COMPILE}` makes, or its bytes"
        raise place.mistake(f"descriptors are of the type {type(descriptors).__name__}", do)
    folder = Path(place.line.file).parent if place.line is not None else Path()
    try:
        return (folder / descriptors).read_bytes()
    except OSError as error:
        do = f"make it with `{COMPILE}`; a relative path is relative to the file of this line"
        raise place.mistake(f"the descriptors {str(descriptors)!r} cannot be read ({error.strerror})", do) from None


def _needed(file: str, by_name: Mapping[str, bytes], place: Place) -> list[bytes]:
    """A file and the files that it imports, each after those that it imports."""
    found: dict[str, bytes] = {}
    missing: list[str] = []

    def visit(one: str, by: str) -> None:
        if one in found:
            return
        if one not in by_name:
            missing.append(f"{by} imports {one}")
            return
        for other in _texts(_read(by_name[one]), 3):
            visit(other, one)
        found[one] = by_name[one]

    visit(file, "")
    if missing:
        what = f"the descriptors do not have all imports: {', '.join(dict.fromkeys(missing))}"
        raise place.mistake(what, f"write --include_imports: `{COMPILE}`")
    return list(found.values())


def _check(message: str, columns: tuple[Column, ...], path: str, types: Mapping[str, _Type], place: Place) -> None:
    fields = {field.name: field for field in types[message].fields}
    for column in columns:
        name = path + column.name
        if column.name not in fields:
            do = f"correct the name, or leave it out{did_you_mean(column.name, list(fields))}"
            raise place.mistake(f"the message {message} has no field {column.name!r} ({name})", do)
        field, kind = fields[column.name], str(column.type)
        if not _fits(field, kind, name, types, place):
            wanted = _kind(field, types, (message,))
            do = f"leave {name} out: no type can hold it" if wanted is None else f"declare {name} as {wanted}"
            raise place.mistake(f"{name} is declared {kind}, and in {message} it is {_shown(field, types)}", do)


def _fits(field: _Field, kind: str, path: str, types: Mapping[str, _Type], place: Place) -> bool:
    """Whether a field can be read as a declared type."""
    parts = parts_of(kind)
    if (entry := _entry(field, types)) is not None:
        return len(parts) == 2 and all(
            _fits(part, inside, f"{path}.{part.name}", types, place)
            for part, inside in zip(entry.fields, parts, strict=True)
        )
    if field.repeated:
        return len(parts) == 1 and _fits(_one(field), parts[0], path, types, place)
    if field.of in WELL_KNOWN and not kind.startswith("struct<"):
        return kind in WELL_KNOWN[field.of]
    if field.type not in ("message", "group"):
        return kind in KINDS[field.type]
    if not kind.startswith("struct<"):
        return False
    _check(field.of, struct_fields(kind, place), f"{path}.", types, place)
    return True


def _kind(field: _Field, types: Mapping[str, _Type], around: tuple[str, ...]) -> str | None:
    """The type to declare for a field; None if there is none. Messages inside themselves are left out."""
    if (entry := _entry(field, types)) is not None:
        inside = [_kind(part, types, around) for part in entry.fields]
        return None if None in inside else f"map<{inside[0]},{inside[1]}>"
    if field.repeated:
        one = _kind(_one(field), types, around)
        return None if one is None else f"array<{one}>"
    if field.of in WELL_KNOWN:
        return WELL_KNOWN[field.of][0]
    if field.type not in ("message", "group"):
        return KINDS[field.type][0]
    if field.of in around:
        return None
    known = [one for one in _columns(field.of, types, (*around, field.of)) if one.type is not None]
    return struct_of(known) if known else None


def _columns(message: str, types: Mapping[str, _Type], around: tuple[str, ...]) -> Iterator[Column]:
    """A column for each field of a message; the type of one is None if there is none."""
    return (Column(one.name, _kind(one, types, around)) for one in types[message].fields)


def _shown(field: _Field, types: Mapping[str, _Type]) -> str:
    """The type of a field as messages of errors name it: `repeated int64`, `map<string, shop.Price>`."""
    if (entry := _entry(field, types)) is not None:
        key, value = (_shown(part, types) for part in entry.fields)
        return f"map<{key}, {value}>"
    return ("repeated " if field.repeated else "") + (field.of or field.type)


def _entry(field: _Field, types: Mapping[str, _Type]) -> _Type | None:
    """The message of a map's entries; None if the field is no map."""
    found = types.get(field.of)
    return found if found is not None and found.is_entry else None


def _one(field: _Field) -> _Field:
    return replace(field, repeated=False)


def _types(files: list[bytes] | tuple[bytes, ...]) -> dict[str, _Type]:
    """The messages of FileDescriptorProtos by their full names."""
    found: dict[str, _Type] = {}
    for file in files:
        parts = _read(file)
        package = _text(parts, 2)
        for number, one in enumerate(_messages(parts, 4)):
            _collect(one, f"{package}." if package else "", (number,), found)
    return found


def _collect(raw: bytes, prefix: str, index: tuple[int, ...], found: dict[str, _Type]) -> None:
    """Add a DescriptorProto, and the messages inside it."""
    parts = _read(raw)
    name = prefix + _text(parts, 1)
    is_entry = any(1 in _read(options).get(7, []) for options in _messages(parts, 7))
    found[name] = _Type(name, tuple(map(_field, _messages(parts, 2))), index, is_entry)
    for number, one in enumerate(_messages(parts, 3)):
        _collect(one, f"{name}.", (*index, number), found)


def _field(raw: bytes) -> _Field:
    """A FieldDescriptorProto."""
    parts = _read(raw)
    number = _number(parts, 5)
    if not 1 <= number < len(_TYPES):
        raise _NotProtobuf
    return _Field(_text(parts, 1), _TYPES[number], _text(parts, 6).lstrip("."), _number(parts, 4) == _REPEATED)


_Parts = dict[int, list[int | bytes]]


def _read(raw: bytes) -> _Parts:
    """The fields of an encoded message by their numbers.

    Raises:
        _NotProtobuf: it is none.
    """
    parts: _Parts = {}
    at = 0
    while at < len(raw):
        tag, at = _decoded(raw, at)
        number, wire = tag >> 3, tag & 7
        value: int | bytes
        if wire == _VARINT:
            value, at = _decoded(raw, at)
        elif wire in (_EIGHT, _FOUR, _LENGTH):
            length, at = _decoded(raw, at) if wire == _LENGTH else (8 if wire == _EIGHT else 4, at)
            value, at = raw[at : at + length], at + length
        else:
            raise _NotProtobuf
        if number == 0 or at > len(raw):
            raise _NotProtobuf
        parts.setdefault(number, []).append(value)
    return parts


def _decoded(raw: bytes, at: int) -> tuple[int, int]:
    """The varint at a place, and the place after it."""
    result = 0
    for shift in range(0, 70, 7):
        if at >= len(raw):
            break
        result |= (raw[at] & 0x7F) << shift
        at += 1
        if raw[at - 1] < 0x80:
            return result, at
    raise _NotProtobuf


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _messages(parts: _Parts, number: int) -> Iterator[bytes]:
    for one in parts.get(number, []):
        if not isinstance(one, bytes):
            raise _NotProtobuf
        yield one


def _texts(parts: _Parts, number: int) -> list[str]:
    return [one.decode() for one in _messages(parts, number)]


def _text(parts: _Parts, number: int) -> str:
    return (_texts(parts, number) or [""])[-1]


def _number(parts: _Parts, number: int) -> int:
    found = parts.get(number, [0])[-1]
    if isinstance(found, bytes):
        raise _NotProtobuf
    return found
