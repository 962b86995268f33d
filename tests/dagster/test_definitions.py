"""What Dagster loads: from a fresh clone, without a broker, an engine or Great Expectations."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import dagster as dg
import pytest
from click.testing import CliRunner

from assets.factory import Circle, NameClash, assets
from assets.suites import BrokenSuite, suites
from dagster_project import cli, discover
from dagster_project.build import definitions_of
from dagster_project.definitions import defs, loaded
from dagster_project.discover import topologies
from dagster_project.settings import Settings
from resources.lakehouse import Lakehouse
from spark.topology import Consumed, StreamsBuilder, Topology

ROOT = Path(__file__).parents[2]
OURS = {"assets", "dagster_project", "resources", "spark", "tidetable"}

KEYS = """
kafka/clicks
kafka/customers
kafka/orders
kafka/products
shop/customers
shop/landing/clicks
shop/landing/customers
shop/landing/orders
shop/landing/products
shop/large_orders
shop/orders
shop/orders_enriched
shop/orders_priced
shop/orders_unclaimed
shop/products
"""


def named(name: str, *topics: str, value: str = "v int") -> Topology:
    builder = StreamsBuilder(name)
    for topic in topics:
        builder.table(topic, Consumed.json(key="id bigint", value=value))
    return builder.build()


def definitions(*topologies: Topology) -> list[dg.AssetsDefinition]:
    return assets(topologies, Lakehouse("lake"), {})


def test_there_is_an_asset_per_topic_landing_and_table() -> None:
    keys = {key.to_user_string() for key in defs.resolve_asset_graph().get_all_asset_keys()}
    assert keys == set(KEYS.split())


def test_a_tick_observes_the_topics_then_lands_then_steps() -> None:
    graph = defs.resolve_asset_graph()
    enriched = graph.get(dg.AssetKey(["shop", "orders_enriched"]))
    assert {key.to_user_string() for key in enriched.parent_keys} == {"shop/orders", "shop/customers", "shop/products"}
    assert graph.get(dg.AssetKey(["shop", "orders"])).parent_keys == {dg.AssetKey(["shop", "landing", "orders"])}
    assert graph.get(dg.AssetKey(["shop", "landing", "orders"])).parent_keys == {dg.AssetKey(["kafka", "orders"])}
    job = defs.resolve_job_def("shop_tick")
    assert {key.to_user_string() for key in job.asset_layer.selected_asset_keys} == set(KEYS.split())
    assert job.executor_def.name == "threads"


def test_a_table_tells_its_plan_its_columns_and_the_line_that_declares_it() -> None:
    spec = defs.resolve_asset_graph().get(dg.AssetKey(["shop", "large_orders"]))
    assert "primary-key inner join on order_id" in (spec.description or "")
    schema = spec.metadata["dagster/column_schema"]
    assert isinstance(schema, dg.TableSchemaMetadataValue)
    assert [column.name for column in schema.value.columns][:2] == ["order_id", "name"]
    references = spec.metadata["dagster/code_references"]
    assert isinstance(references, dg.CodeReferencesMetadataValue)
    (reference,) = references.code_references
    assert isinstance(reference, dg.LocalFileCodeReference)
    assert reference.file_path == str(ROOT / "dagster_project" / "topologies" / "shop.py")
    assert spec.code_version is not None


@pytest.mark.parametrize(
    "folder",
    [pytest.param(ROOT, id="from the root"), pytest.param(Path("/"), id="from elsewhere", marks=pytest.mark.thorough)],
)
def test_the_workspace_validates(folder: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dagster", "definitions", "validate", "-w", str(ROOT / "workspace.yaml")]
    environment = {"PATH": "", "DAGSTER_HOME": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    (tmp_path / "dagster.yaml").write_text((ROOT / "dagster.yaml").read_text())
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "BetaWarning" not in ran.stderr


def test_loading_imports_no_great_expectations_and_starts_nothing(tmp_path: Path) -> None:
    script = (
        "import sys, dagster_project.definitions;"
        "from pyspark.sql.connect.session import SparkSession;"
        "assert 'great_expectations' not in sys.modules;"
        "assert SparkSession.getActiveSession() is None"
    )
    environment = {"TIDETABLE_LAKE": str(tmp_path / "lake"), "PYTHONDONTWRITEBYTECODE": "1"}
    ran = subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=environment, capture_output=True, check=False)
    assert ran.returncode == 0, ran.stderr.decode()
    assert not (tmp_path / "lake").exists()


def test_no_name_at_the_root_shadows_a_dependency() -> None:
    # Dagster's webserver has the root first on its path: a module here would be imported instead of a library's.
    modules = {path.stem for path in ROOT.glob("*.py")}
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert modules | packages == OURS | {"tests"}


def test_the_package_names_are_ours_alone() -> None:
    for name in OURS:
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert Path(str(spec.origin)) == ROOT / name / "__init__.py"
        assert set(packages_distributions().get(name, ["tidetable"])) == {"tidetable"}


def test_topologies_may_share_a_topic() -> None:
    keys = [key for asset in definitions(named("a", "t", "u"), named("b", "t")) for key in asset.keys]
    assert keys.count(dg.AssetKey(["kafka", "t"])) == 1
    assert dg.AssetKey(["a", "landing", "t"]) in keys
    assert dg.AssetKey(["b", "landing", "t"]) in keys


def test_names_that_dagster_cannot_tell_apart_are_refused() -> None:
    with pytest.raises(NameClash, match=r"x-y, .*x\.y of a: Dagster has one name for both"):
        definitions(named("a", "x-y", "x.y"))


def answering(name: str, asked: str, answer: str) -> Topology:
    """A topology that publishes its answers to a topic."""
    builder = StreamsBuilder(name)
    topic = builder.table(asked, Consumed.json(key="id bigint", value="v int"))
    topic.filter("v > 1").materialize("answers").to(answer)
    return builder.build()


def test_topologies_that_would_read_their_own_answers_are_refused() -> None:
    with pytest.raises(Circle, match="kafka/y -> b/landing/y -> b/y -> b/answers -> kafka/x"):
        definitions(answering("a", "x", "y"), answering("b", "y", "x"))
    assert definitions(answering("a", "x", "y"), answering("b", "y", "z"))


def test_topologies_that_conflict_take_no_other_down() -> None:
    given = [
        *(answering("a", "x", "y"), answering("b", "y", "x"), named("other", "t")),
        *(named("c-d", "u"), named("c.d", "u")),
    ]
    loaded = definitions_of(Settings.from_environment({}).model_copy(update={"topologies": ()}), given)
    names = {sensor.name for sensor in loaded.sensors or () if isinstance(sensor, dg.SensorDefinition)}
    assert names == {"a_broken", "b_broken", "c_d_broken", "other_lag"}


def test_topologies_whose_names_differ_in_case_alone_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    written(
        monkeypatch, tmp_path, "one", "from tests.dagster.test_definitions import named; topology = named('shop', 't')"
    )
    written(
        monkeypatch, tmp_path, "two", "from tests.dagster.test_definitions import named; topology = named('Shop', 't')"
    )
    with pytest.raises(discover.BrokenTopology, match=r"one\.py defines topology 'shop', and .*two\.py defines 'Shop'"):
        discover.topologies()


def written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, text: str) -> None:
    """A file in the folder of topologies."""
    monkeypatch.setenv("TIDETABLE_TOPOLOGIES", str(tmp_path))
    (tmp_path / f"{name}.py").write_text(text)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("empty", "", r"empty\.py has no topology: end it with"),
        ("mistaken", "topology = unknown", r"mistaken\.py:1: NameError: name 'unknown' is not defined"),
        ("unfinished", "topology = (", r"unfinished\.py: SyntaxError: '\(' was never closed"),
    ],
)
def test_a_broken_topology_file_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, text: str, message: str
) -> None:
    written(monkeypatch, tmp_path, name, text)
    with pytest.raises(discover.BrokenTopology, match=message):
        discover.topologies()


def test_a_broken_topology_takes_no_other_down(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sound = "from tests.dagster.test_definitions import named; topology = named('{0}', 't')"
    written(
        monkeypatch, tmp_path, "mistaken", "import spark.topology as t; t.StreamsBuilder('other'); topology = unknown"
    )
    for name in ("twin_a", "twin_b"):
        (tmp_path / f"{name}.py").write_text(sound.format("twin"))
    for name in ("suited", "whole"):
        (tmp_path / f"{name}.py").write_text(sound.format(name))
    folder = tmp_path / "expectations"
    folder.mkdir()
    (folder / "mistaken.t.json").write_text("its suite waits")
    (folder / "other.t.json").write_text("so does that of its builder")
    (folder / "suited.t.json").write_text("no JSON")
    monkeypatch.setenv("TIDETABLE_EXPECTATIONS", str(folder))
    told = ["mistaken.py:1: NameError", "rename one of the two", "suited.t.json is not JSON"]

    found = loaded()
    assert {spec.key.path[0] for spec in found.resolve_all_asset_specs()} == {"kafka", "whole"}
    broken = {one.name: one for one in found.sensors or () if one.name.endswith("_broken")}
    assert set(broken) == {"mistaken_broken", "twin_broken", "suited_broken"}
    for sensor, why in zip(broken.values(), told, strict=True):
        assert isinstance(sensor, dg.SensorDefinition)
        with dg.DagsterInstance.ephemeral() as instance, pytest.raises(dg.Failure, match=why):
            sensor(dg.build_sensor_context(instance=instance))

    runner = CliRunner(env={"TIDETABLE_LAKE": str(tmp_path / "lake")})
    shown = runner.invoke(cli.main, ["status", "--json"], catch_exceptions=False)
    assert shown.exit_code == 1
    assert set(json.loads(shown.stdout)["topologies"]) == {"whole", "suited"}
    assert [text for text in told[:2] if not any(text in one for one in json.loads(shown.stdout)["left_out"])] == []
    described = runner.invoke(cli.main, ["describe", "whole"], catch_exceptions=False)
    assert described.exit_code == 0
    assert "Topologies" in described.stdout
    assert "mistaken.py:1: NameError" in described.stderr
    assert "mistaken.py:1: NameError" in runner.invoke(cli.main, ["describe", "mistaken"]).stderr
    assert discover.gates_of(topologies(lambda _: None)[1]) == {}
    with pytest.raises(BrokenSuite, match="is not JSON"):
        discover.gates_of(topologies(lambda _: None)[0])
    (folder / "whoel.t.json").write_text("of nobody")
    with pytest.raises(BrokenSuite, match="not named like a table"):
        discover.gates_of(topologies(lambda _: None)[1])


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        (
            "a.nothing.json",
            {"name": "s", "expectations": [{"type": "t"}]},
            "not named like a table: name it .* one of: a.t",
        ),
        ("a.t.yaml", {"name": "s", "expectations": [{"type": "t"}]}, "not named like a table"),
        ("a.t.json", {"name": "s", "expectations": [{"kwargs": {}}]}, "write {"),
        ("a.t.json", {"name": "s"}, "write {"),
        ("a.t.json", {"name": "s", "expectations": [{"type": "t", "severity": "fatal"}]}, "unknown severity fatal"),
    ],
)
def test_a_broken_suite_is_named(tmp_path: Path, file: str, text: object, message: str) -> None:
    (tmp_path / file).write_text(json.dumps(text))
    with pytest.raises(BrokenSuite, match=f"{file}.*{message}"):
        suites([named("a", "t")], tmp_path)


BETWEEN = "expect_column_values_to_be_between"
NOT_NULL = "expect_column_values_to_not_be_null"


@pytest.mark.parametrize(
    ("expectation", "message"),
    [
        (
            {"type": BETWEEN, "kwargs": {"column": "valeu", "min_value": 0}},
            f"{BETWEEN} names the column 'valeu', which a.t does not have (did you mean 'value'?); its columns are: "
            "id, value",
        ),
        (
            {"type": "expect_column_pair_values_to_be_equal", "kwargs": {"column_A": "id", "column_B": "x"}},
            "expect_column_pair_values_to_be_equal names the column 'x', which a.t does not have; its columns are: "
            "id, value",
        ),
        (
            {"type": BETWEEN, "kwargs": {"column": "id", "min_value": "zero"}},
            f"{BETWEEN} compares 'id' of a.t, which is bigint, with min_value 'zero': write a value of that type",
        ),
        (
            {"type": BETWEEN, "kwargs": {"column": "value", "max_value": 5}},
            f"{BETWEEN} compares 'value' of a.t, which is string, with max_value 5: write a value of that type",
        ),
        (
            {"type": BETWEEN, "kwargs": {"column": "at", "min_value": 5}},
            f"{BETWEEN} compares 'at' of a.t, which is timestamp, with min_value 5: write a value of that type",
        ),
        (
            {"type": "expect_column_values_to_be_in_set", "kwargs": {"column": "id", "value_set": [1, "two"]}},
            "compares 'id' of a.t, which is bigint, with value_set 'two': write a value of that type",
        ),
        (
            {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "_timestmp"}},
            "names the column '_timestmp', which a.t does not have (did you mean '_timestamp'?)",
        ),
        (
            {"type": "expect_table_columns_to_match_set", "kwargs": {"column_set": ["id", "valeu"]}},
            "names the column 'valeu', which a.t does not have (did you mean 'value'?)",
        ),
        *(
            ({"type": NOT_NULL, "kwargs": {"column": "id", "row_condition": text, "condition_parser": parser}}, told)
            for text, parser, told in (
                ("valeu = 'x'", "spark", "row_condition of expect_column_values_to_not_be_null"),
                ('col("valeu").notNull()', "great_expectations", "names the column 'valeu', which a.t does not have"),
                (
                    {"type": "nullity", "column": {"name": "valeu"}},
                    None,
                    "names the column 'valeu', which a.t does not have",
                ),
            )
        ),
    ],
)
def test_a_suite_names_the_column_that_a_table_does_not_have_or_that_is_of_another_type(
    tmp_path: Path, expectation: object, message: str
) -> None:
    (tmp_path / "a.t.json").write_text(json.dumps({"name": "s", "expectations": [expectation]}))
    with pytest.raises(BrokenSuite, match=re.escape(message)):
        suites([named("a", "t", value="value string, at timestamp")], tmp_path)


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("expect_column_value_lengths_to_be_between", {"min_value": 1, "max_value": 9}),
        ("expect_column_unique_value_count_to_be_between", {"min_value": 1}),
        ("expect_column_proportion_of_unique_values_to_be_between", {"min_value": 0.5}),
    ],
)
def test_bounds_that_are_no_values_of_the_column_need_not_be_of_its_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, arguments: dict[str, object]
) -> None:
    monkeypatch.setattr("assets.suites._check_expectations", lambda _: None)  # Great Expectations takes seconds
    expectation = {"type": kind, "kwargs": {"column": "value", **arguments}}
    (tmp_path / "a.t.json").write_text(json.dumps({"name": "s", "expectations": [expectation]}))
    assert list(suites([named("a", "t", value="value string")], tmp_path)) == ["a.t"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"name": "\xff"}', "is not JSON"),
        (b'{"name": "s", "expectations": [], "expectations": [{"type": "t"}]}', "duplicate key 'expectations'"),
        (b'{"name": "s", "expectation": [], "expectations": [{"type": "t"}]}', "unknown key 'expectation' .did you"),
        (b'{"name": "s", "expectations": [{"type": "t", "severty": "info"}]}', "unknown key 'severty' .did you mean"),
        (b'{"name": "s", "expectations": [{"type": "t", "mostly": 0.5}]}', "unknown key 'mostly'.*in kwargs"),
    ],
)
def test_a_suite_that_would_not_be_read_whole_is_refused(tmp_path: Path, text: bytes, message: str) -> None:
    (tmp_path / "a.t.json").write_bytes(text)
    with pytest.raises(BrokenSuite, match=f"a.t.json.*{message}"):
        suites([named("a", "t")], tmp_path)


@pytest.mark.thorough
def test_great_expectations_judges_names_and_arguments_when_definitions_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDETABLE_CACHE", str(tmp_path / "cache"))
    right = {"type": BETWEEN, "kwargs": {"column": "id", "min_value": 0}}
    misspelt = [
        {"type": "expect_column_values_to_be_betwen", "kwargs": {"column": "id", "min_value": 0}},
        {"type": BETWEEN, "kwargs": {"column": "id", "min_value": 0, "max_valu": 9}, "severity": "warning"},
        {"type": BETWEEN, "kwargs": {"column": "id", "min_value": [1]}},
        {"type": "unexpected_rows_expectation", "kwargs": {"unexpected_rows_query": "SELECT 1"}},
        {"type": "expect_column_values_to_be_of_type", "kwargs": {"column": "id", "type_": "Longtype"}},
    ]
    folder = tmp_path / "expectations"
    folder.mkdir()
    file = folder / "a.t.json"
    file.write_text(json.dumps({"name": "s", "expectations": [right, *misspelt]}))
    with pytest.raises(BrokenSuite) as broken:
        suites([named("a", "t")], folder)
    told = str(broken.value).splitlines()
    unknown = "Great Expectations has no expect_column_values_to_be_betwen"
    assert told[0] == f"{file}: expectation 2: {unknown} (did you mean '{BETWEEN}'?)"
    assert told[1] == (
        f"{file}: expectation 3, {BETWEEN}: max_valu: extra fields not permitted (did you mean 'max_value'?)"
    )
    assert told[2].startswith(f"{file}: expectation 4, {BETWEEN}: min_value: ")
    assert told[-2] == (
        f"{file}: expectation 5, unexpected_rows_expectation: unexpected_rows_query: write {{batch}} for the rows"
    )
    assert told[-1] == (
        f"{file}: expectation 6, expect_column_values_to_be_of_type: type_: Spark has no type 'Longtype' "
        f"(did you mean 'LongType'?)"
    )

    file.write_text(json.dumps({"name": "s", "expectations": [right]}))
    assert list(suites([named("a", "t")], folder)) == ["a.t"]
    # The same text is not asked about again: that takes seconds.
    monkeypatch.setattr(subprocess, "run", None)
    assert list(suites([named("a", "t")], folder)) == ["a.t"]
