"""Ticks as Dagster runs them, on the real engine and broker: nothing twice, nothing bad published."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import execute_run
from deltalake import DeltaTable
from pyspark.sql import DataFrame

from assets.gates import Refused, SuiteGate
from assets.suites import Expectation, Suite, suites
from dagster_project.definitions import definitions
from dagster_project.discover import topologies
from resources.embedded_kafka import EmbeddedKafka
from resources.engine import Engine
from resources.kafka import Kafka
from resources.lakehouse import Lakehouse
from resources.tidetable import Tidetable
from spark.engine.land import capture
from spark.engine.log.position import Gated
from spark.engine.offsets import TopicOffsets
from spark.engine.status import statuses
from spark.topology import Consumed, StreamsBuilder, Topology

# Great Expectations', while it is imported.
pytestmark = pytest.mark.filterwarnings("ignore:module 'sre_:DeprecationWarning")

Result = dg.ExecuteInProcessResult | dg.JobExecutionResult

SUITE = {
    "name": "enriched",
    "expectations": [
        {"type": "expect_column_values_to_be_between", "kwargs": {"column": "amount", "min_value": 0}},
        {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "name"}, "severity": "warning"},
    ],
}


@dataclass(frozen=True)
class Shop:
    """Two topics, a checked join of their tables, and a table behind the join; as Dagster has them."""

    tidetable: Tidetable
    kafka: Kafka
    topology: Topology
    defs: dg.Definitions
    instance: dg.DagsterInstance

    def put(self, source: int, *records: tuple[int, dict[str, object] | None]) -> None:
        """Records of orders (source 0) or customers (source 1): JSON, or a tombstone."""
        producer = self.kafka.producer()
        for key, value in records:
            data = None if value is None else json.dumps(value)
            producer.produce(self.topology.sources[source].topic, key=str(key), value=data)
        producer.flush()

    def tick(self) -> Result:
        """A run of the tick job, by its own executor: `execute_in_process` would bring another one."""
        job = self.defs.resolve_job_def("runs_tick")
        return execute_run(InMemoryJob(job), self.instance.create_run_for_job(job), self.instance)

    def materialize(self, *names: str) -> dg.ExecuteInProcessResult:
        """A run of a few assets, as from the UI."""
        job = self.defs.resolve_implicit_global_asset_job_def()
        keys = [dg.AssetKey(["runs", *name.split("/")]) for name in names]
        return job.execute_in_process(instance=self.instance, asset_selection=keys, raise_on_error=False)

    def look(self) -> dg.SkipReason | dg.RunRequest:
        """What the lag sensor says now."""
        (sensor,) = self.defs.sensors or ()
        assert isinstance(sensor, dg.SensorDefinition)
        context = dg.build_sensor_context(instance=self.instance, resources={"tidetable": self.tidetable})
        said = sensor(context)
        assert isinstance(said, dg.SkipReason | dg.RunRequest)
        return said

    def rows(self, table: str) -> set[tuple[object, ...]]:
        """The user's columns of a table's rows."""
        session = self.tidetable.engine.session()
        try:
            stored = session.read.format("delta").load(self.tidetable.lakehouse.table("runs", table))
            return {tuple(row) for row in stored.drop("_timestamp", "_topic", "_partition", "_offset").collect()}
        finally:
            session.stop()

    def versions(self) -> dict[str, int]:
        """The newest version of every landing and table."""
        names = [source.landing for source in self.topology.sources] + [table.name for table in self.topology.tables]
        return {name: DeltaTable(self.tidetable.lakehouse.table("runs", name)).version() for name in names}


@pytest.fixture(scope="module")
def shop(
    engine: Engine,
    kafka: Kafka,
    lakehouse: Lakehouse,
    topic: Callable[..., str],
    tmp_path_factory: pytest.TempPathFactory,
    instance: dg.DagsterInstance,
) -> Shop:
    """The shop, with two orders and two customers, one of them without a name; not yet run."""
    builder = StreamsBuilder("runs")
    orders = builder.table(
        topic("orders", 2), Consumed.json(key="order_id bigint", value="customer_id bigint, amount bigint")
    )
    customers = builder.table(topic("customers"), Consumed.json(key="customer_id bigint", value="name string"))
    enriched = orders.join(customers, on="customer_id", select=["left.*", "right.name"]).materialize("enriched")
    enriched.filter("amount >= 100").materialize("large")
    topology = builder.build()
    folder = tmp_path_factory.mktemp("expectations")
    (folder / "runs.enriched.json").write_text(json.dumps(SUITE))
    tidetable = Tidetable(engine, lakehouse, kafka)
    defs = definitions([topology], tidetable, suites([topology], folder))
    shop = Shop(tidetable, kafka, topology, defs, instance)
    shop.put(0, (1, {"customer_id": 7, "amount": 50}), (2, {"customer_id": 8, "amount": 200}))
    shop.put(1, (7, {"name": "Ada"}), (8, {"name": None}))
    return shop


@pytest.fixture(scope="module")
def first(shop: Shop) -> Result:
    """The first tick."""
    return shop.tick()


def told(result: Result) -> dict[str, dg.AssetMaterialization]:
    """The materializations of a run, by their keys below the topology's."""
    events = [event.materialization for event in result.get_asset_materialization_events()]
    return {"/".join(event.asset_key.path[1:]): event for event in events}


def outcomes(result: Result) -> dict[str, object]:
    """What each materialization says it did."""
    return {name: event.metadata["batch/outcome"].value for name, event in told(result).items()}


def check(result: Result) -> dg.AssetCheckEvaluation:
    """The evaluation of the one suite."""
    (evaluation,) = (one for one in result.get_asset_check_evaluations() if one.check_name.startswith("gx_"))
    return evaluation


def check_of(result: Result, table: str) -> dg.AssetCheckEvaluation:
    """The evaluation of the one check of a table."""
    (evaluation,) = [one for one in result.get_asset_check_evaluations() if one.asset_key.path[-1] == table]
    return evaluation


def failing(result: Result) -> list[tuple[object, object]]:
    """The samples that the check shows, and how grave they are."""
    table = check(result).metadata["failing_expectations"]
    assert isinstance(table, dg.TableMetadataValue)
    return [(record.data["sample"], record.data["severity"]) for record in table.records]


def stored_failing(result: Result) -> list[object]:
    """How many rows that were there fail, by expectation, as the check shows it."""
    table = check(result).metadata["stored_rows_failing"]
    assert isinstance(table, dg.TableMetadataValue)
    return [record.data["rows"] for record in table.records]


def test_a_run_materializes_everything(shop: Shop, first: Result) -> None:
    assert first.success
    assert set(outcomes(first).values()) == {"landed", "stepped"}
    assert shop.rows("enriched") == {(1, 7, 50, "Ada"), (2, 8, 200, None)}
    assert shop.rows("large") == {(2, 8, 200, None)}


def test_a_run_tells_offsets_rows_and_versions(shop: Shop, first: Result) -> None:
    landing = told(first)[f"landing/{shop.topology.sources[0].topic}"]
    enriched = told(first)["enriched"]
    assert landing.metadata["kafka/start_offsets"] == dg.MetadataValue.json({"0": 0, "1": 0})
    assert set(landing.metadata) >= {"kafka/next_offsets", "position", "delta/version", "batch/duration_s"}
    counts = ("batch/records_in", "batch/errors", "kafka/lag_after", "dagster/row_count")
    assert [landing.metadata[name].value for name in counts] == [2, 0, 0, 2]
    counts = ("batch/rows_inserted", "batch/rows_updated", "batch/rows_deleted", "dagster/row_count")
    assert [enriched.metadata[name].value for name in counts] == [2, 0, 0, 2]
    assert (enriched.tags or {})["dagster/data_version"] == str(shop.versions()["enriched"])


def test_a_warning_is_told_and_holds_nothing_back(first: Result) -> None:
    assert not check(first).passed
    assert check(first).severity == dg.AssetCheckSeverity.WARN
    assert failing(first) == [('[{"order_id": 2, "name": null}]', "warning")]


def test_a_run_with_nothing_new_changes_nothing(shop: Shop, first: Result) -> None:
    before = shop.versions()
    again = shop.tick()
    assert again.success
    assert set(outcomes(again).values()) == {"idle"}
    assert shop.versions() == before
    # The rows that were warned of are still there, and the check still says so.
    assert check(again).passed == check(first).passed
    assert check(again).severity == check(first).severity


@pytest.mark.usefixtures("first")
def test_the_sensor_asks_for_a_tick_exactly_when_something_is_behind(shop: Shop) -> None:
    assert isinstance(shop.look(), dg.SkipReason)
    shop.put(0, (3, {"customer_id": 7, "amount": 300}))
    asked = shop.look()
    assert isinstance(asked, dg.RunRequest)
    assert shop.look() == asked  # the same state of things, the same run key: Dagster starts one run
    job = shop.defs.resolve_job_def("runs_tick")
    running = shop.instance.create_run_for_job(job_def=job, status=dg.DagsterRunStatus.STARTED)
    assert isinstance(shop.look(), dg.SkipReason)
    shop.instance.delete_run(running.run_id)
    assert shop.tick().success
    assert isinstance(shop.look(), dg.SkipReason)
    assert (3, 7, 300, "Ada") in shop.rows("large")


def operated(shop: Shop, verb: str, op: str = "", **config: object) -> dg.ExecuteInProcessResult:
    """Run one of a topology's operations."""
    job, run_config = (
        shop.defs.resolve_job_def(f"runs_{verb}"),
        {"ops": {f"runs_{op}": {"config": config}} if op else {}},
    )
    return job.execute_in_process(instance=shop.instance, run_config=run_config, raise_on_error=False)


@pytest.mark.usefixtures("first")
def test_rebuild_and_restore_are_jobs_whose_tables_are_materialized(shop: Shop) -> None:
    before = shop.rows("large")
    rebuilt = operated(shop, "rebuild", "rebuild_table", table="enriched", downstream=True)
    assert rebuilt.success
    made = [event for event in rebuilt.all_events if event.is_step_materialization]
    assert [event.asset_key for event in made] == [dg.AssetKey(["runs", name]) for name in ("enriched", "large")]
    restored = operated(shop, "restore", "restore_table", table="large", version=1)
    assert restored.success
    assert shop.rows("large") == {(2, 8, 200, None)}, "what the first tick made of it"
    refused = operated(shop, "restore", "restore_table", table="large", timestamp="2100-01-01T00:00")
    assert not refused.success
    now = datetime.now(UTC).isoformat()
    nothing = operated(shop, "restore", "restore_table", table="large", timestamp=now)
    assert not nothing.success, "that is what it is"
    assert shop.tick().success
    assert shop.rows("large") == before
    audited = operated(shop, "audit", "audit_tables", tables=["large"], all_versions=True)
    assert audited.success
    assert len(audited.get_asset_observation_events()) >= 2, "the restore, and what it put back"


def test_the_sensor_says_what_it_cannot_see_and_starts_nothing(shop: Shop, tmp_path: Path) -> None:
    engine, lakehouse = shop.tidetable.engine, shop.tidetable.lakehouse
    assert "does not run; start it: tidetable up" in said(shop, Tidetable(engine, lakehouse, EmbeddedKafka(tmp_path)))
    assert not any(tmp_path.iterdir())
    builder = StreamsBuilder("runs")
    builder.table("no-such-topic", Consumed.json(key="id bigint", value="v int"))
    unknown = replace(shop, defs=definitions([builder.build()], shop.tidetable, {}))
    assert "has no topic 'no-such-topic'" in said(unknown, shop.tidetable)


def said(shop: Shop, tidetable: Tidetable) -> str:
    """Why the sensor asks for nothing."""
    answer = replace(shop, tidetable=tidetable).look()
    assert isinstance(answer, dg.SkipReason)
    return answer.skip_message or ""


@pytest.mark.usefixtures("first")
def test_a_topic_that_was_recreated_is_behind_whatever_its_offsets_are(shop: Shop) -> None:
    ends = capture(shop.kafka, shop.topology)
    assert not any(status.is_lagging for status in statuses(shop.tidetable.lakehouse, shop.topology, ends))
    anew = {topic: TopicOffsets("another-id", end.offsets) for topic, end in ends.items()}
    found = statuses(shop.tidetable.lakehouse, shop.topology, anew)
    assert all(status.is_lagging for status in found)
    landings = [status for status in found if status.table.startswith("_landing/")]
    assert all("was deleted and created again" in str(status.refused) for status in landings)
    all_of_it = sum(sum(end.offsets.values()) for end in anew.values())
    assert sum(sum((status.lag or {}).values()) for status in landings) == all_of_it


@pytest.mark.usefixtures("first")
def test_a_landing_and_a_table_materialize_alone(shop: Shop) -> None:
    orders = shop.topology.sources[0].topic
    shop.put(0, (4, {"customer_id": 7, "amount": 40}))
    before = shop.versions()
    assert outcomes(shop.materialize(f"landing/{orders}")) == {f"landing/{orders}": "landed"}
    assert outcomes(shop.materialize(orders)) == {orders: "stepped"}
    assert outcomes(shop.materialize("enriched")) == {"enriched": "stepped"}
    assert {name for name, version in shop.versions().items() if version != before[name]} == {
        f"_landing/{orders}",
        orders,
        "enriched",
    }
    assert shop.tick().success


@pytest.mark.usefixtures("first")
def test_rows_that_fail_the_gate_are_not_published_until_they_are_corrected(shop: Shop) -> None:
    shop.put(0, (5, {"customer_id": 7, "amount": -500}), (6, {"customer_id": 7, "amount": 600}))
    before = shop.versions()
    refused = shop.tick()
    assert not refused.success
    assert refused.get_failed_step_keys() == {"runs__enriched"}
    assert not check(refused).passed
    assert check(refused).severity == dg.AssetCheckSeverity.ERROR
    assert failing(refused) == [('[{"order_id": 5, "amount": -500}]', "critical")]
    assert "large" not in outcomes(refused)
    assert {n: shop.versions()[n] for n in ("enriched", "large")} == {n: before[n] for n in ("enriched", "large")}
    # A table behind it that is run by itself stays at the last good version.
    assert outcomes(shop.materialize("large")) == {"large": "idle"}
    assert isinstance(shop.look(), dg.RunRequest)

    shop.put(0, (5, {"customer_id": 7, "amount": 500}))
    corrected = shop.tick()
    assert corrected.success
    assert check(corrected).passed
    assert {(5, 7, 500, "Ada"), (6, 7, 600, "Ada")} <= shop.rows("large")


@pytest.mark.usefixtures("first")
def test_an_audit_observes_that_every_table_holds(shop: Shop) -> None:
    audited = shop.defs.resolve_job_def("runs_audit").execute_in_process(
        instance=shop.instance, run_config={"ops": {"runs_audit_tables": {"config": {"tables": ["enriched"]}}}}
    )
    assert audited.success
    (event,) = audited.get_asset_observation_events()
    assert event.asset_key == dg.AssetKey(["runs", "enriched"])
    assert event.asset_observation_data.asset_observation.metadata["audit/differing"] == dg.MetadataValue.int(0)


@pytest.mark.usefixtures("first")
def test_an_audit_that_finds_a_difference_fails_and_tells_it(shop: Shop) -> None:
    DeltaTable(shop.tidetable.lakehouse.table("runs", "large")).delete("order_id = 2")
    audited = operated(shop, "audit", "audit_tables", tables=["large", "enriched"])
    (event,) = [event for event in audited.all_events if event.is_step_failure]
    assert "1 keys differ" in (event.step_failure_data.user_failure_data.description or "")  # type: ignore[union-attr]  # ours
    assert len(audited.get_asset_observation_events()) == 2, "one table that differs keeps no other from its audit"
    assert operated(shop, "rebuild", "rebuild_table", table="large", from_rows=True).success
    assert (2, 8, 200, None) in shop.rows("large")


@pytest.mark.usefixtures("first")
def test_where_everything_stands_is_observed_by_a_job(shop: Shop) -> None:
    shop.put(1, (9, {"name": "Bea"}))
    orders, customers = (source.topic for source in shop.topology.sources)
    looked = operated(shop, "status")
    assert looked.success
    events = [event.asset_observation_data.asset_observation for event in looked.get_asset_observation_events()]
    found = {"/".join(event.asset_key.path[1:]): event.metadata for event in events}
    assert found.keys() == {f"landing/{orders}", f"landing/{customers}", orders, customers, "enriched", "large"}
    assert {name for name, told in found.items() if told["behind"].value} == found.keys() - {
        f"landing/{orders}",
        orders,
    }
    assert found["large"]["lag"].value == {orders: 0, customers: 1}
    assert "position" in found["large"]


@pytest.mark.usefixtures("first")
def test_what_an_operation_is_asked_wrongly_it_says(shop: Shop) -> None:
    for verb, op, config, words in (
        ("rebuild", "rebuild_table", {"table": "larg"}, "runs has no table larg; it has "),
        ("restore", "restore_table", {"table": "large"}, "write either version or timestamp"),
        ("restore", "restore_table", {"table": "large", "timestamp": "noon"}, "noon is not a time in ISO 8601"),
    ):
        failed = operated(shop, verb, op, **config)
        (event,) = [event for event in failed.all_events if event.is_step_failure]
        assert words in (event.step_failure_data.user_failure_data.description or "")  # type: ignore[union-attr]  # ours


@pytest.mark.usefixtures("first")
def test_what_is_in_quarantine_is_listed_and_decoded_again_by_jobs(shop: Shop) -> None:
    orders = shop.topology.sources[0].topic
    shop.put(0, (9, {"customer_id": 7, "amount": "many"}))
    assert shop.tick().success
    listed = operated(shop, "quarantine_list", "list_records", topics=[orders])
    [told] = [event.asset_observation_data.asset_observation for event in listed.get_asset_observation_events()]
    table = told.metadata["quarantine/records"]
    assert isinstance(table, dg.TableMetadataValue)
    [record] = table.records
    assert (record.data["topic"], record.data["key"]) == (orders, "9")
    assert "many" in str(record.data["value"])
    assert quarantined(shop) == {0: 1}

    # Declared without what is wrong, it decodes.
    source = shop.topology.sources[0]
    lenient = replace(source, consumed=Consumed.json(key="order_id bigint", value="customer_id bigint"))
    made = replace(shop.topology, sources=(lenient, *shop.topology.sources[1:]))
    assert quarantined(replace(shop, defs=definitions([made], shop.tidetable, {}))) == {1: 0}
    assert shop.tick().success
    assert (9, 7, None, "Ada") in shop.rows("enriched")


def quarantined(shop: Shop) -> dict[object, object]:
    """How many records of orders a replay decoded, and how many it did not."""
    done = operated(shop, "quarantine_replay", "redecode_records", topics=[shop.topology.sources[0].topic])
    assert done.success
    [told] = [event.asset_observation_data.asset_observation for event in done.get_asset_observation_events()]
    return {told.metadata["quarantine/decoded"].value: told.metadata["quarantine/left"].value}


@pytest.mark.thorough
@pytest.mark.usefixtures("first")
def test_maintenance_compacts_and_changes_no_row(shop: Shop) -> None:
    before = shop.rows("large")
    assert shop.defs.resolve_job_def("maintenance").execute_in_process(instance=shop.instance).success
    assert shop.rows("large") == before
    assert set(outcomes(shop.tick()).values()) == {"idle"}


@pytest.mark.usefixtures("first")
def test_the_schedule_runs_the_tick(shop: Shop) -> None:
    schedule = shop.defs.resolve_schedule_def("runs_tick_schedule")
    assert schedule.job_name == "runs_tick"
    (request,) = schedule.evaluate_tick(dg.build_schedule_context(instance=shop.instance)).run_requests or ()
    job = shop.defs.resolve_job_def(schedule.job_name)
    ran = job.execute_in_process(instance=shop.instance, run_config=request.run_config, tags=dict(request.tags))
    assert ran.success


def test_the_checks_of_the_project_are_suites_of_great_expectations() -> None:
    import great_expectations as gx

    found = suites(topologies())
    assert "shop.orders_enriched" in found
    for suite in found.values():
        assert gx.ExpectationSuite(**json.loads(suite.text)).expectations != []


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        # The frame lacks the column.
        ("expect_column_values_to_not_be_null", r'could not be evaluated: .*"name"'),
        # Great Expectations has it for other engines than Spark.
        ("expect_column_kl_divergence_to_be_less_than", "Great Expectations failed: KeyError"),
        # Great Expectations leaves it out; only a suite that was not validated has it.
        ("expect_column_values_to_be_betwen", "1 expectations of .*did not evaluate them"),
    ],
)
def test_an_expectation_that_was_not_evaluated_refuses_whatever_its_severity(shop: Shop, kind: str, told: str) -> None:
    asked: list[Expectation] = [
        {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "order_id"}},
        {"type": kind, "kwargs": {"column": "name"}, "severity": "warning"},
    ]
    suite = Suite("s", Path("runs.large.json"), json.dumps({"name": "s", "expectations": asked}), tuple(asked))
    gate = SuiteGate(shop.topology, shop.topology.table("large"), suite)
    session = shop.tidetable.engine.session()
    try:
        frame = session.createDataFrame([(1,)], "order_id bigint")
        with pytest.raises(Refused, match=told):
            gate(frame, lambda: frame, Gated(gate.digest, 0, {}))
        with pytest.raises(Refused, match=told):
            gate.look(frame)
    finally:
        session.stop()


def test_what_is_expected_of_rows_together_is_asked_of_the_whole_table(shop: Shop) -> None:
    asked: list[Expectation] = [
        {"type": "expect_column_values_to_be_unique", "kwargs": {"column": "name"}},
        {"type": "expect_column_max_to_be_between", "kwargs": {"column": "amount", "min_value": 1}},
        {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "name"}, "severity": "warning"},
    ]
    suite = Suite("s", Path("runs.large.json"), json.dumps({"name": "s", "expectations": asked}), tuple(asked))
    gate = SuiteGate(shop.topology, shop.topology.table("large"), suite)
    known, unique = Gated(gate.digest, 3, {}), "expect_column_values_to_be_unique(column='name')"
    session = shop.tidetable.engine.session()

    def frame(*rows: tuple[int, str | None, int]) -> DataFrame:
        return session.createDataFrame(list(rows), "order_id bigint, name string, amount bigint")

    try:
        new, twice = frame((2, "Ada", 5)), frame((1, "Ada", 5), (2, "Ada", 5))
        with pytest.raises(Refused, match="to_be_unique"):
            gate(new, lambda: twice, known)
        # What the table failed before refuses no step, and is told until it holds.
        looked = replace(known, failing=gate.look(twice))
        assert looked.failing == {unique: 2}
        stays = gate(new, lambda: twice, looked)
        assert stays == replace(known, let_through={unique: 2})
        assert gate(new, lambda: twice, stays) == stays
        mended = gate(frame((1, None, 5)), lambda: frame((1, None, 5), (2, "Ada", 5)), stays)
        assert list(mended.let_through.values()) == [1], "the row without a name, as a warning"
        with pytest.raises(Refused, match="to_be_unique"):
            gate(new, lambda: twice, mended)
        # A step that only deletes; and a table without rows has no greatest amount.
        assert gate(frame(), lambda: new, looked) == known
        assert gate(frame(), frame, looked) == known
        assert gate.look(frame()) == {}
    finally:
        session.stop()


@pytest.mark.thorough
@pytest.mark.usefixtures("first")
def test_a_new_suite_says_how_many_rows_of_before_fail_it(shop: Shop, tmp_path: Path) -> None:
    limit = {"type": "expect_column_values_to_be_between", "kwargs": {"column": "amount", "max_value": 150}}
    (tmp_path / "runs.large.json").write_text(json.dumps({"name": "limit", "expectations": [limit]}))
    defs = definitions([shop.topology], shop.tidetable, suites([shop.topology], tmp_path))
    checked, before = replace(shop, defs=defs), shop.versions()["large"]
    failing = len([row for row in shop.rows("large") if isinstance(row[2], int) and row[2] > 150])
    assert failing > 0

    for outcome in ("positioned", "idle"):  # it looks once, and keeps what it saw
        ran = checked.materialize("large")
        assert outcomes(ran) == {"large": outcome}
        assert not check(ran).passed
        assert check(ran).severity == dg.AssetCheckSeverity.WARN, "others have them already"
        assert stored_failing(ran) == [failing]
        assert f"({failing})" in (check(ran).description or "")
    assert shop.versions()["large"] == before + 1

    ran = operated(checked, "check", "check_tables", tables=["large"])
    assert not ran.success, "as `tidetable check` says by its exit code"
    (event,) = ran.get_asset_observation_events()
    metadata = event.asset_observation_data.asset_observation.metadata
    told = metadata["check/failing"]
    assert isinstance(told, dg.JsonMetadataValue)
    assert isinstance(told.data, list)
    assert [(one["rows"], one["severity"]) for one in told.data] == [(failing, "critical")]
    assert shop.versions()["large"] == before + 1, "no news"

    # New rows that hold change nothing of the old ones; what no suite saw is looked at when there is one again.
    shop.put(0, (40, {"customer_id": 7, "amount": 120}))
    assert not check_of(checked.tick(), "large").passed
    shop.put(0, (41, {"customer_id": 7, "amount": 900}))
    assert shop.tick().success
    ran = checked.materialize("large")
    assert stored_failing(ran) == [failing + 1]
