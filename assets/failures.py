"""Failures by name: which pass by themselves, and which need somebody to do what their message says."""

from __future__ import annotations

from pyspark.errors.exceptions.base import RetriesExceeded

from resources.java import JavaNotFound
from resources.kafka_options import Untranslatable
from resources.process import ServerFailed
from spark.engine.errors import EngineError, NotCommitted
from spark.engine.offsets import KafkaUnavailable, TopicMissing

PASSING = (KafkaUnavailable, NotCommitted, ServerFailed, RetriesExceeded)
"""Over soon: a cluster that elects, a writer that was quicker, an engine that comes back."""

LASTING = (EngineError, TopicMissing, JavaNotFound, Untranslatable)
"""Not over before somebody acts."""


REFUSED = ("UNAUTHENTICATED", "PERMISSION_DENIED")  # what gRPC calls a token that is wrong, or missing


def lost(error: Exception, remote: str | None) -> str:
    """What to do where the engine stopped answering: the lake's own, or the remote one at an address."""
    if any(code in str(error) for code in REFUSED):
        return f"the engine at {remote} refused this client: is the token in SPARK_REMOTE the right one?"
    if remote is not None:
        return f"the engine at {remote} stopped answering; nothing is lost. Once it runs again, run the command again"
    return "the engine stopped answering; nothing is lost. Run the command again, which starts it anew"
