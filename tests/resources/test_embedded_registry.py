"""The schema registry of a lake: started on request, stopped, killed; its schemas stay."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from dagster_project.cli import main
from resources.embedded_registry import EmbeddedRegistry
from resources.jars import checksums, groups
from resources.process import ServerFailed
from resources.registry import Registry
from spark.engine.errors import RegistryUnavailable

if TYPE_CHECKING:
    from pathlib import Path

LONG = '{"type":"record","name":"Row","fields":[{"name":"n","type":"long"}]}'


def test_schemas_outlive_a_stop_and_a_kill_and_the_url_stays(tmp_path: Path) -> None:
    registry = EmbeddedRegistry(tmp_path)
    url = registry.start()
    number = Registry({"url": url}).register("kept-value", "AVRO", LONG)
    registry.stop()
    assert registry.running() is None
    with pytest.raises(RegistryUnavailable, match="tidetable up --registry"):
        Registry({"url": registry.url}, "start it: tidetable up --registry").versions("kept-value")
    environment = {"TIDETABLE_LAKE": str(tmp_path)}
    status = CliRunner(env=environment).invoke(main, ["status", "--json"])
    assert json.loads(status.output)["registry"] is None
    assert registry.start() == url
    running = registry.running()
    assert running is not None
    os.kill(running.pid, signal.SIGKILL)
    assert registry.start() == url
    [schema] = Registry({"url": url}).versions("kept-value")
    assert (schema.id, schema.text) == (number, LONG)
    status = CliRunner(env=environment).invoke(main, ["status", "--json"])
    assert json.loads(status.output)["registry"] == url
    stopped = CliRunner(env=environment).invoke(main, ["down"])
    assert stopped.exit_code == 0, stopped.output
    assert registry.running() is None


def test_a_registry_that_was_never_started_says_how_to(tmp_path: Path) -> None:
    registry = EmbeddedRegistry(tmp_path)
    assert registry.running() is None
    with pytest.raises(ServerFailed, match="tidetable up --registry"):
        registry.url  # noqa: B018  # reading it is what fails


def test_set_up_does_not_fetch_the_registry() -> None:
    assert len(checksums("registry")) == 1
    assert "registry" not in groups()
