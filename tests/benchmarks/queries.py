"""(i) Queries of one table of 1 M rows after small steps: a key, a range and a history, beside DuckDB and Spark.

Also the read service with several clients, and how long a follower's commit comes after its leader's. `--scale 10` is
10 M rows and 1,000 small steps, which take an hour.

DuckDB reads the Parquet files as they are: without its extension for Delta it does not apply deletion vectors, so its
rows are not compared. deltalake and Spark apply them, and must return the row that the reader returns.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.client import HTTPConnection
from threading import Event
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa  # type: ignore[import-untyped]  # has no types of its own
from deltalake import DeltaTable, QueryBuilder

from spark.engine.compact import compact
from spark.engine.log.stored_table import StoredTable
from spark.engine.tick import tick
from spark.query.reader import Reader
from spark.topology import Consumed, StreamsBuilder
from tests.benchmarks.measure import Row, row
from tests.benchmarks.shop import produce

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark.query.table_reader import TableReader
    from spark.topology import Topology
    from tests.benchmarks.measure import Bench

ROWS = 1_000_000
STEPS = 40
LONG, LONG_STEPS = 10, 1_000  # from this scale on, as many small steps
FASTEST = 20  # milliseconds that a key may take of a warm reader, and twice as many from `LONG` on
CLIENTS = 8  # of the read service
SERVED = 250  # keys that each of them asks for
FOLLOWED = 20  # steps of a leader that are followed
PAUSE = 0.1  # seconds between two ticks of a follower
CHANGED = 100  # keys of a small step
LOOKUPS = 500
RANGE = 1_000  # keys
COLD = """
import sys
from spark.query.reader import Reader
print(Reader(sys.argv[1]).table("queries.queries").get(int(sys.argv[2])) is not None)
"""


def run(bench: Bench) -> list[Row]:
    """Milliseconds of each query, after small steps and after a compaction."""
    count, rng = bench.scaled(ROWS), random.Random(1)
    builder = StreamsBuilder("queries")
    value = "customer_id bigint, amount decimal(12,2), title string"
    builder.table("queries", Consumed.json(key="id bigint", value=value))
    topology = builder.build()
    bench.kafka.create_topic("queries", 4)
    keys = list(range(count))
    rng.shuffle(keys)
    produce(bench.kafka, "queries", ((key, _order(key, 0)) for key in keys))
    assert tick(bench.ports, topology, "bench").failed == {}
    steps = LONG_STEPS if bench.scale >= LONG else STEPS
    for number in bench.progress(range(1, steps + 1), "small steps"):
        produce(bench.kafka, "queries", ((key, _order(key, number)) for key in rng.sample(keys, CHANGED)))
        assert tick(bench.ports, topology, "bench").failed == {}
    after = _measured(bench, keys, f"{steps} small steps", rng)
    after += _served(bench, keys, f"{steps} small steps")
    done = compact(bench.ports.engine, bench.lakehouse, topology, "queries")
    bench.say(f"compaction: {done.removed} files to {done.added} in {done.seconds:.1f} s")
    after += _measured(bench, keys, "a compaction", rng)
    return [*after, *_followed(bench, topology, keys, rng)]


def _order(key: int, number: int) -> bytes:
    return json.dumps({"customer_id": key % 50_000, "amount": f"{number}.50", "title": f"title {key * 31}"}).encode()


def _measured(bench: Bench, keys: list[int], when: str, rng: random.Random) -> list[Row]:
    path = bench.lakehouse.table("queries", "queries")
    table = Reader(bench.lakehouse).table("queries.queries")
    table.get(keys[0])
    table.get(keys[0])  # the second query reads the small files
    lookups = [_ms(partial(table.get, key)) for key in rng.sample(keys, min(LOOKUPS, len(keys)))]
    lookups.sort()
    at_most = FASTEST * (2 if bench.scale >= LONG else 1)
    starts = [rng.randrange(max(1, len(keys) - RANGE)) for _ in range(bench.repeat)]
    some = rng.sample(keys, bench.repeat)
    found = [
        row(f"a key, warm reader, after {when}: p50", [statistics.median(lookups)], "ms", at_most=at_most),
        row(f"a key, warm reader, after {when}: p99", [lookups[int(len(lookups) * 0.99)]], "ms"),
        row(f"a key, cold process, after {when}", [_ms(partial(_cold, bench, key)) for key in some], "ms"),
        row(
            f"{RANGE} keys, after {when}",
            [_ms(partial(table.range, low, low + RANGE - 1)) for low in starts],
            "ms",
        ),
        row(f"history of a key, after {when}", [_ms(partial(table.history, key)) for key in some], "ms"),
    ]
    return [*found, *_peers(bench, path, table, some, when)]


def _peers(bench: Bench, path: str, table: TableReader, some: list[int], when: str) -> list[Row]:
    """A key read by deltalake, by DuckDB and by Spark, each warm."""
    delta = DeltaTable(path)
    query = QueryBuilder().register("t", delta)
    session = bench.engine.session()
    frame = session.read.format("delta").load(path)
    files = [uri.removeprefix("file://") for uri in delta.file_uris()]
    ours = {key: table.get(key) for key in some}
    with duckdb.connect(config={"threads": 2}) as connection:
        readers: dict[str, Callable[[int], list[dict[str, Any]]]] = {
            "deltalake": lambda key: _rows(pa.table(query.execute(f"SELECT * FROM t WHERE id = {key}").read_all())),
            "DuckDB on the files": lambda key: _rows(
                connection.execute("FROM read_parquet(?) WHERE id = ?", [files, key]).to_arrow_table()
            ),
            "Spark": lambda key: [one.asDict() for one in frame.where(f"id = {key}").collect()],
        }
        found = []
        for name, read in readers.items():
            read(some[0])
            found.append(row(f"a key, {name}, after {when}", [_ms(partial(read, key)) for key in some], "ms"))
            for key in some if name != "DuckDB on the files" else ():
                [theirs] = read(key)
                assert {column: theirs[column] for column in ours[key] or {}} == ours[key]
    session.stop()
    return found


def _served(bench: Bench, keys: list[int], when: str) -> list[Row]:
    """Keys that the read service, in a process of its own, returns to several clients at once."""
    token = secrets.token_urlsafe()
    command = [sys.executable, "-m", "tidetable", "serve", "--port", "0"]
    environment = {**os.environ, "TIDETABLE_LAKE": str(bench.lake), "TIDETABLE_SERVE_TOKEN": token}
    server = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    said = server.stderr.readline()
    _, is_up, address = said.partition("http://127.0.0.1:")
    if not is_up:
        raise RuntimeError(f"{' '.join(command)}: {said}{server.communicate()[1]}")
    port = int(address.partition(";")[0])

    def ask(number: int) -> list[float]:
        rng, connection, taken = random.Random(number), HTTPConnection("127.0.0.1", port), []
        for key in rng.sample(keys, SERVED):
            began = time.perf_counter()
            path = f"/tables/queries.queries/get?key={key}"
            connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
            answer = json.loads(connection.getresponse().read())
            taken.append(1000 * (time.perf_counter() - began))
            assert answer["row"]["id"] == key
        connection.close()
        return taken

    try:
        with ThreadPoolExecutor(CLIENTS) as pool:
            ask(-1)  # the first requests read the small files
            began = time.perf_counter()
            taken = sorted(one for each in pool.map(ask, range(CLIENTS)) for one in each)
            seconds = time.perf_counter() - began
    finally:
        server.terminate()
        server.communicate()
    return [
        row(f"keys of the service, {CLIENTS} clients, after {when}", [len(taken) / seconds], "1/s"),
        row(f"a key of the service, {CLIENTS} clients, after {when}: p50", [statistics.median(taken)], "ms"),
        row(f"a key of the service, {CLIENTS} clients, after {when}: p99", [taken[int(len(taken) * 0.99)]], "ms"),
    ]


def _followed(bench: Bench, leader: Topology, keys: list[int], rng: random.Random) -> list[Row]:
    """Milliseconds from a commit of the leader to the follower's commit that has it; each ticks by itself."""
    builder = StreamsBuilder("following")
    value = "customer_id bigint, amount decimal(12,2), title string"
    read = builder.read_only_table("q", from_="queries.queries", key="id bigint", value=value)
    read.filter("customer_id < 500").materialize("some")
    follower = builder.build()
    assert tick(bench.ports, follower, "bench").failed == {}
    first = _stored(bench, leader, "queries").version()
    done = Event()

    def follow() -> None:
        while not done.wait(PAUSE):
            assert tick(bench.ports, follower, "bench").failed == {}

    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(follow)
        try:
            for number in bench.progress(range(FOLLOWED), "followed steps"):
                changed = rng.sample(keys, CHANGED)
                changed += [key for key in keys[: 50 * CHANGED] if key % 50_000 < 500][:CHANGED]
                produce(bench.kafka, "queries", ((key, _order(key, number)) for key in changed))
                assert tick(bench.ports, leader, "bench").failed == {}
        finally:
            done.set()
        following.result()
    assert tick(bench.ports, follower, "bench").failed == {}
    led = [commit for commit in _stored(bench, leader, "queries").commits() if commit.version > first]
    seen = [
        (commit.position.inputs["queries/queries"].version, commit.at)
        for commit in _stored(bench, follower, "some").commits()
    ]
    lags = sorted(min(at for version, at in seen if version >= commit.version) - commit.at for commit in led)
    return [
        row("a follower behind its leader: p50", [statistics.median(lags)], "ms"),
        row("a follower behind its leader: greatest", [lags[-1]], "ms"),
    ]


def _stored(bench: Bench, topology: Topology, table: str) -> StoredTable:
    return StoredTable.of(bench.lakehouse, topology.name, table)


def _rows(table: pa.Table) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table.to_pylist()
    return found


def _cold(bench: Bench, key: int) -> None:
    command = [sys.executable, "-c", COLD, str(bench.lake), str(key)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "True\n"


def _ms(query: Callable[[], object]) -> float:
    began = time.perf_counter()
    query()
    return 1000 * (time.perf_counter() - began)
