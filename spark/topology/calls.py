"""A call with other arguments than the method takes, told at the user's own line."""

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
Making = TypeVar("Making", bound="Callable[..., None]")


def checks_calls(kind: Kind) -> Kind:
    """Let a class's public methods raise a TopologyError where Python raises a TypeError.

    So is its own call checked, with `of(...)` in its place where the class has that.
    """
    for name, member in list(vars(kind).items()):
        function = member.__func__ if isinstance(member, staticmethod) else member
        if isinstance(function, FunctionType) and not name.startswith("_"):
            checked = _checked(f"{kind.__name__}.{name}", function, name, of_instance=function is member)
            setattr(kind, name, checked if function is member else staticmethod(checked))
    instead, made = vars(kind).get("of"), vars(kind).get("__init__")
    if isinstance(instead, staticmethod) and made is not None:
        text = f"{kind.__name__}.of({_shown(signature(instead.__func__), of_instance=False)})"
        kind.__init__ = _checked(kind.__name__, made, text, of_instance=True)  # type: ignore[misc]
    return kind


def checks_making(function: Making) -> Making:
    """The same of a class's `__init__`."""
    name = function.__qualname__.partition(".")[0]
    return cast("Making", _checked(name, function, name, of_instance=True))


def _checked(title_: str, function: Callable[..., object], write: str, *, of_instance: bool) -> Callable[..., None]:
    takes = signature(function)
    do = write if write.endswith(")") else f"{write}({_shown(takes, of_instance=of_instance)})"

    @wraps(function)
    def called(*args: object, **kwargs: object) -> object:
        try:
            takes.bind(*args, **kwargs)
        except TypeError as error:
            line, node = user_line(), getattr(args[0], "node", None) if of_instance else None
            place = Place(title_, line) if node is None else Place(f"{write} of {node.title}", line, {"": node.columns})
            raise place.mistake(str(error), f"write {do}") from None
        return function(*args, **kwargs)

    return cast("Callable[..., None]", called)


def _shown(takes: Signature, *, of_instance: bool) -> str:
    """The parameters, as one would write them: those with a default in brackets."""
    parameters = list(takes.parameters.values())[1 if of_instance else 0 :]
    return ", ".join(map(_parameter, parameters))


def _parameter(one: Parameter) -> str:
    if one.kind is Parameter.VAR_KEYWORD:
        return "name=..., ..."
    if one.kind is Parameter.VAR_POSITIONAL:
        return f"{one.name}, ..."
    text = f"{one.name}=..." if one.kind is Parameter.KEYWORD_ONLY else one.name
    return text if one.default is Parameter.empty else f"[{text}]"
