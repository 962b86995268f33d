"""Raises a TopologyError with the user's line for a call with wrong arguments."""

from __future__ import annotations

from functools import wraps
from inspect import Parameter, signature
from types import FunctionType
from typing import TYPE_CHECKING, TypeVar, cast

from spark.topology.errors import Place, user_line

if TYPE_CHECKING:
    from collections.abc import Callable
    from inspect import Signature

Kind = TypeVar("Kind", bound=type)
Constructor = TypeVar("Constructor", bound="Callable[..., None]")


def checks_calls(kind: Kind) -> Kind:
    """Let a class's public methods raise a TopologyError for wrong arguments, where Python raises a TypeError.

    The constructor of a class with a static method `of` is checked too; its error says to call `of(...)`.
    """
    for name, member in list(vars(kind).items()):
        function = member.__func__ if isinstance(member, staticmethod) else member
        if isinstance(function, FunctionType) and not name.startswith("_"):
            checked = _checked(f"{kind.__name__}.{name}", function, name, of_instance=function is member)
            setattr(kind, name, checked if function is member else staticmethod(checked))
    of, constructor = vars(kind).get("of"), vars(kind).get("__init__")
    if isinstance(of, staticmethod) and constructor is not None:
        text = f"{kind.__name__}.of({_parameters(signature(of.__func__), of_instance=False)})"
        kind.__init__ = _checked(kind.__name__, constructor, text, of_instance=True)  # type: ignore[misc]
    return kind


def checks_constructor(function: Constructor) -> Constructor:
    """Let a class's `__init__` raise a TopologyError for wrong arguments."""
    name = function.__qualname__.partition(".")[0]
    return cast("Constructor", _checked(name, function, name, of_instance=True))


def _checked(title: str, function: Callable[..., object], write: str, *, of_instance: bool) -> Callable[..., None]:
    accepted = signature(function)
    do = write if write.endswith(")") else f"{write}({_parameters(accepted, of_instance=of_instance)})"

    @wraps(function)
    def checked(*args: object, **kwargs: object) -> object:
        try:
            accepted.bind(*args, **kwargs)
        except TypeError as error:
            line, node = user_line(), getattr(args[0], "node", None) if of_instance else None
            place = Place(title, line) if node is None else Place(f"{write} of {node.title}", line, {"": node.columns})
            raise place.mistake(str(error), f"write {do}") from None
        return function(*args, **kwargs)

    return cast("Callable[..., None]", checked)


def _parameters(accepted: Signature, *, of_instance: bool) -> str:
    """The parameters as text, those with a default in brackets."""
    parameters = list(accepted.parameters.values())[1 if of_instance else 0 :]
    return ", ".join(map(_parameter, parameters))


def _parameter(one: Parameter) -> str:
    if one.kind is Parameter.VAR_KEYWORD:
        return "name=..., ..."
    if one.kind is Parameter.VAR_POSITIONAL:
        return f"{one.name}, ..."
    text = f"{one.name}=..." if one.kind is Parameter.KEYWORD_ONLY else one.name
    return text if one.default is Parameter.empty else f"[{text}]"
