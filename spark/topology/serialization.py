"""Frozen dataclasses as JSON-compatible data, without the user's lines, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass

Plain = str | int | bool | None | list["Plain"] | dict[str, "Plain"]


def to_plain(value: object, defaults: bool = True) -> Plain:
    """A value as data: a dataclass as a dict of its compared fields, with its kind under `is`; a tuple as a list.

    Without `defaults`, fields with their default value are left out, so that a new field does not change the data of
    existing plans.
    """
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, tuple):
        return [to_plain(item, defaults) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        compared = [f for f in fields(value) if f.compare and (defaults or getattr(value, f.name) != f.default)]
        data = {f.name: to_plain(getattr(value, f.name), defaults) for f in compared}
        return {"is": type(value).__name__.lower(), **data}
    raise TypeError(f"{value!r} cannot be part of a plan")


def from_plain(data: Plain, kinds: Mapping[str, Callable[..., object]]) -> object:
    """The value that `to_plain` converted to this data; `kinds` are the dataclasses by name."""
    if isinstance(data, list):
        return tuple(from_plain(item, kinds) for item in data)
    if isinstance(data, dict):
        parts = {name: from_plain(item, kinds) for name, item in data.items() if name != "is"}
        return kinds[str(data["is"])](**parts)
    return data
