"""The effects of a landing, a step and a publisher, wrapped from outside: a process can die before any of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar
from unittest.mock import patch

from pyspark.sql.connect.session import SparkSession as ConnectSession

from resources.engine import Engine
from resources.kafka import Kafka
from resources.publisher import Publisher
from spark.engine import commit, position, step, table

if TYPE_CHECKING:
    from collections.abc import Iterator

P = ParamSpec("P")
R = TypeVar("R")

BOUNDARIES: dict[str, tuple[object, str]] = {
    "offsets asked": (Kafka, "end_offsets"),
    "first offsets asked": (Kafka, "beginning_offsets"),
    "position read": (position, "read"),
    "inputs pinned": (step, "pin"),
    "session opened": (Engine, "session"),
    "table created": (table, "create"),
    "properties set": (table, "set_properties"),
    "appended": (commit, "append"),
    "merged": (commit, "run"),
    "read back": (commit, "_read_back"),
    "publisher opened": (Publisher, "__init__"),
    "published": (Publisher, "commit"),
    "session closed": (ConnectSession, "stop"),
}
WHOLE = ("table created", "read back", "inputs pinned", "publisher opened")
"""What these do inside is theirs."""


@dataclass
class Crossed:
    """The boundaries a process came to, in order, and those it is inside of."""

    names: list[str] = field(default_factory=list)
    inside: list[str] = field(default_factory=list)


@contextmanager
def watched(before: Callable[[str, int], None]) -> Iterator[Crossed]:
    """Call `before` with the name and the number of each boundary that is about to be crossed."""
    crossed = Crossed()

    def wrapped(name: str, function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def wrapper(*arguments: P.args, **options: P.kwargs) -> R:
            if not any(whole in crossed.inside for whole in WHOLE):
                crossed.names.append(name)
                before(name, len(crossed.names) - 1)
            crossed.inside.append(name)
            try:
                return function(*arguments, **options)
            finally:
                crossed.inside.pop()

        return wrapper

    with ExitStack() as patches:
        for name, (owner, attribute) in BOUNDARIES.items():
            patches.enter_context(patch.object(owner, attribute, wrapped(name, getattr(owner, attribute))))
        yield crossed


def die(signal_: signal.Signals = signal.SIGKILL) -> None:
    """End, or stop, this very process at this very place."""
    os.kill(os.getpid(), signal_)
