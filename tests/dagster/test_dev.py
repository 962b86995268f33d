"""`dagster dev -w workspace.yaml` in a fresh clone: it ticks by itself, and one table is launched by GraphQL."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from resources.engine import Engine
from resources.kafka import Kafka
from resources.process import free_port
from tests.dagster import shop
from tests.dagster.interrupted import interrupted

ROOT = Path(__file__).parents[2]
CLONE = ("assets", "dagster_project", "resources", "spark", "workspace.yaml", "dagster.yaml")
PATIENCE = 300.0  # seconds: five processes that import Dagster, and a first tick, on a machine with other work

RUNS = "{ runsOrError { ... on Runs { results { runId jobName status } } } }"
LAUNCH = """
mutation {
  launchRun(executionParams: {
    selector: {
      repositoryLocationName: "tidetable"
      repositoryName: "__repository__"
      pipelineName: "__ASSET_JOB"
      assetSelection: [{path: ["shop", "orders"]}]
    }
    mode: "default"
  }) { ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } }
}
"""
Graphql = dict[str, "Graphql"] | list["Graphql"] | str


def until(found: Callable[[], str | None]) -> str:
    """What is found in the end."""
    deadline = time.monotonic() + PATIENCE
    while (result := found()) is None:
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(1)
    return result


class Dagster:
    """The pages' own interface."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def up(self) -> str | None:
        """Whether it answers."""
        try:
            with urllib.request.urlopen(f"{self.url}/server_info") as answer:
                return str(answer.status)
        except (urllib.error.URLError, ConnectionError):
            return None

    def ask(self, query: str) -> Graphql:
        """The data that a query gives."""
        body = json.dumps({"query": query}).encode()
        request = urllib.request.Request(f"{self.url}/graphql", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            data: Graphql = json.load(answer)["data"]
        return data

    def ended(self, job: str) -> str | None:
        """How the newest run of a job that has ended, ended."""
        data = json.dumps(self.ask(RUNS))
        runs = json.loads(data)["runsOrError"]["results"]
        return next((run["status"] for run in runs if run["jobName"] == job and run["status"] in ENDS), None)


ENDS = ("SUCCESS", "FAILURE", "CANCELED")


@pytest.fixture
def dagster(engine: Engine, kafka: Kafka, lake_root: Path, tmp_path: Path) -> Iterator[Dagster]:
    """Dagster's processes, in a copy of the project, without any home of Dagster's."""
    assert engine.running() is not None
    shop.open_topics(kafka)
    for name in CLONE:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    port = free_port()
    command = [str(Path(sys.executable).parent / "dagster"), "dev", "-w", "workspace.yaml", "-p", str(port)]
    environment = {name: value for name, value in os.environ.items() if name != "DAGSTER_HOME"}
    environment |= {"TIDETABLE_LAKE": str(lake_root), "PYTHONPATH": ""}
    try:
        # 1: a run that has told its end still writes to the temporary home that Dagster is about to remove.
        with (tmp_path / "log").open("wb") as log, interrupted(command, tmp_path, environment, log.fileno(), (0, 1)):
            dagster = Dagster(port)
            until(dagster.up)
            yield dagster
    finally:
        print((tmp_path / "log").read_text())


def test_a_fresh_clone_ticks_by_itself_and_launches_one_table(dagster: Dagster, kafka: Kafka) -> None:
    shop.stock(kafka)
    shop.order(kafka, 100)
    assert until(lambda: dagster.ended("shop_tick")) == "SUCCESS"
    launched = json.dumps(dagster.ask(LAUNCH))
    assert "runId" in launched, launched
    assert until(lambda: dagster.ended("__ASSET_JOB")) == "SUCCESS"
