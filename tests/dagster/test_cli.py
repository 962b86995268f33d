"""The command `tidetable`, on the project's own topology and the lake's own servers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
import click.testing
import pytest
from deltalake import DeltaTable
from pyspark.errors import PySparkException

from dagster_project.cli import main
from resources.embedded_registry import EmbeddedRegistry
from resources.engine import Engine
from resources.kafka import Kafka
from spark.topology import Consumed, StreamsBuilder, Topology
from tests.dagster import shop
from tests.dagster.interrupted import interrupted
from tests.support.lake import Record, send

pytestmark = pytest.mark.filterwarnings("ignore:module 'sre_:DeprecationWarning")  # Great Expectations' imports

Invoke = Callable[..., click.testing.Result]


def invoke(lake: Path, *words: str, **environment: str) -> click.testing.Result:
    """The command, on a lake."""
    runner = click.testing.CliRunner(env={"TIDETABLE_LAKE": str(lake), "COLUMNS": "200", **environment})
    return runner.invoke(main, words, catch_exceptions=False)


@pytest.fixture(scope="module")
def tidetable(engine: Engine, kafka: Kafka, lake_root: Path) -> Invoke:
    """The command, on the lake of this run of tests, whose servers are up; the shop has sold one thing."""
    assert engine.running() is not None
    shop.open_topics(kafka)
    shop.stock(kafka)
    shop.order(kafka, 1)
    shop.put(kafka, "clicks", 1, b"{no json")

    def run(*words: str, **environment: str) -> click.testing.Result:
        return invoke(lake_root, *words, **environment)

    return run


@pytest.fixture(scope="module")
def ran(tidetable: Invoke) -> click.testing.Result:
    """The first tick."""
    return tidetable("run", "shop")


def test_run_tells_every_landing_and_step(ran: click.testing.Result) -> None:
    assert ran.exit_code == 0, ran.output
    assert len(ran.stdout.splitlines()) == 11
    assert "1 in quarantine" in next(line for line in ran.stdout.splitlines() if "shop.clicks landing" in line)
    assert "landed" in ran.stdout
    assert "+1 ~0 -0 rows" in next(line for line in ran.stdout.splitlines() if "shop.large_orders" in line)


@pytest.mark.usefixtures("ran")
def test_status_tells_versions_positions_and_lag(tidetable: Invoke, kafka: Kafka) -> None:
    shop.order(kafka, 2)
    told = json.loads(tidetable("status", "--json").stdout)
    assert told["broker"] == kafka.address
    assert told["engine"].startswith("sc://")
    large = next(table for table in told["topologies"]["shop"] if table["table"] == "large_orders")
    assert large["lag"]["orders"] == 1
    assert large["behind"]
    assert set(large["position"]["inputs"]) == {"orders_enriched", "orders_priced"}
    assert "shop.large_orders" in tidetable("status", "shop").stdout
    assert tidetable("land", "shop.orders").exit_code == 0
    assert "stepped" in tidetable("step", "shop.orders").stdout
    waiting = json.loads(tidetable("status", "--json").stdout)["topologies"]["shop"]
    enriched = next(table for table in waiting if table["table"] == "large_orders")
    assert enriched["waiting_for"] == []


@pytest.mark.usefixtures("ran")
def test_audit_holds_and_a_rebuild_changes_nothing(tidetable: Invoke) -> None:
    audited = json.loads(tidetable("audit", "shop.orders", "--json").stdout)
    assert [(one["table"], one["holds"]) for one in audited] == [("shop/orders", True)]
    tidetable("run", "shop")
    rebuilt = json.loads(tidetable("rebuild", "shop.orders_enriched", "--downstream", "--from-rows", "--json").stdout)
    assert [one["table"] for one in rebuilt] == ["shop/orders_enriched", "shop/large_orders"]
    assert [one[count] for one in rebuilt for count in ("inserted", "updated", "deleted")] == [0] * 6


@pytest.mark.thorough
@pytest.mark.usefixtures("ran")
def test_a_table_is_restored_and_what_differs_fails_the_audit(tidetable: Invoke, kafka: Kafka, lake_root: Path) -> None:
    shop.order(kafka, 5)
    assert tidetable("run", "shop").exit_code == 0
    large = DeltaTable(str(lake_root / "shop" / "large_orders"))
    then = f"{datetime.now(UTC) + timedelta(seconds=1):%Y-%m-%dT%H:%M:%S}"
    time.sleep(1)  # a commit's second is behind it
    was = json.loads(tidetable("restore", "shop.large_orders", "--version", "1", "--json").stdout)
    assert was["deleted"] >= 1, "all but the first order"
    assert was["after"]["position"]["restored"] == 1
    assert f"+{was['deleted']} ~0 -0 rows" in tidetable("restore", "shop.large_orders", "--timestamp", then).stdout
    assert "idle" in tidetable("step", "shop.large_orders").stdout
    assert "one of --version and --timestamp" in tidetable("restore", "shop.large_orders").stderr

    large.update_incremental()
    large.delete("order_id = 1")
    audited = tidetable("audit", "shop.large_orders")
    assert audited.exit_code == 1
    assert "1 key" in audited.stdout
    assert "+1 ~0 -0 rows" in tidetable("rebuild", "shop.large_orders").stdout
    every = tidetable("audit", "shop.large_orders", "--all-versions", "--json")
    assert every.exit_code == 0
    left = {one["version"]: one["why"].partition(":")[0] for one in json.loads(every.stdout) if one["holds"] is None}
    assert left.pop(0) == "created the table, without rows"
    assert set(left.values()) == {"undone by a restore", "made by maintenance or by somebody else"}


@pytest.mark.usefixtures("ran")
def test_quarantine_lists_what_did_not_decode(tidetable: Invoke) -> None:
    told = json.loads(tidetable("quarantine", "list", "shop", "--json").stdout)
    (record,) = told["records"]
    assert told["reasons"] == [{"topic": "clicks", "records": 1, "reason": record["error"]}]
    assert (record["topic"], record["key"], record["value"]) == ("clicks", "1", "{no json")
    assert "does not decode as JSON" in record["error"]
    assert "shop.orders has no records in quarantine" in tidetable("quarantine", "list", "shop.orders").stdout
    assert "0 records, 1 still in quarantine" in tidetable("quarantine", "replay", "shop.clicks").stdout
    where = ("shop.clicks", "--partition", str(record["partition"]), "--offset", str(record["offset"]))
    shown = json.loads(tidetable("quarantine", "show", *where, "--json").stdout)
    assert shown == record | {"key_hex": b"1".hex(), "value_hex": b"{no json".hex(), "headers": []}
    lines = tidetable("quarantine", "show", *where, "--bytes", "4").stdout.splitlines()
    assert "    00000000  7b 6e 6f 20                                      {no " in lines
    assert "    4 more bytes: --bytes, or --json for all of them" in lines
    wrong = tidetable("quarantine", "drop", "shop.clicks", "--reason", "why")
    assert "choose the records by --partition and --offset, or by --error" in wrong.stderr
    assert (
        "name one of its topics: shop."
        in tidetable("quarantine", "drop", "shop", "--error", "x", "--reason", "y").stderr
    )
    other = tidetable("quarantine", "drop", "shop.clicks", "--error", "x", "--reason", "why")
    assert "no record is in quarantine for this reason: x" in other.stderr


@pytest.mark.usefixtures("ran")
def test_all_versions_are_audited_and_files_compacted(tidetable: Invoke) -> None:
    audited = json.loads(tidetable("audit", "shop.products", "--all-versions", "--json").stdout)
    assert audited[0]["holds"]
    assert {one["holds"] for one in audited} == {True, None}
    [left] = [one for one in audited if one["holds"] is None]
    assert (left["version"], left["until"], left["why"]) == (0, 0, "created the table, without rows")
    assert "unprovable" in tidetable("audit", "shop.products", "--all-versions").stdout
    (done,) = json.loads(tidetable("compact", "shop.orders", "--json").stdout)
    assert done["table"] == "shop/orders"
    assert "not --all-versions" in tidetable("audit", "shop.orders", "--all-versions", "--version", "1").stderr


@pytest.mark.thorough
@pytest.mark.usefixtures("ran")
def test_rows_that_fail_the_gate_fail_the_run(tidetable: Invoke, kafka: Kafka) -> None:
    shop.order(kafka, 3, amount="-1.00")
    refused = tidetable("run", "shop", "--json")
    assert refused.exit_code == 1
    told = json.loads(refused.stdout)
    assert list(told["failed"]) == ["orders_enriched"]
    large = next(one for one in told["stepped"] if one["table"] == "shop/large_orders")
    assert large["waiting_for"] == ["orders_enriched"]
    stepped = tidetable("step", "shop.orders_enriched")
    assert stepped.exit_code == 1
    assert "nothing was committed" in stepped.stderr
    shop.order(kafka, 3, amount="1.00")
    assert tidetable("run", "shop").exit_code == 0
    checked = tidetable("check", "shop")
    assert checked.exit_code == 0
    assert "holds" in checked.stdout


@pytest.mark.thorough
@pytest.mark.usefixtures("ran")
def test_rows_let_through_with_a_warning_are_told_by_the_run_by_status_and_by_check(
    tidetable: Invoke, kafka: Kafka
) -> None:
    shop.put(kafka, "customers", 7, {"name": "Ada", "country": "deu"})
    let, lengths = tidetable("run", "shop"), "expect_column_value_lengths_to_equal(column='country', value=2.0)"
    assert let.exit_code == 0
    for said in (let.stdout, tidetable("run", "shop").stdout, tidetable("status", "shop").stdout):
        assert f"newest rows fail, and were committed with a warning: {lengths}" in said
    checked = tidetable("check", "shop.orders_enriched")
    assert checked.exit_code == 0, "a warning"
    assert f"warning: {lengths}: " in checked.stdout
    assert f"rows fail: {lengths}" in tidetable("step", "shop.orders_enriched").stdout
    shop.put(kafka, "customers", 7, {"name": "Ada", "country": "de"})
    assert tidetable("run", "shop").exit_code == 0
    (told_,) = json.loads(tidetable("check", "shop", "--json").stdout)
    assert (told_["table"], told_["failures"]) == ("shop/orders_enriched", [])
    assert "fail" not in tidetable("step", "shop.orders_enriched").stdout


@pytest.mark.usefixtures("ran")
def test_follow_ticks_when_there_is_something_new_and_stops_when_interrupted(kafka: Kafka, lake_root: Path) -> None:
    command = [str(Path(sys.executable).parent / "tidetable"), "run", "shop", "--follow", "--json"]
    environment = {**os.environ, "TIDETABLE_LAKE": str(lake_root)}
    with interrupted(command, lake_root, environment, subprocess.PIPE) as following:
        assert following.stdout is not None
        shop.put(kafka, "clicks", 4, {"sku": "lamp", "at": "2026-11-20T10:00:00Z"})  # no table is behind it
        landed = {one["table"]: one["records"] for one in json.loads(following.stdout.readline())["landed"]}
    assert landed["shop/_landing/clicks"] == 1


def test_describe_prints_the_topology_a_table_and_a_graph(tmp_path: Path) -> None:
    whole = invoke(tmp_path, "describe", "shop").stdout
    assert whole.startswith("Topologies:")
    assert "(topics: [orders])" in whole
    assert "(stores: [orders])" in whole
    assert "primary-key inner join" in invoke(tmp_path, "describe", "shop.large_orders").stdout
    assert invoke(tmp_path, "describe", "shop", "--graph").stdout.startswith("flowchart LR")
    assert json.loads(invoke(tmp_path, "describe", "shop", "--json").stdout)["name"] == "shop"


def test_status_of_a_lake_without_servers_starts_none(tmp_path: Path) -> None:
    told = json.loads(invoke(tmp_path, "status", "--json").stdout)
    assert (told["engine"], told["broker"]) == (None, None)
    assert {table["lag"] for table in told["topologies"]["shop"]} == {None}
    assert invoke(tmp_path, "down").exit_code == 0
    assert not list(tmp_path.glob("*/server.json"))


@pytest.mark.usefixtures("tidetable")
def test_up_finds_servers_that_run(tidetable: Invoke, engine: Engine, kafka: Kafka, lake_root: Path) -> None:
    told = json.loads(tidetable("up", "--json").stdout)
    running = engine.running()
    assert running is not None
    registry = EmbeddedRegistry(lake_root)  # it runs if a test before this one has asked for it
    servers = {"engine": f"sc://{running.address}", "broker": kafka.address, "cluster": kafka.cluster_id()}
    assert told == servers | {"registry": registry.url if registry.running() else None}


@pytest.mark.parametrize(
    ("words", "environment", "message"),
    [
        (["run", "nothing"], {}, "unknown name 'nothing'; known names: shop"),
        (["step", "shop"], {}, "shop is a topology; name one of its tables: shop.orders"),
        (
            ["publish", "shop.orders"],
            {},
            'shop.orders is not published to a topic: append .to("TOPIC") to it, at dagster_project',
        ),
        (["audit", "orders"], {}, "unknown name 'orders'; did you mean shop.orders?; known names: shop, shop.orders"),
        (["run", "shop"], {"TIDETABLE_KAFKA": "/no/such.properties"}, "there is no such file"),
        (["run", "shop"], {"TIDETABLE_LAKE": "s3://bucket"}, "set SPARK_REMOTE=sc://host:port"),
    ],
)
def test_a_mistake_is_one_message(tmp_path: Path, words: list[str], environment: dict[str, str], message: str) -> None:
    result = invoke(tmp_path, *words, **environment)
    assert result.exit_code in (1, 2)
    assert message in result.stderr
    assert "Traceback" not in result.output


def verbs(group: click.Group) -> Iterator[tuple[str, ...]]:
    """All commands, those inside of others by their path."""
    for name, command in sorted(group.commands.items()):
        inside = verbs(command) if isinstance(command, click.Group) else [()]
        yield from ((name, *path) for path in inside)


WRONG = {
    "DIR": [".", "Makefile"],
    "TOPOLOGY": ["nothing", "SHOP", "shop.", ".shop", "shop.orders", ""],
    "[TOPOLOGY]": ["nothing", "SHOP", "shop.", ".shop", "shop.orders", ""],
    "TOPOLOGY...": ["nothing", "SHOP", "shop.", ".shop", "shop.orders", ""],
    "[TOPOLOGY]...": ["nothing", "SHOP", "shop.", ".shop", "shop.orders", ""],
    "TOPOLOGY.TABLE": ["nothing", "shop", "shop.", ".orders", "shop.ORDERS", "shop.orders.x", "shop._landing/orders"],
    "TOPOLOGY[.TABLE]": ["nothing", "shop.", ".orders", "shop.ORDERS", "shop.orders.x", "shop._landing/orders"],
    "TOPOLOGY[.TOPIC]": ["nothing", "shop.", ".orders", "shop.ORDERS", "shop.orders_enriched", "shop._landing/orders"],
    "TOPOLOGY[.TOPIC|.TABLE]": ["nothing", "shop.", ".orders", "shop.ORDERS", "shop.orders.x"],
    "TOPOLOGY.TOPIC": ["nothing", "shop.", ".orders", "shop.ORDERS", "shop.orders_enriched"],
    "TOPIC": ["nothing", "shop.orders"],
    "--key-subject": ["nothing"],
    "--value-subject": ["nothing"],
    "--partition": ["-1", "one"],
    "--offset": ["-1", "one"],
    "--bytes": ["0", "many"],
    "--error": [],  # any text, as is --reason
    "--reason": [],
    "--version": ["-1", "0", "99", "one"],
    "--timestamp": ["1970-01-02", "2100-01-01", "yesterday"],
    "--limit": ["0", "-1", "many"],
    "--partitions": ["0", "-1", "many"],
    "--interval": ["0", "-1", "nan", "often"],
    "KEY": ["one"],
    "START": ["one"],
    "--from": ["one"],
    "--to": ["one"],
    "--column": ["nothing"],
    "--timeout": ["-1", "nan", "soon"],
    "--host": ["no.such.host.invalid"],
    "--port": ["-1", "65536", "http"],
    "--at-least": ["orders", "orders:0", "nothing:0:1"],
    "--as-of-timestamp": ["1970-01-02", "yesterday"],
    "--as-of-version": ["-1", "9999", "one"],
}
"""What is not there, or cannot be meant, for each argument and option of the command that takes a value."""

RIGHT = {
    "TOPOLOGY": "shop",
    "[TOPOLOGY]": "shop",
    "TOPOLOGY...": "shop",
    "[TOPOLOGY]...": "shop",
    "TOPOLOGY[.TOPIC]": "shop.orders",
    "TOPOLOGY.TOPIC": "shop.orders",
    "KEY": "1",
    "START": "1",
}
"""And what is there; of those that are not named here, a table."""


NO_NAME = (
    r"unknown name '{wrong}'(; did you mean shop[\w.]*\?)?; known names: shop|"
    r"shop is a topology; name one of its tables: shop\.orders|"
    r"there is no table '{wrong}'(; did you mean shop\.\w+\?)?; the lake has .*shop\.orders"
)
SAYS = {
    "DIR": "name (a|another) folder",
    "--version": r"Invalid value for '--version'|any version {wrong}\. .*versions 1 to|(no|at) version {wrong}",
    "--timestamp": r"Invalid value for '--timestamp'|any commit (as old as|of) {wrong}",
    **{name: "'one' is no bigint" for name in ("KEY", "START", "--from", "--to")},
    "--column": "has no column nothing; it has order_id",
    "--at-least": "write TOPIC:PARTITION:OFFSET|is not computed from topic 'nothing', but from orders",
    "--as-of-timestamp": "write a time as in|the log begins with version",
    "--as-of-version": "Invalid value for '--as-of-version'|has no version {wrong}: the newest is",
    **{
        option: f"Invalid value for '{option}'"
        for option in ("--limit", "--partitions", "--interval", "--timeout", "--port")
    },
    **{option: f"Invalid value for '{option}'" for option in ("--partition", "--offset", "--bytes")},
    "--host": "the read service needs a token",
    # The second is said if a test before this one has started the registry of the lake.
    **{
        name: "no schema registry is set|has neither of the subjects"
        for name in ("TOPIC", "--key-subject", "--value-subject")
    },
}
"""What the message says, for each of them; of names, `NO_NAME`."""

NEEDS = {
    "restore": ["--version", "1"],
    "quarantine show": ["--partition", "0", "--offset", "0"],
    "quarantine drop": ["--error", "none", "--reason", "a test"],
}
"""What a verb asks for besides its arguments."""


def wrongs() -> Iterator[tuple[tuple[str, ...], str]]:
    """Every verb with every wrong argument, by the command's own declaration, and what the message says."""

    def of(param: str, wrong: str) -> str:
        return SAYS.get(param, NO_NAME).replace("{wrong}", re.escape(wrong))

    for path in verbs(main):
        command: click.Command = main
        for name in path:
            assert isinstance(command, click.Group)
            command = command.commands[name]
        names = [param for param in command.params if isinstance(param, click.Argument)]
        asked = [param.metavar or str(param.name).upper() for param in names]
        right = [RIGHT.get(one, "shop.orders") for one in asked]
        for place, one in enumerate(asked):
            for wrong in WRONG[one]:
                words = (*path, *right[:place], wrong, *right[place + 1 :], *NEEDS.get(" ".join(path), ()))
                yield words, of(one, wrong)
        for param in command.params:
            if isinstance(param, click.Option) and not param.is_flag and not param.is_eager:
                follow = ["--follow"] if "--interval" in param.opts else []
                option = param.opts[0]
                yield from (((*path, *right, *follow, option, wrong), of(option, wrong)) for wrong in WRONG[option])


@pytest.mark.usefixtures("ran")
def test_no_verb_accepts_what_is_not_there(tidetable: Invoke, lake_root: Path) -> None:
    def versions() -> dict[Path, int]:
        return {log: DeltaTable(str(log.parent)).version() for log in sorted((lake_root / "shop").rglob("_delta_log"))}

    before = versions()
    for words, says in wrongs():
        said = tidetable(*words)
        assert said.exit_code in (1, 2), words
        assert "Traceback" not in said.output, words
        assert re.search(f"Error: .*({says})", said.stderr, re.DOTALL), (words, said.stderr)
    assert versions() == before, "nothing was committed"


def test_what_spark_says_is_a_line_and_with_debug_all_of_it(
    tidetable: Invoke, monkeypatch: pytest.MonkeyPatch, lake_root: Path
) -> None:
    said = (
        "it broke\n\nJVM stacktrace:\norg.apache.spark.SparkException\n\tat a.b.C(C.scala:1)\nCaused by: x.Y: no disk"
    )

    def breaks(*_: object) -> None:
        raise PySparkException(said)

    monkeypatch.setattr("spark.engine.compact.compact", breaks)
    ran = tidetable("compact", "shop.orders")
    assert ran.exit_code == 1
    assert "Error: no disk\n" in ran.stderr
    assert "--debug" in ran.stderr
    assert "scala" not in ran.output + ran.stderr
    with pytest.raises(PySparkException, match="scala"):
        tidetable("--debug", "compact", "shop.orders")
    broken = lake_root / "file"
    broken.write_text("")
    ran = tidetable("land", "shop.orders", TIDETABLE_LAKE=str(broken))
    assert ran.exit_code == 1
    assert f"{broken}" in ran.stderr


def test_several_topologies_tick_in_the_order_of_their_names(
    tidetable: Invoke, topic: Callable[..., str], kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = topic("items")
    send(kafka, items, Record(1, {"v": 1}))

    def ticking(name: str) -> Topology:
        builder = StreamsBuilder(name)
        builder.table(items, Consumed.json(key="id bigint", value="v int"))
        return builder.build()

    both = [ticking(f"{name}-{items}") for name in ("one", "two")]
    monkeypatch.setattr("dagster_project.cli.names.topologies", lambda *_: both)
    names = [both[1].name, both[0].name]
    follows = tidetable("run", *names, "--follow")
    assert (follows.exit_code, "--follow takes one topology" in follows.stderr) == (2, True)
    ticks = [json.loads(line) for line in tidetable("run", *names, "--json").stdout.splitlines()]
    assert [one["stepped"][0]["table"] for one in ticks] == [f"{name}/{items}" for name in names]


def test_topics_that_are_not_there_are_created(
    tidetable: Invoke, kafka: Kafka, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("assets.suites.FOLDER", tmp_path)
    there = topic("there", 3)
    builder = StreamsBuilder("created")
    items = builder.table(there, Consumed.json(key="id bigint", value="v int"))
    items.filter("v > 0").materialize("kept").to(f"{there}-kept")
    builder.stream(f"{there}-new", Consumed.json(key="id bigint", value="v int"))
    monkeypatch.setattr("dagster_project.cli.names.topologies", lambda *_: [builder.build()])
    missing = tidetable("run", "created")
    assert missing.exit_code == 1
    assert "tidetable topics create TOPOLOGY" in missing.stderr
    assert f"'{there}-new'" in missing.stderr
    said = json.loads(tidetable("topics", "create", "created", "--partitions", "2", "--json").stdout)
    assert said == {"created": [f"{there}-new", f"{there}-kept"], "there": {there: 3}}
    assert kafka.partitions([there, f"{there}-new", f"{there}-kept"]) == {
        there: 3,
        f"{there}-new": 2,
        f"{there}-kept": 2,
    }
    assert "exists" in tidetable("topics", "create", "created").stdout
    assert tidetable("run", "created").exit_code == 0


@pytest.mark.parametrize("verb", list(verbs(main)), ids=" ".join)
def test_every_verb_says_what_it_does(tmp_path: Path, verb: tuple[str, ...]) -> None:
    helped = invoke(tmp_path, *verb, "-h")
    assert helped.exit_code == 0
    assert "--json" in helped.stdout
