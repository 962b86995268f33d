"""Protobuf files without a compiler: descriptors of messages whose fields are written as in a .proto file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Fields = Mapping[str, str]

SCALARS = {
    name.removeprefix("TYPE_").lower(): number for name, number in descriptor_pb2.FieldDescriptorProto.Type.items()
}
LABELS = {"optional": 1, "required": 2, "repeated": 3}


def file(
    name: str,
    messages: Mapping[str, Fields],
    *,
    package: str = "shop",
    enums: Mapping[str, Sequence[str]] | None = None,
    imports: Sequence[str] = (),
    syntax: str = "proto3",
) -> Any:
    """A FileDescriptorProto.

    Args:
        name: the name of the file.
        messages: by name, the fields: `int64`, `optional string`, `repeated Price`, `map<string, Price>`, `oneof
            string` (all in one oneof), `string = -5` with a default. A message of the name `Outer.Inner` is nested.
        package: the package of the messages.
        enums: by name, the names of the values 0, 1, ...
        imports: the files that it imports.
        syntax: proto2 or proto3.
    """
    made = descriptor_pb2.FileDescriptorProto(name=name, package=package, syntax=syntax, dependency=imports)
    known: dict[str, Any] = {}
    for title, fields in messages.items():
        outer, _, inner = title.rpartition(".")
        message = known[outer].nested_type.add(name=inner) if outer else made.message_type.add(name=title)
        known[title] = message
        if any(text.startswith("oneof ") for text in fields.values()):
            message.oneof_decl.add(name="either")  # before those that stand for `optional`
        for number, (field, text) in enumerate(fields.items(), 1):
            _add(message, f".{package}.{title}", field, number, text, enums or {}, package, syntax)
    for title, values in (enums or {}).items():
        enum = made.enum_type.add(name=title)
        for number, value in enumerate(values):
            enum.value.add(name=value, number=number)
    return made


def _add(
    message: Any, path: str, name: str, number: int, text: str, enums: Mapping[str, object], package: str, syntax: str
) -> None:
    if text.startswith("map<"):
        entry = message.nested_type.add(name=f"{name.title().replace('_', '')}Entry")
        entry.options.map_entry = True
        for at, part in enumerate(text[4:-1].split(", "), 1):
            _add(entry, "", ("key", "value")[at - 1], at, part, enums, package, "")
        message.field.add(name=name, number=number, label=3, type=11, type_name=f"{path}.{entry.name}")
        return
    text, _, default = text.partition(" = ")
    label, _, kind = text.rpartition(" ")
    field = message.field.add(name=name, number=number, label=LABELS.get(label, 1))
    if kind in SCALARS:
        field.type = SCALARS[kind]
    else:
        field.type = SCALARS["enum" if kind in enums else "message"]
        field.type_name = kind if kind.startswith(".") else f".{package}.{kind}"
    if default:
        field.default_value = default
    if label == "oneof":
        field.oneof_index = 0
    if label == "optional" and syntax == "proto3":
        field.proto3_optional = True
        field.oneof_index = len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{name}")


def descriptors(*files: Any) -> bytes:
    """A FileDescriptorSet, as `protoc --descriptor_set_out` writes it."""
    made: bytes = descriptor_pb2.FileDescriptorSet(file=files).SerializeToString()
    return made


def well_known(name: str) -> Any:
    """The file of well-known types, such as "timestamp"."""
    module = __import__(f"google.protobuf.{name}_pb2", fromlist=["DESCRIPTOR"])
    return descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)


def message_class(files: bytes, name: str) -> Any:
    """The class of a message, as a compiler would generate it."""
    pool = descriptor_pool.DescriptorPool()
    for one in descriptor_pb2.FileDescriptorSet.FromString(files).file:
        pool.AddSerializedFile(one.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
