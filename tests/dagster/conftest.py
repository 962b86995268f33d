"""What tests of Dagster share."""

from collections.abc import Iterator

import dagster as dg
import pytest


@pytest.fixture(scope="module")
def instance() -> Iterator[dg.DagsterInstance]:
    """Dagster's own storage, in memory: on disk, a run of a job waits two seconds for its events.

    It is closed after the tests of a module: the folder of one that is not closed warns in whatever test collects it.
    """
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance
