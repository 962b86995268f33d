"""What Dagster is told of a failure: to try again, or our own words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg
from pyspark.errors.exceptions.connect import SparkConnectGrpcException

from assets.failures import LASTING, PASSING
from spark.engine.errors import engine_died

TRIES = 3  # more, and a cluster that is down holds a run for minutes; the sensor asks again anyway
PAUSE = 5.0  # seconds: an election of leaders is over, a killed engine's port is free


@contextmanager
def retried() -> Iterator[None]:
    """Ask Dagster to try again what passes by itself; say what does not in our own words."""
    try:
        yield
    except PASSING as error:
        raise dg.RetryRequested(TRIES, PAUSE) from error
    except SparkConnectGrpcException as error:
        if not engine_died(error):
            raise
        raise dg.RetryRequested(TRIES, PAUSE) from error
    except LASTING as error:
        raise dg.Failure(str(error), allow_retries=False) from error
