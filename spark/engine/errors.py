"""What can stop a step, by name. Every message says which table or topic, why, and what to do."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pyspark.errors.exceptions.base import RetriesExceeded
from pyspark.errors.exceptions.connect import SparkConnectGrpcException

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.errors import PySparkException

CONDITION = re.compile(r"\[([A-Z][A-Z0-9_.]+)\]")
CAUSE = re.compile(r"^Caused by: [\w.$]+: (.+)$", re.MULTILINE)


def condition(error: PySparkException) -> str:
    """Spark's and Delta's name for what went wrong; empty if it has none.

    Spark Connect leaves it out, but for the message, where the parameters of the message are longer than 1,024
    characters (`spark.connect.grpc.maxMetadataSize`). A commit that lost a race holds the other one's position.
    """
    told = CONDITION.search(str(error))
    return error.getCondition() or (told.group(1) if told else "")


def cause(error: PySparkException) -> str:
    """What was at the bottom of an error of Spark's, in a line."""
    found = CAUSE.findall(str(error))
    return str(found[-1] if found else str(error).partition("\n")[0])


def engine_died(error: PySparkException) -> bool:
    """Whether the engine died at work. What it answers itself is raised as a subclass."""
    return type(error) in (RetriesExceeded, SparkConnectGrpcException)


class EngineError(Exception):
    """A landing or a step that cannot go on."""


class OffsetsExpired(EngineError):
    """Kafka's retention removed records that were not landed yet."""


class TopicRecreated(EngineError):
    """The topic is not the one whose offsets the landing holds."""


class PositionLost(EngineError):
    """A table no longer says which inputs it was computed from."""


class LogBroken(EngineError):
    """A stored table's log cannot be read, or was told to forget what was committed."""


class LakesDiffer(EngineError):
    """The client and the engine see different places under the lake's name."""


class PlanChanged(EngineError):
    """The table was computed by another definition than the one given."""


class InputChanged(EngineError):
    """A stored input is not the table that the position names, or no longer has the versions a span needs."""


class ChangesExpired(InputChanged):
    """Delta's retention removed changes of an input that were not stepped yet."""


class NoCommonCut(EngineError):
    """The inputs of a step have no versions that agree on every topic they share."""


class ExpressionFailed(EngineError):
    """An expression of the topology failed on a row."""


class NotCommitted(EngineError):
    """Other writers committed first, again and again."""


class RecordRefused(EngineError):
    """A topic does not take a record that a table has for it: one of a key, with these headers (none: any of some)."""

    def __init__(self, why: str, key: bytes | None = None, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(why)
        self.key = key
        self.headers = headers or {}


class CannotRestore(EngineError):
    """A table cannot be put back to what it was then."""


class SparkFailed(EngineError):
    """Spark could not do what a landing or a step asked of it: the disk is full, or the memory."""
