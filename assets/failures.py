"""Classifies errors: transient ones pass by themselves, permanent ones need the action in their message."""

from __future__ import annotations

from pyspark.errors.exceptions.base import RetriesExceeded

from resources.java import JavaNotFound
from resources.kafka_options import Untranslatable
from resources.process import ServerFailed
from spark.engine.errors import EngineError, NotCommitted
from spark.engine.offsets import KafkaUnavailable, TopicMissing

PASSING = (KafkaUnavailable, NotCommitted, ServerFailed, RetriesExceeded)
"""Transient errors: a leader election, a faster writer, an engine that restarts."""

LASTING = (EngineError, TopicMissing, JavaNotFound, Untranslatable)
"""Permanent errors: the user must act."""


REFUSED = ("UNAUTHENTICATED", "PERMISSION_DENIED")  # gRPC's status codes for a wrong or missing token


def lost(error: Exception, remote: str | None) -> str:
    """The message for an engine that stopped answering: the lake's own, or the one at the address `remote`."""
    if any(code in str(error) for code in REFUSED):
        return f"the engine at {remote} refused this client: is the token in SPARK_REMOTE the right one?"
    if remote is not None:
        return f"the engine at {remote} stopped answering; nothing is lost. Once it runs again, run the command again"
    return "the engine stopped answering; nothing is lost. Run the command again, which starts it anew"
