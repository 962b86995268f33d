"""Which failures pass by themselves, by name, and how the others are told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg
from pyspark.errors.exceptions.base import RetriesExceeded
from pyspark.errors.exceptions.connect import SparkConnectGrpcException

from resources.process import ServerFailed
from spark.engine.errors import EngineError, NotCommitted
from spark.engine.offsets import KafkaUnavailable, TopicMissing

TRIES = 3  # more, and a cluster that is down holds a run for minutes; the sensor tries again anyway
PAUSE = 5.0  # seconds: an election of leaders is over, a killed engine's port is free

PASSING = (KafkaUnavailable, NotCommitted, ServerFailed, RetriesExceeded)


@contextmanager
def retried() -> Iterator[None]:
    """Ask Dagster to try again what passes by itself; say what does not in our own words."""
    try:
        yield
    except PASSING as error:
        raise dg.RetryRequested(TRIES, PAUSE) from error
    except SparkConnectGrpcException as error:
        # Its subclasses are the engine's answers. The class itself is a connection that broke: the engine died.
        if type(error) is not SparkConnectGrpcException:
            raise
        raise dg.RetryRequested(TRIES, PAUSE) from error
    except (EngineError, TopicMissing) as error:
        raise dg.Failure(str(error), allow_retries=False) from error
