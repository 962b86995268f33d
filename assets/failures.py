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


LOST = "the engine stopped answering; nothing is lost. Run the command again, which starts it anew"
