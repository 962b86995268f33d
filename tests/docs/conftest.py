"""A lake with a broker of its own: what the documents show uses topics of plain names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from resources.embedded_kafka import EmbeddedKafka

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from resources.engine import Engine


@pytest.fixture
def own_lake(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A new lake, by the environment that a user would set; the engine is the one of all tests."""
    lake = tmp_path / "lake"
    monkeypatch.setenv("TIDETABLE_LAKE", str(lake))
    monkeypatch.setenv("SPARK_REMOTE", engine.start())
    monkeypatch.delenv("TIDETABLE_KAFKA", raising=False)
    yield lake
    EmbeddedKafka(lake).stop()
