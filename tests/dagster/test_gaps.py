"""What was gone before it was landed is told everywhere: by a check, the metadata, and two commands."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import dagster as dg
from click.testing import CliRunner
from confluent_kafka import TopicPartition

from assets.checks import GAPS, QUARANTINE
from dagster_project.cli import main, names, output
from dagster_project.definitions import definitions
from resources.tidetable import Tidetable
from spark.engine.quarantine import drop
from spark.topology import Consumed, StreamsBuilder
from tests.support.lake import Record, send, until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

    from resources.engine import Engine
    from resources.kafka import Kafka
    from resources.lakehouse import Lakehouse


def test_offsets_that_are_missing_are_told_by_check_metadata_and_commands(
    engine: Engine,
    kafka: Kafka,
    lakehouse: Lakehouse,
    topic: Callable[..., str],
    lake_root: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = topic("lossy")
    builder = StreamsBuilder("lossy", on_data_loss="ledger")
    builder.stream(name, Consumed.json(key="id bigint", value="v int"))
    made, tidetable = builder.build(), Tidetable(engine, lakehouse, kafka)
    monkeypatch.setattr(names, "topologies", lambda *_: [made])
    monkeypatch.setattr(output.out, "width", 300)  # a table's lines whole

    def ticked() -> tuple[dict[str, dg.MetadataValue], dg.AssetCheckEvaluation]:
        with dg.DagsterInstance.ephemeral() as instance:
            ran = definitions([made], tidetable, {}).resolve_job_def("lossy_tick").execute_in_process(instance=instance)
        (landed,) = (event.materialization for event in ran.get_asset_materialization_events())
        (check,) = (one for one in ran.get_asset_check_evaluations() if one.check_name == GAPS)
        return dict(landed.metadata), check

    def said(*words: str) -> str:
        ran = CliRunner(env={"TIDETABLE_LAKE": str(lake_root)}).invoke(main, words, catch_exceptions=False)
        assert ran.exit_code == 0, ran.output
        return ran.stdout

    send(kafka, name, Record(1, {"v": 1}))
    told, check = ticked()
    assert (check.check_name, check.passed, check.severity) == ("gaps", True, dg.AssetCheckSeverity.WARN)
    assert told["kafka/gaps"].value == 0
    assert said("gaps", "lossy").strip() == "lossy has no gaps"
    assert json.loads(said("gaps", f"lossy.{name}", "--json")) == {"gaps": [], "first_offsets": {}}

    send(kafka, name, *(Record(n, {"v": n}) for n in range(2, 7)))
    kafka.admin().delete_records([TopicPartition(name, 0, 4)])
    deadline = time.monotonic() + 60
    while kafka.beginning_offsets([name])[name].offsets != {0: 4}:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    told, check = ticked()
    assert (check.passed, check.description) == (
        False,
        f"Offsets that were deleted before they were landed: {name}-0 1 to 3.",
    )
    assert told["kafka/gaps"].value == 3
    [gap] = json.loads(said("gaps", f"lossy.{name}", "--json"))["gaps"]
    assert {part: gap[part] for part in ("table", "input", "partition", "first", "last")} == {
        "table": f"_landing/{name}",
        "input": name,
        "partition": 0,
        "first": 1,
        "last": 3,
    }
    assert "removed from the topic before they were landed" in said("gaps", "lossy")
    [status] = json.loads(said("status", "lossy", "--json"))["topologies"]["lossy"]
    assert [(one["first"], one["last"]) for one in status["gaps"]] == [(1, 3)]
    assert "gaps" in said("status", "lossy")


def test_where_a_landing_began_is_told_and_is_no_gap(
    engine: Engine,
    kafka: Kafka,
    lakehouse: Lakehouse,
    topic: Callable[..., str],
    lake_root: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = topic("aged")
    builder = StreamsBuilder("aged")
    builder.stream(name, Consumed.json(key="id bigint", value="v int"))
    made = builder.build()
    monkeypatch.setattr(names, "topologies", lambda *_: [made])
    send(kafka, name, *(Record(n, {"v": "x" if n == 4 else n}) for n in range(5)))
    kafka.admin().delete_records([TopicPartition(name, 0, 3)])
    until(lambda: kafka.beginning_offsets([name])[name].offsets == {0: 3})
    defs = definitions([made], Tidetable(engine, lakehouse, kafka), {})
    ran = defs.resolve_job_def("aged_tick").execute_in_process()
    checks = {one.check_name: one for one in ran.get_asset_check_evaluations()}
    told = f"begins at offset 3 of {name}-0: the topic held nothing older when it first landed"
    assert checks[GAPS].passed
    assert told in (checks[GAPS].description or "")
    quarantine = checks[QUARANTINE]
    assert (quarantine.passed, quarantine.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert quarantine.description == "Of 2 records 1 have a value, 0 are tombstones, 1 are in quarantine."
    assert {what: quarantine.metadata[what].value for what in ("records", "offsets_read")} == {
        "records": 2,
        "offsets_read": 2,
    }

    def said(*words: str) -> str:
        return CliRunner(env={"TIDETABLE_LAKE": str(lake_root)}).invoke(main, words, catch_exceptions=False).stdout

    assert told in said("gaps", "aged")
    begins = {"gaps": [], "first_offsets": {f"_landing/{name}": {"0": 3}}}
    assert json.loads(said("gaps", "aged", "--json")) == begins
    assert told in said("status", "aged")
    [status] = json.loads(said("status", "aged", "--json"))["topologies"]["aged"]
    assert status["first_offsets"] == {"0": 3}
    assert (status["counted"]["records"], status["counted"]["quarantined"]) == (2, 1)
    looked = defs.resolve_job_def("aged_status").execute_in_process()
    [observed] = looked.get_asset_observation_events()
    assert observed.asset_observation_data.asset_observation.metadata["landing/quarantined"].value == 1

    drop(Tidetable(engine, lakehouse, kafka).ports(), made, made.sources[0], {0: [4]}, "a test", "ada", "drop")
    ran = defs.resolve_job_def("aged_tick").execute_in_process()
    [quarantine] = [one for one in ran.get_asset_check_evaluations() if one.check_name == QUARANTINE]
    assert quarantine.passed
    assert quarantine.description == (
        "Of 2 records 1 have a value, 0 are tombstones, 1 were dropped from quarantine, 0 are in quarantine."
    )
    assert quarantine.metadata["dropped_by"].value == {"a test (ada)": 1}
    assert "1 dropped from quarantine: a test (ada)" in said("status", "aged")
