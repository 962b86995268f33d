"""`tidetable init`, and its project beside the code locations of others or inside of one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest
from click.testing import CliRunner

import tidetable
from assets.beta_warnings import without_beta_warnings
from assets.suites import suites
from dagster_project import project
from dagster_project.cli import main
from dagster_project.discover import suites_of, topologies
from dagster_project.settings import Settings, SettingsError
from resources.process import free_port
from tests.dagster.interrupted import interrupted
from tests.dagster.test_definitions import named
from tests.dagster.test_dev import Dagster, until

ROOT = Path(__file__).parents[2]
ENRICHED = dg.AssetKey(["first", "orders_enriched"])

ACME = """
import dagster as dg
from assets.reports import report

running = dg.DefaultSensorStatus.RUNNING
follow = dg.AutomationConditionSensorDefinition(
    "follow", target=[report], default_status=running, minimum_interval_seconds=1
)
defs = dg.Definitions(assets=[report], sensors=[follow])
"""
REPORT = """
import dagster as dg

@dg.asset(deps=[dg.AssetKey(["first", "orders_enriched"])], automation_condition=dg.AutomationCondition.eager())
def report() -> None: ...
"""
WORKSPACE = """
load_from:
  - python_file:
      relative_path: tables/definitions.py
      working_directory: tables
      executable_path: tables/.venv/bin/python
      location_name: tidetable
  - python_file:
      relative_path: acme/definitions.py
      working_directory: acme
      location_name: acme
"""

MATERIALIZED = """
mutation {
  reportRunlessAssetEvents(eventParams: {
    eventType: ASSET_MATERIALIZATION, assetKey: {path: ["first", "orders_enriched"]}
  }) { __typename ... on PythonError { message } }
}
"""
ASSETS = "{ runsOrError { ... on Runs { results { assetSelection { path } } } } }"


def init(*words: str) -> str:
    ran = CliRunner().invoke(main, ["init", *words], catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    return ran.stdout


def test_a_project_is_written_into_a_new_folder(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "tables"
    told = json.loads(init(str(folder), "--json"))
    assert told["folder"] == str(folder)
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert set(told["files"]) == files
    assert files >= {".github/workflows/ci.yml", ".gitignore", "Makefile", "dagster.yaml", "tidetable.toml"}
    assert (folder / "dagster.yaml").read_text() == (ROOT / "dagster.yaml").read_text()
    assert not (folder / "dagster.yaml").is_symlink()
    assert (folder / "requirements.txt").read_text().splitlines()[0] == project.requirement()


def test_nothing_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    (tmp_path / "Makefile").touch()
    for folder, why in ((tmp_path, "already has Makefile"), (tmp_path / "notes", "is a file")):
        refused = CliRunner().invoke(main, ["init", str(folder)])
        assert refused.exit_code == 1
        assert f"{folder} {why}; name a" in refused.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["Makefile", "notes"]
    (tmp_path / "Makefile").unlink()
    init(str(tmp_path))
    assert (tmp_path / "notes").read_text() == "mine"
    assert "topologies" in {path.name for path in tmp_path.iterdir()}


def test_a_project_has_a_topology_its_expectations_and_a_lake_of_its_own(tmp_path: Path) -> None:
    init(str(tmp_path))
    settings = Settings.from_environment({}, tmp_path / "tests")
    (first,) = topologies(settings=settings)
    assert [table.name for table in first.tables] == ["orders", "customers", "orders_enriched", "large_orders"]
    assert list(suites_of(first, [first], [], settings)) == ["first.orders_enriched"]
    assert settings.folder == tmp_path / ".lake"
    ours = tidetable.build_definitions(settings=settings)
    assert ENRICHED in ours.resolve_asset_graph().get_all_asset_keys()
    assert ours.executor is None, "it is for the code location to say"


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    """A project, and a code location of others with a package `assets` of its own, in one workspace."""
    tables, acme = tmp_path / "tables", tmp_path / "acme"
    init(str(tables))
    (tables / ".venv").symlink_to(sys.prefix)
    (acme / "assets").mkdir(parents=True)
    (acme / "assets" / "__init__.py").touch()
    (acme / "assets" / "reports.py").write_text(REPORT)
    (acme / "definitions.py").write_text(ACME)
    (tmp_path / "workspace.yaml").write_text(WORKSPACE)
    return tmp_path


def environment(folder: Path) -> dict[str, str]:
    """Without settings but those of the project."""
    others = {name: value for name, value in os.environ.items() if not name.startswith(("TIDETABLE", "SPARK_REMOTE"))}
    return {**others, "DAGSTER_HOME": str(folder / "tables"), "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.mark.thorough
def test_a_workspace_holds_the_project_beside_a_location_whose_package_is_called_as_one_of_ours(beside: Path) -> None:
    command = [sys.executable, "-m", "dagster", "definitions", "validate", "-w", "workspace.yaml"]
    ran = subprocess.run(command, cwd=beside, env=environment(beside), capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "left out" not in ran.stdout + ran.stderr
    assert not (beside / "tables" / ".lake").exists()


@pytest.mark.thorough
def test_a_new_version_of_our_table_starts_an_asset_of_the_other_location(beside: Path) -> None:
    port = free_port()
    command = [str(Path(sys.executable).parent / "dagster"), "dev", "-w", "workspace.yaml", "-p", str(port)]
    with (
        (beside / "log").open("wb") as log,
        interrupted(command, beside, environment(beside), log.fileno(), (0, 1)),  # 1: as in test_dev
    ):
        dagster = Dagster(port)
        until(dagster.up)
        told = json.dumps(dagster.ask(MATERIALIZED))
        assert "ReportRunlessAssetEventsSuccess" in told, told
        assert until(lambda: dagster.ended("__ASSET_JOB")) == "SUCCESS"
        assert '["report"]' in json.dumps(dagster.ask(ASSETS))


def test_a_downstream_asset_is_started_by_our_table(tmp_path: Path) -> None:
    init(str(tmp_path))
    ours = tidetable.build_definitions(settings=Settings.from_environment({}, tmp_path))
    scope: dict[str, object] = {}
    exec(REPORT, scope)
    report = scope["report"]
    assert isinstance(report, dg.AssetsDefinition)
    theirs = dg.Definitions(assets=[report])
    parents = theirs.resolve_asset_graph().get(report.key).parent_keys
    assert parents == {ENRICHED} <= ours.resolve_asset_graph().get_all_asset_keys()

    with without_beta_warnings(), dg.instance_for_test() as instance:  # Dagster's own way to evaluate them
        instance.report_runless_asset_event(dg.AssetMaterialization(report.key))
        seen = dg.evaluate_automation_conditions(defs=theirs, instance=instance)
        assert seen.total_requested == 0
        instance.report_runless_asset_event(dg.AssetMaterialization(ENRICHED))
        asked = dg.evaluate_automation_conditions(defs=theirs, instance=instance, cursor=seen.cursor)
        assert asked.get_num_requested(report.key) == 1


def test_definitions_are_merged_with_those_of_a_code_location(tmp_path: Path) -> None:
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "one.py").write_text(
        "from tests.dagster.test_definitions import named; topology = named('one', 't')"
    )
    (tmp_path / "tables" / "torn.py").write_text("topology = (")
    settings = Settings(lake=str(tmp_path / "lake"))
    ours = tidetable.build_definitions([named("two", "t"), tmp_path / "tables"], settings=settings)

    @dg.asset(deps=[dg.AssetKey(["one", "t"])])
    def mine() -> None: ...

    merged = dg.Definitions.merge(dg.Definitions(assets=[mine], executor=dg.multiprocess_executor), ours)
    graph = merged.resolve_asset_graph()
    assert {dg.AssetKey(["one", "t"]), dg.AssetKey(["two", "t"]), mine.key} <= graph.get_all_asset_keys()
    assert merged.resolve_job_def("one_tick").executor_def.name == "threads"
    assert "torn_broken" in {sensor.name for sensor in merged.sensors or ()}
    alone = tidetable.build_definitions(named("two", "t"), settings=settings)
    assert dg.AssetKey(["one", "t"]) not in alone.resolve_asset_graph().get_all_asset_keys()
    with pytest.raises(SettingsError, match=r"build_definitions: expectations=.*none: there is no such folder"):
        tidetable.build_definitions(named("two", "t"), expectations=tmp_path / "none", settings=settings)


def test_the_cadence_of_the_settings_is_that_of_every_schedule(tmp_path: Path) -> None:
    (tmp_path / "tidetable.toml").write_text('topologies = []\ncadence = "15 6 * * 1"')
    ours = tidetable.build_definitions(
        [named("one", "t"), named("two", "t")], settings=Settings.from_environment({}, tmp_path)
    )
    crons = {name: ours.resolve_schedule_def(f"{name}_tick_schedule").cron_schedule for name in ("one", "two")}
    assert crons == {"one": "15 6 * * 1", "two": "15 6 * * 1"}
    default = tidetable.build_definitions(named("one", "t"), settings=Settings())
    assert default.resolve_schedule_def("one_tick_schedule").cron_schedule == "*/5 * * * *"


@pytest.mark.parametrize("cadence", ["often", "300", "", "* * * * * *", "61 * * * *"])
def test_a_cadence_that_is_no_cron_expression_is_said_with_its_setting(tmp_path: Path, cadence: str) -> None:
    (tmp_path / "tidetable.toml").write_text(f'cadence = "{cadence}"')
    settings = Settings.from_environment({}, tmp_path)
    with pytest.raises(SettingsError, match=re.escape(f"tidetable.toml: cadence={cadence} is not a cron expression")):
        tidetable.build_definitions(named("one", "t"), settings=settings)
    with pytest.raises(SettingsError, match="TIDETABLE_CADENCE=never is not a cron expression"):
        tidetable.build_definitions(
            named("one", "t"), settings=Settings.from_environment({"TIDETABLE_CADENCE": "never"})
        )


def test_the_templates_suite_is_of_the_templates_topology() -> None:
    (first,) = topologies(settings=Settings(topologies=(str(project.TEMPLATE / "topologies"),)))
    assert list(suites([first], project.TEMPLATE / "expectations")) == ["first.orders_enriched"]


@pytest.mark.thorough
def test_the_projects_own_test_passes(tmp_path: Path) -> None:
    init(str(tmp_path))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
