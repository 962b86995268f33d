"""Classifies errors: transient ones pass by themselves, permanent ones need the action in their message."""

from __future__ import annotations

from pyspark.errors.exceptions.base import RetriesExceeded

from resources.java import JavaNotFound
from resources.kafka_options import Untranslatable
from resources.process import ServerFailed
from spark.engine.errors import EngineError, NotCommitted, RegistryUnavailable
from spark.engine.offsets import KafkaUnavailable, TopicMissing

TRANSIENT = (KafkaUnavailable, NotCommitted, RegistryUnavailable, ServerFailed, RetriesExceeded)
"""A leader election, a faster writer, a registry or an engine that restarts."""

PERMANENT = (EngineError, TopicMissing, JavaNotFound, Untranslatable)
"""The user must act."""

UNAUTHORIZED = ("UNAUTHENTICATED", "PERMISSION_DENIED")  # gRPC's status codes for a wrong or missing token


def engine_lost(error: Exception, remote: str | None) -> str:
    """The message for an engine that stopped answering: the lake's own, or the one at the address `remote`."""
    if any(code in str(error) for code in UNAUTHORIZED):
        return f"the engine at {remote} refused this client: check the token in SPARK_REMOTE"
    if remote is not None:
        return f"the engine at {remote} stopped answering; nothing is lost. Run the command again when it runs again"
    return "the engine stopped answering; nothing is lost. Run the command again, which starts the engine"
