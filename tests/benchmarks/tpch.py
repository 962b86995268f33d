"""(k) Three of TPC-H's queries as tables: chains of foreign keys below an aggregate, and what a refresh costs.

The schema and the proportions are TPC-H's, on a generator of our own, which also leaves out columns that no query here
reads. A refresh deletes orders with their line items, and inserts as many new ones, as TPC-H's refresh functions do.
Ours follows the changes. A join that another join reads is stored: a view would be computed again inside the query that
reads it. Plain Spark and DuckDB compute the query again from the tables of the topics. DuckDB gets these through
deltalake, which applies deletion vectors.
"""

from __future__ import annotations

import json
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import TYPE_CHECKING

from spark.topology import Consumed, StreamsBuilder
from tests.benchmarks.duck import answer, rows, same
from tests.benchmarks.measure import Row, row
from tests.benchmarks.shop import produce
from tests.benchmarks.ticking import Parts, ticked

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark.topology import Topology
    from spark.topology.handles import GlobalKTable, KTable
    from tests.benchmarks.measure import Bench

SIZES = {"customer": 15_000, "supplier": 1_000, "orders": 150_000}  # at TPC-H's scale factor 0.1
WARM = 0.02  # of these sizes: a run that only warms the engine up
REFRESHED = 100  # of so many orders one is deleted, or inserted
FIRST_DAY, DAYS = date(1992, 1, 1), 2406  # of orders: to 1998-08-02
SEGMENTS = ("AUTOMOBILE", "BUILDING", "FURNITURE", "HOUSEHOLD", "MACHINERY")
REGIONS = ("AFRICA", "AMERICA", "ASIA", "EUROPE", "MIDDLE EAST")
NATIONS = 25  # five of each region

CHUNK = 50_000  # orders that are generated before they are sent

Value = dict[str, int | str]
"""The value of a record, as JSON has it."""

DECLARED = {
    "region": ("r_regionkey bigint", "r_name string"),
    "nation": ("n_nationkey bigint", "n_name string, n_regionkey bigint"),
    "supplier": ("s_suppkey bigint", "s_name string, s_nationkey bigint"),
    "customer": (
        "c_custkey bigint",
        "c_name string, c_address string, c_nationkey bigint, c_phone string, c_acctbal decimal(15,2), "
        "c_mktsegment string",
    ),
    "orders": ("o_orderkey bigint", "o_custkey bigint, o_orderdate date, o_shippriority int"),
    "lineitem": (
        "l_orderkey bigint, l_linenumber int",
        "l_suppkey bigint, l_quantity decimal(15,2), l_extendedprice decimal(15,2), l_discount decimal(15,2), "
        "l_returnflag string, l_shipdate date",
    ),
}
"""By topic, the columns of key and value."""
EARNED = "CAST(l_extendedprice * (1 - l_discount) AS decimal(18,4))"


@dataclass
class Data:
    """The rows that were sent so far, as far as the generator must know them."""

    bench: Bench
    prefix: str
    part: float = 1.0
    _rng: random.Random = field(default_factory=lambda: random.Random(10))
    _lines: dict[int, int] = field(default_factory=dict)
    """By order, its number of line items; the oldest order first."""
    _next: int = 0

    def size(self, name: str) -> int:
        """How many rows a table has."""
        return max(int(self.bench.scaled(SIZES[name]) * self.part), NATIONS)

    def fill(self) -> None:
        """Create the topics, and send every row."""
        for topic in DECLARED:
            self.bench.kafka.create_topic(self.prefix + topic, 4)
        self._send("region", ((n, {"r_name": name}) for n, name in enumerate(REGIONS)))
        self._send("nation", ((n, {"n_name": f"NATION {n}", "n_regionkey": n % len(REGIONS)}) for n in range(NATIONS)))
        numbers = range(self.size("supplier"))
        self._send("supplier", ((n, {"s_name": f"Supplier {n}", "s_nationkey": n % NATIONS}) for n in numbers))
        self._send("customer", ((n, self._customer(n)) for n in range(self.size("customer"))))
        self._insert(self.size("orders"))

    def refresh(self) -> None:
        """Delete the oldest orders with their line items, and insert as many new ones: half of one in a hundred each.

        So one in a hundred orders and line items changes.
        """
        count = max(self.size("orders") // REFRESHED // 2, 1)
        oldest = list(self._lines)[:count]
        gone = [_line_key(order, line) for order in oldest for line in range(1, self._lines.pop(order) + 1)]
        self._send("lineitem", ((key, None) for key in gone))
        self._send("orders", ((order, None) for order in oldest))
        self._insert(count)

    def _insert(self, count: int) -> None:
        end = self._next + count
        while self._next < end:
            self._insert_some(range(self._next, min(self._next + CHUNK, end)))

    def _insert_some(self, numbers: range) -> None:
        orders: list[tuple[int, Value]] = []
        items: list[tuple[str, Value]] = []
        for number in numbers:
            day = FIRST_DAY + timedelta(self._rng.randrange(DAYS))
            # A third of the customers has no orders, as in TPC-H.
            customer = self._rng.randrange(self.size("customer") * 2 // 3)
            orders.append((number, {"o_custkey": customer, "o_orderdate": str(day), "o_shippriority": 0}))
            self._lines[number] = self._rng.randrange(1, 8)
            items += [(_line_key(number, line), self._line_item(day)) for line in range(1, self._lines[number] + 1)]
        self._next = numbers.stop
        self._send("orders", orders)
        self._send("lineitem", items)

    def _send(self, topic: str, records: Iterable[tuple[int | str, Value | None]]) -> None:
        values = ((key, None if value is None else json.dumps(value).encode()) for key, value in records)
        produce(self.bench.kafka, self.prefix + topic, values)

    def _customer(self, number: int) -> Value:
        return {
            "c_name": f"Customer#{number:09}",
            "c_address": f"address {self._rng.randrange(10**9)}",
            "c_nationkey": self._rng.randrange(NATIONS),
            "c_phone": f"{self._rng.randrange(10**10):010}",
            "c_acctbal": _cents(self._rng.randrange(-99_999, 1_000_000)),
            "c_mktsegment": self._rng.choice(SEGMENTS),
        }

    def _line_item(self, ordered: date) -> Value:
        quantity = self._rng.randrange(1, 51)
        shipped = ordered + timedelta(self._rng.randrange(1, 122))
        return {
            "l_suppkey": self._rng.randrange(self.size("supplier")),
            "l_quantity": f"{quantity}.00",
            "l_extendedprice": _cents(quantity * self._rng.randrange(90_000, 200_000)),
            "l_discount": _cents(self._rng.randrange(11)),
            "l_returnflag": self._rng.choice("RA") if shipped < date(1995, 6, 17) else "N",
            "l_shipdate": str(shipped),
        }


def _cents(count: int) -> str:
    return f"{'-' if count < 0 else ''}{abs(count) // 100}.{abs(count) % 100:02}"


def _line_key(order: int, line: int) -> str:
    return f'{{"l_orderkey":{order},"l_linenumber":{line}}}'


@dataclass(frozen=True)
class Sources:
    """A builder, with the topics as tables."""

    builder: StreamsBuilder
    prefix: str

    def table(self, topic: str) -> KTable:
        """A topic as a table."""
        key, value = DECLARED[topic]
        return self.builder.table(self.prefix + topic, Consumed.json(key=key, value=value))

    def global_table(self, topic: str) -> GlobalKTable:
        """A topic as a global table."""
        key, value = DECLARED[topic]
        return self.builder.global_table(self.prefix + topic, Consumed.json(key=key, value=value))


@dataclass(frozen=True)
class Query:
    """A query as a topology, whose last table is `answer`, and as SQL for Spark and for DuckDB; its topics."""

    declare: Callable[[Sources], KTable]
    sql: str
    topics: tuple[str, ...]

    def topology(self, name: str, prefix: str = "tpch-") -> Topology:
        """The topology of that name."""
        builder = StreamsBuilder(name)
        self.declare(Sources(builder, prefix)).materialize("answer")
        return builder.build()


def q3(sources: Sources) -> KTable:
    """Shipping priority: the revenue of every open order of one segment. TPC-H's ten greatest are the reader's."""
    customers = sources.table("customer").filter("c_mktsegment = 'BUILDING'")
    orders = sources.table("orders").filter("o_orderdate < DATE'1995-03-15'")
    owned = orders.join(customers, on="o_custkey", select=["left.o_orderdate", "left.o_shippriority"])
    owned.materialize("owned_orders")
    items = sources.table("lineitem").filter("l_shipdate > DATE'1995-03-15'").map_values(f"{EARNED} AS earned")
    sold = items.join(owned, on="l_orderkey", select=["left.earned", "right.o_orderdate", "right.o_shippriority"])
    return sold.group_by("l_orderkey", "o_orderdate", "o_shippriority").aggregate(revenue="sum(earned)")


def q5(sources: Sources) -> KTable:
    """Local supplier volume: the revenue by nation of a region, where customer and supplier are of one nation."""
    nations = sources.global_table("nation").join(
        sources.global_table("region").filter("r_name = 'ASIA'"), on="n_regionkey", select="left.n_name"
    )
    orders = sources.table("orders").filter("o_orderdate >= DATE'1994-01-01' AND o_orderdate < DATE'1995-01-01'")
    owned = orders.join(sources.table("customer"), on="o_custkey", select="right.c_nationkey")
    owned.materialize("owned_orders")
    items = sources.table("lineitem").map_values(["l_suppkey", f"{EARNED} AS earned"])
    sold = items.join(owned, on="l_orderkey", select=["left.l_suppkey", "left.earned", "right.c_nationkey"])
    sold.materialize("sold_items")
    supplied = sold.join(
        sources.table("supplier"), on="l_suppkey", select=["left.earned", "left.c_nationkey", "right.s_nationkey"]
    )
    local = supplied.filter("c_nationkey = s_nationkey").materialize("local_items")
    return (
        local.join(nations, on="s_nationkey", select=["left.earned", "right.n_name"])
        .group_by("n_name")
        .aggregate(revenue="sum(earned)")
    )


def q10(sources: Sources) -> KTable:
    """Returned items: the revenue lost by every customer in a quarter. TPC-H's twenty greatest are the reader's."""
    orders = sources.table("orders").filter("o_orderdate >= DATE'1993-10-01' AND o_orderdate < DATE'1994-01-01'")
    items = sources.table("lineitem").filter("l_returnflag = 'R'").map_values(f"{EARNED} AS earned")
    returned = items.join(orders, on="l_orderkey", select=["left.earned", "right.o_custkey"])
    lost = returned.group_by("o_custkey").aggregate(revenue="sum(earned)").materialize("lost")
    known = ["c_name", "c_acctbal", "c_phone", "c_address"]
    customers = sources.table("customer").join(
        sources.global_table("nation"), on="c_nationkey", select=[*(f"left.{name}" for name in known), "right.n_name"]
    )
    return lost.join(customers, on="o_custkey", select=["left.revenue", "right.*"])


# A sum of a decimal with 18 digits has 28 in Spark, and 38 in DuckDB.
REVENUE = f"CAST(sum({EARNED}) AS decimal(28,4)) AS revenue"
QUERIES = {
    "q3": Query(
        q3,
        f"SELECT l_orderkey, o_orderdate, o_shippriority, {REVENUE} FROM customer "
        "JOIN orders ON c_custkey = o_custkey JOIN lineitem ON l_orderkey = o_orderkey WHERE c_mktsegment = 'BUILDING' "
        "AND o_orderdate < DATE '1995-03-15' AND l_shipdate > DATE '1995-03-15' "
        "GROUP BY l_orderkey, o_orderdate, o_shippriority",
        ("customer", "orders", "lineitem"),
    ),
    "q5": Query(
        q5,
        f"SELECT n_name, {REVENUE} FROM customer JOIN orders ON c_custkey = o_custkey "
        "JOIN lineitem ON l_orderkey = o_orderkey JOIN supplier ON l_suppkey = s_suppkey AND c_nationkey = s_nationkey "
        "JOIN nation ON s_nationkey = n_nationkey JOIN region ON n_regionkey = r_regionkey WHERE r_name = 'ASIA' "
        "AND o_orderdate >= DATE '1994-01-01' AND o_orderdate < DATE '1995-01-01' GROUP BY n_name",
        tuple(DECLARED),
    ),
    "q10": Query(
        q10,
        f"SELECT o_custkey, {REVENUE}, c_name, c_acctbal, c_phone, c_address, n_name FROM customer "
        "JOIN orders ON c_custkey = o_custkey JOIN lineitem ON l_orderkey = o_orderkey "
        "JOIN nation ON c_nationkey = n_nationkey WHERE o_orderdate >= DATE '1993-10-01' "
        "AND o_orderdate < DATE '1994-01-01' AND l_returnflag = 'R' "
        "GROUP BY o_custkey, c_name, c_acctbal, c_phone, c_address, n_name",
        ("customer", "orders", "lineitem", "nation"),
    ),
}


@dataclass
class Costs:
    """Of one query, turn by turn: our refreshes, and the seconds of the same by Spark and by DuckDB."""

    refreshes: list[Parts] = field(default_factory=list)
    spark: list[float] = field(default_factory=list)
    duckdb: list[float] = field(default_factory=list)


def run(bench: Bench) -> list[Row]:
    """The first computation of each query; then a refresh, turn by turn, by all three."""
    bench.engine_warm_up()
    warm, data = Data(bench, "tpch-warm-", WARM), Data(bench, "tpch-")
    session = bench.engine.session()
    for change in (warm.fill, warm.refresh):
        change()
        for name, query in QUERIES.items():
            topology = query.topology(f"tpch_{name}_warm", "tpch-warm-")
            ticked(bench, topology)
            _again(bench, session, topology, query, "tpch-warm-")
    data.fill()
    topologies = {name: query.topology(f"tpch_{name}") for name, query in QUERIES.items()}
    first = {name: ticked(bench, topology) for name, topology in topologies.items()}
    costs: dict[str, Costs] = defaultdict(Costs)
    for name, query in QUERIES.items():
        _, _, found = _again(bench, session, topologies[name], query)
        assert found > 0, f"TPC-H {name} has no rows: there was nothing to compare"
        bench.say(f"TPC-H {name}: first {first[name]}; {found:,} rows")
    for _ in bench.turns("TPC-H"):
        data.refresh()
        for name, query in QUERIES.items():
            cost = costs[name]
            cost.refreshes.append(ticked(bench, topologies[name]))
            spark, duckdb, found = _again(bench, session, topologies[name], query)
            cost.spark.append(spark)
            cost.duckdb.append(duckdb)
            bench.say(f"TPC-H {name}: {cost.refreshes[-1]}, Spark {spark:.2f} s, DuckDB {duckdb:.2f} s; {found:,} rows")
    session.stop()
    return [figure for name in QUERIES for figure in _rows(f"TPC-H {name}", first[name], costs[name])]


def _again(
    bench: Bench, session: SparkSession, topology: Topology, query: Query, prefix: str = "tpch-"
) -> tuple[float, float, int]:
    """Seconds of computing a query again by Spark and by DuckDB, and its number of rows, which are ours."""
    paths = {topic: bench.lakehouse.table(topology.name, prefix + topic) for topic in query.topics}
    began = time.monotonic()
    for topic, path in paths.items():
        session.read.format("delta").load(path).createOrReplaceTempView(topic)
    by_spark = bench.lakehouse.table(topology.name, "by_spark")
    session.sql(query.sql).write.format("delta").mode("overwrite").save(by_spark)
    middle = time.monotonic()
    tables = {topic: rows(path) for topic, path in paths.items()}
    by_duckdb = answer(query.sql, tables)
    ended = time.monotonic()
    ours = rows(bench.lakehouse.table(topology.name, "answer"), by_duckdb.column_names)
    found = same(ours, by_duckdb, f"{topology.name} and DuckDB")
    same(ours, rows(by_spark), f"{topology.name} and Spark")
    return middle - began, ended - middle, found


def _rows(what: str, first: Parts, costs: Costs) -> list[Row]:
    refreshes = costs.refreshes
    query = [each.query for each in refreshes]
    spark, duckdb = (
        [ours / theirs for ours, theirs in zip(query, again, strict=True)] for again in (costs.spark, costs.duckdb)
    )
    return [
        row(f"{what}, first computation: landing", [first.landing], "s"),
        row(f"{what}, first computation: tables of topics", [first.inputs], "s"),
        row(f"{what}, first computation: query", [first.query], "s"),
        row(f"{what}, first computation: engine and client", [first.cpu], "CPU-s"),
        row(f"{what}, refresh of 1 %: landing", [each.landing for each in refreshes], "s"),
        row(f"{what}, refresh of 1 %: tables of topics", [each.inputs for each in refreshes], "s"),
        row(f"{what}, refresh of 1 %: query", query, "s"),
        row(f"{what}, refresh of 1 %: engine and client", [each.cpu for each in refreshes], "CPU-s"),
        row(f"{what}, again by Spark", costs.spark, "s"),
        row(f"{what}, again by DuckDB", costs.duckdb, "s"),
        row(f"{what}, query / again by Spark", spark, "x time"),
        row(f"{what}, query / again by DuckDB", duckdb, "x time"),
    ]
