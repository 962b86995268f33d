"""`make demo`: a shop on a real broker and a real engine; waves of records, a tick after each, and audits."""

from __future__ import annotations

import json
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dagster_project import render
from dagster_project.discover import gates_of
from dagster_project.settings import Settings
from dagster_project.topologies.shop import topology
from resources.embedded_kafka import EmbeddedKafka
from resources.kafka import Kafka
from spark.engine import counts
from spark.engine.attempt import Stepped
from spark.engine.audit import audit
from spark.engine.land import Landed
from spark.engine.log.stored_table import StoredTable
from spark.engine.publish import Published
from spark.engine.quarantine import undecodable
from spark.engine.tick import TickEvent, tick

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluent_kafka import Producer

    from spark.engine.ports import Ports

ORDERS, CUSTOMERS, PRODUCTS = 4_000, 300, 40
PARTITIONS = {"orders": 4, "customers": 2, "products": 1, "clicks": 2}
NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gil", "Hana", "Ivo", "June")
THINGS = ("lamp", "chair", "kettle", "scarf", "radio", "globe", "clock", "vase")


@dataclass(frozen=True)
class Shop:
    """The producer of the shop's records. `since` is the number of orders of earlier demos."""

    producer: Producer
    rng: random.Random
    since: int

    def put(self, topic: str, key: object, value: object) -> None:
        """Send one record: JSON, a tombstone (None), or bytes as they are."""
        data = value if value is None or isinstance(value, bytes) else json.dumps(value)
        self.producer.produce(topic, key=str(key), value=data)
        self.producer.poll(0)

    def order(self, number: int) -> None:
        """Send an order. One in a hundred has a customer that does not exist."""
        known = self.rng.random() > 0.01
        amount = self.rng.randrange(500, 90_000) / 100
        customer = self.rng.randrange(CUSTOMERS) if known else CUSTOMERS + 7
        sku = f"sku-{self.rng.randrange(PRODUCTS)}"
        quantity = self.rng.randrange(1, 5)
        self.put(
            "orders", number, {"customer_id": customer, "sku": sku, "quantity": quantity, "amount": f"{amount:.2f}"}
        )

    def customer(self, number: int) -> None:
        """Send a customer, with spaces around the name and a country in any case."""
        country = self.rng.choice(("de", "FR", "it", "ES", "nl"))
        self.put("customers", number, {"name": f" {self.rng.choice(NAMES)} {number} ", "country": country})

    def product(self, number: int, title: str | None = None) -> None:
        """Send a product, with a new title if one is given."""
        named = title or f"{THINGS[number % len(THINGS)]} no. {number}"
        self.put("products", f"sku-{number}", {"title": named, "price": f"{self.rng.randrange(100, 20_000) / 100:.2f}"})

    def opening(self) -> None:
        """Wave 1: all products and customers, the first orders, and clicks."""
        for number in range(PRODUCTS):
            self.product(number)
        for number in range(CUSTOMERS):
            self.customer(number)
        for number in range(self.since, self.since + ORDERS):
            self.order(number)
        for _ in range(200):
            sku = f"sku-{self.rng.randrange(PRODUCTS)}"
            self.put("clicks", self.rng.randrange(CUSTOMERS), {"sku": sku, "at": "2026-11-20T10:00:00Z"})

    def trading(self) -> None:
        """Wave 2: new, changed, moved and deleted orders, a deleted customer, and a record that is not JSON."""
        for number in range(self.since + ORDERS, self.since + ORDERS + 200):
            self.order(number)
        for number in self.rng.sample(range(self.since + 10, self.since + ORDERS), 150):
            self.order(number)  # most of them move to another customer
        for number in range(self.since, self.since + 3):
            self.put("orders", number, None)
        self.put("customers", 5, None)
        self.put("orders", self.since + ORDERS + 999, b'{"customer_id": 1, "amount": "12.')

    def renaming(self) -> None:
        """Wave 3: a product gets another title, long after it was ordered."""
        self.product(7, title=f"clock no. 7, second edition ({self.since})")


def main() -> None:
    """Run three waves with a tick after each, then show positions, audits, and the counts of all records."""
    console = Console(width=None if sys.stdout.isatty() else 120)  # a pipe has no width of its own
    began = time.monotonic()
    settings = Settings.from_environment().model_copy(update={"kafka": None})  # never the user's cluster
    with console.status("starting the broker and the engine (a cold engine takes some 20 seconds)"):
        ports = settings.ports()
        ports.engine.session().stop()
    kafka = Kafka({"bootstrap.servers": EmbeddedKafka(Path(settings.lake)).bootstrap_servers})
    for topic, partitions in PARTITIONS.items():
        kafka.create_topic(topic, partitions, {"retention.ms": "-1"})
    since = sum(kafka.end_offsets(["orders"])["orders"].offsets.values())
    shop = Shop(kafka.producer(), random.Random(since), since)
    again = f"; continuing after {since:,} orders of earlier demos" if since > 0 else ""
    console.print(f"[bold]Tidetable[/] on {kafka.address}, tables in {settings.lake}{again}\n", soft_wrap=True)
    for title, wave in (
        (f"{ORDERS:,} orders of {CUSTOMERS} customers for {PRODUCTS} products", shop.opening),
        ("orders change, move and are cancelled; a customer is deleted; one record does not decode", shop.trading),
        ("product sku-7 gets another name", shop.renaming),
    ):
        _wave(console, ports, shop, title, wave)
    _positions(console, ports)
    all_hold = _audits(console, ports)
    _quarantine(console, ports)
    console.print(f"\nDone in {time.monotonic() - began:.0f} s. Broker and engine still run. Next:")
    console.print("  [bold]make ui[/]                            the same in Dagster, at http://127.0.0.1:3000")
    console.print("  [bold].venv/bin/tidetable status shop[/]    positions and lag; `tidetable --help` for the rest")
    console.print(
        "  [bold]dagster_project/topologies/shop.py[/] the topology: change it, or write another one next to it"
    )
    console.print("  [bold]make down[/]                          stop broker and engine; the lake remains")
    raise SystemExit(0 if all_hold else 1)


def _wave(console: Console, ports: Ports, shop: Shop, title: str, wave: Callable[[], None]) -> None:
    console.rule(title)
    wave()
    shop.producer.flush()
    began = time.monotonic()
    with console.status("one tick: capture the cut, land every topic to it, step every table"):
        ticked = tick(ports, topology, "demo", gates_of(topology), say=lambda event: console.print(_event_line(event)))
    for name, error in ticked.failed.items():
        raise SystemExit(f"{name}: {error}")
    console.print(f"[dim]the tick took {time.monotonic() - began:.1f} s[/]")
    session = ports.engine.session()
    enriched = session.read.format("delta").load(ports.lakehouse.table(topology.name, "orders_enriched"))
    shown = ["order_id", "customer_id", "name", "country", "sku", "title", "quantity", "amount"]
    rows = enriched.where("sku = 'sku-7'").orderBy("order_id").limit(4).select(*shown).collect()
    console.print(
        _table(f"orders_enriched: {enriched.count():,} rows, some of them", shown, [list(row) for row in rows])
    )
    session.stop()


def _event_line(event: TickEvent) -> str:
    match event:
        case Landed(outcome="landed"):
            errors = f", [yellow]{event.errors} in quarantine[/]" if event.errors > 0 else ""
            return f"  landed  {event.table:<28} {event.records:>6,} records{errors}  [dim]{event.seconds:.1f} s[/]"
        case Stepped(outcome="stepped"):
            counts = f"+{event.inserted:,} ~{event.updated:,} -{event.deleted:,}"
            step = (
                f"  stepped {event.table:<28} {event.touched:>6,} keys touched, {counts}  [dim]{event.seconds:.1f} s[/]"
            )
            return "\n".join([step, *(f"    [yellow]{escape(line)}[/]" for line in render.gate_lines(event.after))])
        case Published(outcome="published"):
            return f"  published {event.topic:<26} {event.records:>6,} records  [dim]{event.seconds:.1f} s[/]"
        case Landed() | Stepped() | Published():
            return f"  [dim]{event.outcome:<7} {event.table}[/]"
        case error:
            return f"  [red]{error}[/]"


def _positions(console: Console, ports: Ports) -> None:
    console.rule("positions: the newest commit of every table names what it was computed from")
    rows = []
    for table in topology.tables:
        state = StoredTable(f"{topology.name}/{table.name}", ports.lakehouse.table(topology.name, table.name)).state()
        if state is not None:
            inputs = ", ".join(f"{name}@{pinned.version}" for name, pinned in state.position.inputs.items())
            rows.append([table.name, state.version, inputs])
    console.print(_table("positions", ["table", "version", "computed from"], rows))


def _audits(console: Console, ports: Ports) -> bool:
    console.rule("audits: every table equals its query over the input versions that its commit names")
    all_hold = True
    for table in topology.tables:
        audited = audit(ports, topology, table)
        verdict = "[green]holds[/]" if audited.holds else f"[red]{audited.differing} keys differ[/]"
        console.print(f"  audit {table.name:<18} version {audited.version:>3}, {audited.rows:>6,} rows: {verdict}")
        all_hold = all_hold and audited.holds
    return all_hold


def _quarantine(console: Console, ports: Ports) -> None:
    console.rule("counts: every landed record has a value, or is a tombstone, or is in quarantine")
    for source in topology.sources:
        counted = counts.counted(ports.lakehouse, topology, source)
        assert counted is not None, "everything has landed"
        parts = (
            f"{counted.rows:,} with a value, {counted.tombstones:,} tombstones, {counted.quarantined:,} in quarantine"
        )
        console.print(f"  {source.topic:<24} {counted.records:>6,} records: {parts}")
    shown = ["topic", "partition", "offset", "error", "value"]
    records = [record for source in topology.sources for record in undecodable(ports, topology, source, 5)]
    rows: list[list[object]] = [[getattr(record, name) for name in shown] for record in records]
    console.print(_table("in quarantine", shown, rows))


def _table(title: str, columns: list[str], rows: list[list[object]]) -> Table:
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*(str(value) for value in row))
    return table


if __name__ == "__main__":
    main()
