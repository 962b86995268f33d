"""Maps errors for Dagster: it retries transient ones, and fails with our message for permanent ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg
from pyspark.errors.exceptions.connect import SparkConnectGrpcException

from assets.failures import PERMANENT, TRANSIENT
from spark.engine.errors import engine_died

TRIES = 3  # with more, a run waits minutes for a cluster that is down; the sensor requests ticks anyway
PAUSE = 5.0  # seconds: by then a leader election is over, and a killed engine's port is free


@contextmanager
def retried() -> Iterator[None]:
    """Request a retry for a transient error; fail with our own message, without a retry, for a permanent one."""
    try:
        yield
    except TRANSIENT as error:
        raise dg.RetryRequested(TRIES, PAUSE) from error
    except SparkConnectGrpcException as error:
        if not engine_died(error):
            raise
        raise dg.RetryRequested(TRIES, PAUSE) from error
    except PERMANENT as error:
        raise dg.Failure(str(error), allow_retries=False) from error
