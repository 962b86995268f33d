"""A session of the engine, and inputs drawn as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.operators.drawn import Draw

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from resources.engine import Engine


@pytest.fixture(scope="session")
def session(engine: Engine) -> Iterator[SparkSession]:
    session = engine.session()
    yield session
    session.stop()


@pytest.fixture
def draw(session: SparkSession) -> Draw:
    """Makes snapshots and spans of drawn tables."""
    return Draw(session)
