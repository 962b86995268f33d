"""Frozen values as plain data, and back: what JSON can hold, without the user's lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass

Plain = str | int | bool | None | list["Plain"] | dict[str, "Plain"]


def to_plain(value: object, defaults: bool = True) -> Plain:
    """A value as data: what compares of a dataclass under its name, a tuple as a list.

    Without `defaults` a field that has its default is left out, so that a plan stays what it was when a field is added.
    """
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, tuple):
        return [to_plain(item, defaults) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        told = [f for f in fields(value) if f.compare and (defaults or getattr(value, f.name) != f.default)]
        compared = {f.name: to_plain(getattr(value, f.name), defaults) for f in told}
        return {"is": type(value).__name__.lower(), **compared}
    raise TypeError(f"{value!r} is no part of a plan")


def from_plain(data: Plain, kinds: Mapping[str, Callable[..., object]]) -> object:
    """The value that `to_plain` made this data of; `kinds` are its dataclasses by name."""
    if isinstance(data, list):
        return tuple(from_plain(item, kinds) for item in data)
    if isinstance(data, dict):
        parts = {name: from_plain(item, kinds) for name, item in data.items() if name != "is"}
        return kinds[str(data["is"])](**parts)
    return data
