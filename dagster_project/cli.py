"""The command `tidetable`: the functions that Dagster's jobs call, without Dagster."""

from __future__ import annotations

import json
import math
import sys
import time
import traceback
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click
from deltalake.exceptions import DeltaError
from pyspark.errors import PySparkException
from pyspark.errors.exceptions.base import RetriesExceeded
from pyspark.errors.exceptions.connect import SparkConnectGrpcException
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table as Grid

from assets.failures import LASTING, PASSING, lost
from assets.suites import BrokenSuite
from dagster_project import project, told
from dagster_project.discover import BrokenTopology, gates_of, topologies
from dagster_project.settings import Settings, SettingsError
from resources.embedded_kafka import EmbeddedKafka
from resources.jars import JarsUnavailable
from spark.engine.check import check
from spark.engine.compact import compact
from spark.engine.errors import EngineError, cause, engine_died
from spark.engine.land import Landed, capture, land
from spark.engine.late import late
from spark.engine.offsets import KafkaUnavailable, TopicMissing
from spark.engine.publish import Published, publish
from spark.engine.quarantine import redecode, undecodable
from spark.engine.repair import Audited, audit, audits, rebuild, step_or_rebuild
from spark.engine.restore import restore
from spark.engine.status import fingerprint, observe, statuses, with_counts
from spark.engine.step import Stepped
from spark.engine.tick import Told, tick
from spark.topology.nodes import LANDING

if TYPE_CHECKING:
    from collections.abc import Callable

    from dagster_project.told import Json
    from resources.kafka import Kafka
    from resources.lakehouse import Lakehouse
    from resources.tidetable import Tidetable
    from spark.engine.status import TableStatus
    from spark.topology import Topology
    from spark.topology.topology import Source, Table

OURS = (*PASSING, *LASTING, BrokenTopology, BrokenSuite, SettingsError, JarsUnavailable, project.FolderInUse)
AGAIN = 60.0  # seconds until --follow repeats a failed tick if nothing has changed

# In a pipe, a row is one line of any width, without rules.
out = Console(soft_wrap=True, highlight=False, width=None if sys.stdout.isatty() else 100_000)
progress = Console(stderr=True)

POSITIVE = click.IntRange(min=1)
VERSION = click.IntRange(min=0)


class Seconds(click.FloatRange):
    """A number of seconds. Rejects `nan`, which is in every range."""

    def convert(self, value: float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Convert the value of an option to seconds."""
        seconds: float = super().convert(value, param, ctx)
        return self.fail(f"{value} is no number of seconds", param, ctx) if math.isnan(seconds) else seconds


as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, and nothing else.")
topology_name = click.argument("name", metavar="TOPOLOGY")
table_name = click.argument("name", metavar="TOPOLOGY.TABLE")
either_name = click.argument("name", metavar="TOPOLOGY[.TABLE]")
topic_name = click.argument("name", metavar="TOPOLOGY[.TOPIC]")
any_name = click.argument("name", metavar="TOPOLOGY[.TOPIC|.TABLE]")


class Verbs(click.Group):
    """A group of commands that reports an error as one message; with --debug, with Python's and Spark's tracebacks."""

    def invoke(self, ctx: click.Context) -> object:
        """Run a command, and report its error."""
        if ctx.params["debug"]:
            return super().invoke(ctx)
        try:
            return super().invoke(ctx)
        except (RetriesExceeded, SparkConnectGrpcException) as error:
            if not engine_died(error):
                raise unknown(error) from error
            raise click.ClickException(lost(error, Settings.from_environment().tidetable().engine.address)) from error
        except OURS as error:
            raise click.ClickException(str(error)) from error
        except BrokenPipeError:  # the reader of our output has gone, which click ends for
            raise
        except (PySparkException, DeltaError, OSError) as error:
            raise unknown(error) from error


def unknown(error: Exception) -> click.ClickException:
    """The message for an error of a library or of the operating system."""
    said = cause(error) if isinstance(error, PySparkException) else f"{type(error).__name__}: {error}"
    return click.ClickException(f"{said}\nto see where that was, write `tidetable --debug` before the verb")


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.option("--debug", is_flag=True, help="Show where an error was: its traceback, and Spark's own.")
def main(debug: bool) -> None:
    """Kafka topics to always correct Delta tables.

    A TOPOLOGY is one of those in the folders that the settings name, by the name of its builder. Its tables are named
    TOPOLOGY.TABLE, as in shop.orders.

    Settings are environment variables (TIDETABLE_LAKE, TIDETABLE_KAFKA, SPARK_REMOTE, TIDETABLE_ENGINE_MEMORY,
    TIDETABLE_TOPOLOGIES, TIDETABLE_EXPECTATIONS), or keys of tidetable.toml, or of [tool.tidetable] in pyproject.toml,
    in the working directory or above it. `tidetable init DIR` writes a project with all of it.
    """


@main.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@as_json
def init(folder: Path, as_json: bool) -> None:
    """Write a project into a folder that is new or empty.

    It has a topology with its test and its expectations, settings, a workspace for Dagster, a Makefile and CI.
    """
    files = project.write(folder)
    requirement = project.requirement()
    lines = [f"wrote   {folder / file}" for file in files]
    if project.is_local(requirement):
        lines.append(f"requirements.txt has {requirement}, which only this machine has: before CI runs, name another")
    lines.append(f"next    make -C {folder} test    tries the topology; make -C {folder} ui shows it in Dagster")
    told_: list[Json] = [*files]
    say(as_json, {"folder": str(folder), "files": told_}, *map(escape, lines))


@main.command()
@as_json
def up(as_json: bool) -> None:
    """Start the lake's engine and broker, unless they run."""
    tidetable = Settings.from_environment().tidetable()
    with progress.status("starting; a cold engine takes some 20 seconds"), ThreadPoolExecutor() as pool:
        engine = pool.submit(lambda: tidetable.engine.start() and served(tidetable))
        broker = pool.submit(lambda: tidetable.doors().kafka.cluster_id())
        told_: dict[str, Json] = {"engine": engine.result(), "cluster": broker.result(), "broker": address(tidetable)}
    say(as_json, told_, f"engine  {told_['engine']}", f"broker  {told_['broker']}")


@main.command()
@as_json
def down(as_json: bool) -> None:
    """Stop the lake's engine and broker. Tables and topics stay."""
    tidetable = Settings.from_environment().tidetable()
    with progress.status("stopping"):
        tidetable.engine.stop()
        if isinstance(tidetable.kafka, EmbeddedKafka):
            tidetable.kafka.stop()
    say(as_json, {}, "stopped")


@main.command()
@click.argument("names", metavar="[TOPOLOGY]...", nargs=-1)
@click.option("--positions", is_flag=True, help="And what each table was computed from.")
@as_json
def status(names: tuple[str, ...], positions: bool, as_json: bool) -> None:
    """Show where every table stands: version, lag, records in quarantine, what it waits for. Starts nothing.

    lag: records of its topics that it does not have. records: all that have landed; those in quarantine are no rows of
    any table. dropped: records of a stream that had no part in it, late or without a key. gaps: offsets that were gone
    before they were landed.
    """
    tidetable = Settings.from_environment().tidetable()
    engine = served(tidetable)
    lakehouse, kafka = tidetable.lakehouse, tidetable.listening()
    found: dict[str, Json] = {}
    grids: list[str | Grid] = [
        f"engine  {engine or 'down'}",
        f"broker  {address(tidetable) or 'down'}",
    ]
    broken: list[BrokenTopology] = []
    for topology in [topology_of(name) for name in names] or loaded(broken):
        stands, trouble = _stands(lakehouse, kafka, topology)
        stands = with_counts(lakehouse, topology, stands)
        found[topology.name] = [told.status_json(standing) for standing in stands]
        grids += [*told.render_statuses(topology.name, stands, positions), *([trouble] if trouble else [])]
    left_out: list[Json] = [str(one) for one in broken]
    say(as_json, {"engine": engine, "broker": address(tidetable), "topologies": found, "left_out": left_out}, *grids)
    if broken:
        raise click.exceptions.Exit(1)


@main.command()
@either_name
@click.option("--graph", is_flag=True, help="As a Mermaid flowchart.")
@as_json
def describe(name: str, graph: bool, as_json: bool) -> None:
    """Print a topology as Kafka Streams would, or one table in words."""
    topology, table = named(name, tables)
    if graph and table is not None:
        raise click.UsageError(f"--graph draws a whole topology: write `tidetable describe {topology.name} --graph`")
    text = topology.graph() if graph else topology.describe(table)
    whole = not graph and table is None
    say(as_json, told.plain(topology.to_dict()) if whole else {"text": text}, escape(text.rstrip()))


@main.command("land")
@topic_name
@as_json
def land_(name: str, as_json: bool) -> None:
    """Land topics to their end; no table is stepped."""
    topology, topic = named(name, topics)
    doors = Settings.from_environment().doors()
    cut = capture(doors.kafka, topology)
    with progress.status("landing"):
        landed = [land(doors, topology, source, cut, new_run()) for source in sources(topology, topic)]
    say(as_json, told.plain(landed), *map(told.line, landed))


@main.command("step")
@table_name
@as_json
def step_(name: str, as_json: bool) -> None:
    """Step one table to the newest cut that its inputs reached; nothing is landed."""
    topology, table = table_of(name)
    with progress.status("stepping"):
        gate = gates_of(topology).get(table.name)
        stepped = step_or_rebuild(Settings.from_environment().doors(), topology, table, new_run(), gate)
    say(as_json, told.plain(stepped), told.line(stepped))


@main.command()
@topology_name
@click.option("--follow", is_flag=True, help="Tick again whenever there is something new, until interrupted.")
@click.option(
    "--interval",
    type=Seconds(min=0.1, max=86_400),
    default=1.0,
    show_default=True,
    help="Seconds between two looks, with --follow.",
)
@as_json
def run(name: str, follow: bool, interval: float, as_json: bool) -> None:
    """Tick: land every topic and step every table, at one cut; then publish."""
    topology = topology_of(name)
    tidetable = Settings.from_environment().tidetable()
    if not follow:
        if not ticked(tidetable, topology, as_json):
            raise click.exceptions.Exit(1)
        return
    try:
        follow_(tidetable, topology, interval, as_json)
    except KeyboardInterrupt:
        progress.print("stopped; the next run goes on from here")


@main.command("publish")
@table_name
@click.option(
    "--skip-refused", is_flag=True, help="Leave out the records that the topic refuses, and count them in its position."
)
@click.option(
    "--repeat",
    is_flag=True,
    help="Where the topic may have lost its newest records, send again what may have been among them.",
)
@as_json
def publish_(name: str, skip_refused: bool, repeat: bool, as_json: bool) -> None:
    """Bring the topic of one table to its newest version; nothing is landed or stepped."""
    topology, table = table_of(name)
    if table.topic is None:
        raise click.UsageError(f'{name} has no topic: write .to("...") behind it, in {table.line}')
    with progress.status("publishing") as status:
        published = publish(
            Settings.from_environment().doors(),
            topology,
            table,
            lambda sent, records: status.update(f"publishing: {records} records, version {sent.version}"),
            skip_refused=skip_refused,
            repeat=repeat,
        )
    say(as_json, told.plain(published), *map(told.skipped, published.skipped), told.line(published))


@main.command("audit")
@either_name
@click.option("--version", type=VERSION, help="A version of one table; the newest without it.")
@click.option(
    "--all-versions",
    is_flag=True,
    help="Every version that can be computed again, newest first; the others are named, with the reason.",
)
@as_json
def audit_(name: str, version: int | None, all_versions: bool, as_json: bool) -> None:
    """Compute tables again over exactly the inputs their commits name, and compare."""
    topology, table = named(name, tables)
    if version is not None and (table is None or all_versions):
        raise click.UsageError("--version is one version of one table: write TOPOLOGY.TABLE, and no --all-versions")
    doors = Settings.from_environment().doors()
    verdicts: list[Json] = []
    wrong = False
    for target in topology.tables if table is None else (topology.table(table),):
        with progress.status(f"auditing {target.name}") as status:
            try:
                for one in (
                    audits(doors, topology, target) if all_versions else [audit(doors, topology, target, version)]
                ):
                    verdicts.append(told.audited_json(one))
                    wrong |= isinstance(one, Audited) and not one.holds
                    status.update(f"auditing {target.name}, below version {one.version}")
                    if not as_json:
                        out.print(told.verdict(one))
            except EngineError as error:
                if table is not None:
                    raise
                wrong = True  # the other tables are audited all the same
                verdicts.append({"table": f"{topology.name}/{target.name}", "holds": None, "error": str(error)})
                if not as_json:
                    out.print(told.failure(error))
    if as_json:
        say(as_json, verdicts)
    if wrong:
        raise click.exceptions.Exit(1)


@main.command("check")
@either_name
@as_json
def check_(name: str, as_json: bool) -> None:
    """Evaluate the suites of tables on all of their rows, and say how many fail."""
    topology, chosen = named(name, tables)
    found = gates_of(topology)
    if chosen is not None and chosen not in found:
        raise click.UsageError(f"{name} has no suite: write assets/expectations/{name}.json")
    doors, run, wrong = Settings.from_environment().doors(), new_run(), False
    done: list[Json] = []
    for gate_name in found if chosen is None else [chosen]:
        gate = found[gate_name]
        try:
            with progress.status(f"checking {gate_name}"):
                checked = check(doors, topology, topology.table(gate_name), gate, run)
        except LASTING as error:  # the other tables are checked all the same
            wrong = True
            done.append(told.unchecked_json(f"{topology.name}/{gate_name}", error))
            lines = [told.failure(error)]
        else:
            wrong = wrong or (gate.stored is not None and gate.stored.worst == "critical")
            done.append(told.checked_json(checked, gate.stored))
            lines = told.checked(checked, gate.stored)
        if not as_json:
            for line in lines:
                out.print(line)
    say(as_json, done, *([] if done else [f"{name} has no suite"]))
    if wrong:
        raise click.exceptions.Exit(1)


@main.command("rebuild")
@table_name
@click.option("--downstream", is_flag=True, help="And then every table that is computed from it.")
@click.option(
    "--from-rows",
    is_flag=True,
    help="Where inputs no longer tell what a table was computed from, begin anew with the rows that they have.",
)
@as_json
def rebuild_(name: str, downstream: bool, from_rows: bool, as_json: bool) -> None:
    """Compute every row of a table anew, as after a changed definition, and write what differs."""
    topology, table = table_of(name)
    doors, run, all_gates = Settings.from_environment().doors(), new_run(), gates_of(topology)
    targets = (table, *topology.downstream(table.name)) if downstream else (table,)
    rebuilt = []
    shown = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*shown, console=progress, transient=True) as bar:
        task = bar.add_task("", total=len(targets))
        for target in targets:
            bar.update(task, description=f"rebuilding {target.name}")
            gate = all_gates.get(target.name)
            rebuilt.append(rebuild(doors, topology, target, run, gate, from_rows=from_rows))
            bar.advance(task)
            if not as_json:
                out.print(told.line(rebuilt[-1]))
    if as_json:
        say(as_json, [told.plain(one) for one in rebuilt] if downstream else told.plain(rebuilt[0]))


@main.command("restore")
@table_name
@click.option("--version", type=VERSION, help="To what it was at this version of it.")
@click.option("--timestamp", type=click.DateTime(), help="To what it was then, in UTC.")
@as_json
def restore_(name: str, version: int | None, timestamp: datetime | None, as_json: bool) -> None:
    """Put a table back to an earlier version of itself; the next step goes on from there."""
    if (version is None) == (timestamp is None):
        raise click.UsageError("write one of --version and --timestamp")
    topology, table = table_of(name)
    at = None if timestamp is None else round(timestamp.replace(tzinfo=UTC).timestamp() * 1000)
    with progress.status("restoring"):
        doors = Settings.from_environment().doors()
        restored = restore(doors, topology, table, new_run(), version=version, timestamp=at)
    say(as_json, told.plain(restored), told.line(restored))


@main.command("compact")
@either_name
@as_json
def compact_(name: str, as_json: bool) -> None:
    """Write the many small files of tables and landings as few, and remove what is older than a week.

    Versions older than that can then be audited and restored no more.
    """
    topology, table = named(name, tables)
    tidetable = Settings.from_environment().tidetable()
    done = []
    for one in topology.stored if table is None else [table]:
        with progress.status(f"compacting {one}"):
            done.append(compact(tidetable.engine, tidetable.lakehouse, topology, one))
        if not as_json:
            out.print(told.line(done[-1]))
    if as_json:
        say(as_json, told.plain(done))


@main.group("topics")
def topics_() -> None:
    """The topics of a topology: those it reads, and those it publishes to."""


@topics_.command()
@topology_name
@click.option("--partitions", type=POSITIVE, default=1, show_default=True, help="Of each topic that is created.")
@as_json
def create(name: str, partitions: int, as_json: bool) -> None:
    """Create the topics that are not there; those that are stay as they are.

    What is read gets the cluster's own settings. A topic that a table is published to is compacted
    (cleanup.policy=compact), and one that a stream is published to is not.
    """
    topology = topology_of(name)
    kafka = Settings.from_environment().tidetable().cluster()
    wanted: dict[str, dict[str, str]] = {source.topic: {} for source in topology.sources}
    for table in topology.tables:
        if table.topic is not None:
            wanted[table.topic] = {} if table.plan.is_stream else {"cleanup.policy": "compact"}
    there = kafka.partitions(wanted)
    lines = [f"is there  {topic}, partitions: {count}" for topic, count in sorted(there.items())]
    with progress.status("creating"):
        for topic, config in wanted.items():
            if topic not in there:
                kafka.create_topic(topic, partitions, config)
                lines.append(f"created   {topic}, partitions: {partitions}")
    created: list[Json] = [topic for topic in wanted if topic not in there]
    say(as_json, {"created": created, "there": {**there}}, *lines)


@main.group()
def quarantine() -> None:
    """Records that did not decode: they stay in their landing, and out of every table."""


@quarantine.command("list")
@topic_name
@click.option("--limit", type=POSITIVE, default=20, show_default=True, help="The newest so many of each topic.")
@as_json
def list_(name: str, limit: int, as_json: bool) -> None:
    """List them: why, and their raw bytes."""
    topology, topic = named(name, topics)
    doors = Settings.from_environment().doors()
    with progress.status("looking"):
        records = [one for source in sources(topology, topic) for one in undecodable(doors, topology, source, limit)]
    say(as_json, told.plain(records), told.quarantine_grid(records) if records else "nothing is in quarantine")


@quarantine.command("replay")
@topic_name
@as_json
def replay_(name: str, as_json: bool) -> None:
    """Decode them again as their topic is declared now; the next tick takes what does, at its old offset."""
    topology, topic = named(name, topics)
    doors = Settings.from_environment().doors()
    with progress.status("decoding"):
        done = [redecode(doors, topology, source, new_run()) for source in sources(topology, topic)]
    say(as_json, told.plain(done), *map(told.line, done))


@main.command()
@any_name
@as_json
def gaps(name: str, as_json: bool) -> None:
    """List what was gone before it was read, where on_data_loss="ledger" went on without it. Starts nothing."""
    topology, part = named(name, lambda topology: [*topics(topology), *tables(topology)])
    stands = statuses(Settings.from_environment().tidetable().lakehouse, topology, None)
    chosen = [one for one in stands if part is None or one.table.removeprefix(LANDING) == part]
    some = any(one.gaps for one in chosen)
    grid = told.gaps_grid(topology.name, chosen) if some else "no gaps in what has landed"
    broken = [told.failure(one.log_error) for one in chosen if one.log_error is not None]
    say(as_json, told.missing_json(chosen), grid, *told.beginnings(topology.name, chosen), *broken)
    if broken:
        raise click.exceptions.Exit(1)


@main.command("late")
@table_name
@click.option("--limit", type=POSITIVE, default=20, show_default=True, help="The newest so many.")
@as_json
def late_(name: str, limit: int, as_json: bool) -> None:
    """List records of a stream that a table left out: late, or without the key, value or timestamp it needs."""
    topology, table = table_of(name)
    with progress.status("replaying"):
        found = late(Settings.from_environment().doors(), topology, table, limit)
    older = told.older(found)
    nothing = [] if older else ["no record was dropped" if found.computed else f"{name} was never computed"]
    say(as_json, told.plain(found), *([told.late_grid(found.records)] if found.records else nothing), *older)


def follow_(tidetable: Tidetable, topology: Topology, interval: float, as_json: bool) -> None:
    """Tick while something lags, until interrupted. Repeats a failed tick after any change, or `AGAIN` seconds."""
    last, at = "", 0.0
    while True:
        try:
            ends, found = observe(tidetable.lakehouse, tidetable.doors().kafka, topology)
            now = fingerprint(ends, found)
            if any(standing.is_lagging for standing in found) and (now != last or time.monotonic() - at > AGAIN):
                last, at = now, time.monotonic()
                ticked(tidetable, topology, as_json)
        except (RetriesExceeded, SparkConnectGrpcException) as error:
            if not engine_died(error):
                raise
            progress.print(told.failure("the engine stopped answering; the next tick starts it anew"))
            last = ""
        except PASSING as error:
            progress.print(told.failure(error))
            last = ""
        time.sleep(interval)


def ticked(tidetable: Tidetable, topology: Topology, as_json: bool) -> bool:
    """Run one tick and print its events. Returns whether nothing failed."""
    debug = click.get_current_context().find_root().params["debug"]

    def tell(done: Told) -> None:
        if not as_json:
            out.print(told.line(done) if isinstance(done, Landed | Stepped | Published) else told.failure(done))
        if isinstance(done, Exception) and debug:
            traceback.print_exception(done)

    with progress.status("ticking"):
        done = tick(tidetable.doors(), topology, new_run(), gates_of(topology), tell)
    say(as_json, told.ticked_json(done) if as_json else None, *map(told.waits, done.held))
    return not done.failed


def say(as_json: bool, data: Json, *lines: str | Grid) -> None:
    """Print the result: JSON on one line, or text."""
    if as_json:
        click.echo(json.dumps(data))
        return
    for line in lines:
        if isinstance(line, Grid) and not out.is_terminal:
            line.box = None
        out.print(line)


def served(tidetable: Tidetable) -> str | None:
    """The engine's URL without secrets; None if it is the lake's own and does not run."""
    running = tidetable.engine.running()
    return tidetable.engine.address or (None if running is None else f"sc://{running.address}")


def address(tidetable: Tidetable) -> str | None:
    """Kafka's bootstrap servers; None if it is the lake's own broker and does not run."""
    kafka = tidetable.listening()
    return None if kafka is None else kafka.address


def new_run() -> str:
    """A new id, which identifies the commits of this run."""
    return f"cli-{uuid.uuid4().hex}"


def loaded(broken: list[BrokenTopology] | None = None) -> tuple[Topology, ...]:
    """All valid topologies. The errors of the others are printed to standard error, and appended to `broken`."""

    def left_out(one: BrokenTopology) -> None:
        progress.print(f"[red]left out[/]  {escape(str(one))}", soft_wrap=True)
        if broken is not None:
            broken.append(one)

    return topologies(left_out)


def tables(topology: Topology) -> list[str]:
    """The names of a topology's tables."""
    return [table.name for table in topology.tables]


def topics(topology: Topology) -> list[str]:
    """The names of a topology's topics."""
    return [source.topic for source in topology.sources]


def sources(topology: Topology, topic: str | None) -> tuple[Source, ...]:
    """The source of a topic, or all of them."""
    return topology.sources if topic is None else (topology.source(topic),)


def topology_of(name: str) -> Topology:
    """The topology with this name."""
    return named(name, lambda _: [])[0]


def table_of(name: str) -> tuple[Topology, Table]:
    """The table with this name, and its topology."""
    topology, table = named(name, tables)
    if table is None:
        raise click.UsageError(f"{name} is a topology; name one of its tables: {_listed(topology, tables)}")
    return topology, topology.table(table)


def named(name: str, parts: Callable[[Topology], list[str]]) -> tuple[Topology, str | None]:
    """The topology, and the part of it, that a name on the command line means; None for a whole topology."""
    found = loaded()
    for topology in found:
        if name == topology.name:
            return topology, None
        prefix = f"{topology.name}."
        if name.startswith(prefix) and name.removeprefix(prefix) in parts(topology):
            return topology, name.removeprefix(prefix)
    known = [", ".join(filter(None, [topology.name, _listed(topology, parts)])) for topology in found]
    raise click.UsageError(f"there is no {name}; there are: {'; '.join(known) or 'no topologies'}")


def _listed(topology: Topology, parts: Callable[[Topology], list[str]]) -> str:
    return ", ".join(f"{topology.name}.{part}" for part in dict.fromkeys(parts(topology)))


def _stands(lakehouse: Lakehouse, kafka: Kafka | None, topology: Topology) -> tuple[list[TableStatus], str | None]:
    """The state of every landing and table, against the topics if Kafka answers; otherwise with the reason why not."""
    trouble = None
    if kafka is not None:
        try:
            return observe(lakehouse, kafka, topology)[1], None
        except (KafkaUnavailable, TopicMissing) as error:
            trouble = str(error)
    return statuses(lakehouse, topology, None), trouble
