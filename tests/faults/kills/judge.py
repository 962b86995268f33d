"""What a world that settled must be: every committed record once, every version its query, every change told once."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from deltalake import DeltaTable

from spark.engine.audit import audit
from spark.engine.log.stored_table import StoredTable
from tests.faults.kills.sender import NUMBER
from tests.faults.kills.shop import Log, Logged, tables
from tests.support import lake

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping

    from resources.kafka import Kafka
    from spark.engine.ports import Ports
    from spark.topology import Topology
    from tests.faults.kills.sender import Sender
    from tests.faults.kills.shop import Topics
    from tests.support.lake import Key, Told


@dataclass
class Verdict:
    """What was compared, and what of it is missing, or there too often, or wrong."""

    records: int = 0
    published: int = 0
    versions: int = 0
    lost: list[str] = field(default_factory=list)
    duplicated: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Whether nothing is."""
        return not (self.lost or self.duplicated or self.wrong)

    def compare(self, what: str, found: Iterable[Hashable], wanted: Iterable[Hashable]) -> None:
        """Each of the wanted once, and in their order."""
        found, wanted = list(found), list(wanted)
        have, want = Counter(found), Counter(wanted)
        self.lost += [f"{what}: {one}" for one in (want - have).elements()]
        self.duplicated += [f"{what}: {one}" for one in (have - want).elements()]
        if have == want and found != wanted:
            self.wrong.append(f"{what}: in another order")

    def same(self, what: str, found: Mapping[Key, lake.Row], wanted: Mapping[Key, lake.Row]) -> None:
        """The rows of every key are."""
        keys = [key for key in found.keys() | wanted.keys() if found.get(key) != wanted.get(key)]
        self.wrong += [f"{what}, {key!r}: {found.get(key)} instead of {wanted.get(key)}" for key in keys]

    def equal(self, what: str, found: object, wanted: object) -> None:
        """Found is what is wanted."""
        if found != wanted:
            self.wrong.append(f"{what}: {found} instead of {wanted}")


def judged(
    ports: Ports, kafka: Kafka, topology: Topology, topics: Topics, sender: Sender, rng: random.Random, sample: int
) -> Verdict:
    """The verdict on a world whose tables have all that was sent; so many versions of each table are audited."""
    verdict = Verdict()
    log = {topic: _log(kafka, topic) for topic in topics.read}
    _judge_log(verdict, sender, log)
    for topic in topics.read:
        _judge_landing(verdict, ports, kafka, topology, topic, log[topic])
    for name, wanted in tables(topics, log).items():
        verdict.same(name, _rows(ports, topology, name), wanted)
        path = lake.path(ports, topology, name)
        versions = [commit.version for commit in StoredTable(f"{topology.name}/{name}", path).commits()]
        for version in sorted(rng.sample(versions, min(sample, len(versions)))):
            found = audit(ports, topology, topology.table(name), version)
            verdict.versions += 1
            verdict.equal(f"keys that differ in version {version} of {name}", (found.differing, found.sample), (0, []))
    for name in ("joined", "by_country"):
        _judge_published(verdict, ports, kafka, topology, name, topics.written[name])
    clicks = [one for one in log[topics.clicks] if (one.value or {})["sku"] != "bot"]
    _judge_stream(verdict, lake.received(kafka, topics.seen), clicks)
    return verdict


def _log(kafka: Kafka, topic: str) -> list[Logged]:
    """The committed records of a topic, by partition and offset."""
    told = sorted(lake.received(kafka, topic), key=lambda one: (one.partition, one.offset))
    return [Logged(one.partition, one.offset, *one.change, one.timestamp, int(one.headers[NUMBER])) for one in told]


def _judge_log(verdict: Verdict, sender: Sender, log: Log) -> None:
    """The broker has each record that it said it has, once, and none that it said is undone: else it is to blame."""
    numbers = Counter(one.number for records in log.values() for one in records)
    verdict.records = numbers.total()
    verdict.compare("the broker's log", sorted(numbers.elements()), sorted(numbers))
    verdict.equal("records that the broker lost", sender.sure - numbers.keys(), set())
    verdict.equal("aborted records that readers see", sender.undone & numbers.keys(), set())


def _judge_landing(
    verdict: Verdict, ports: Ports, kafka: Kafka, topology: Topology, topic: str, log: list[Logged]
) -> None:
    """Every record is there once, behind those that were landed before; and the commit names the topic's end."""
    consumed = topology.source(topic).consumed
    [key], values = [column.name for column in consumed.key], [column.name for column in consumed.value]
    found = lake.records(ports, topology, topic)
    verdict.compare(
        f"the landing of {topic}",
        (
            (row["_partition"], row["_offset"], row[key], _text({} if row["_deleted"] else {v: row[v] for v in values}))
            for row in found
        ),
        ((one.partition, one.offset, one.key, _text(one.value or {})) for one in log),
    )
    batches: dict[object, list[int]] = defaultdict(list)
    for row in found:
        batches[row["_partition"]].append(int(str(row["_batch"])))
    for each in batches.values():
        verdict.equal(f"batches of {topic}, in the order of offsets", each, sorted(each))
    [cut] = lake.state(ports, topology, topology.source(topic).landing).position.cut.values()
    verdict.equal(f"the offsets of {topic} in the newest commit", cut, kafka.end_offsets([topic])[topic])


def _rows(ports: Ports, topology: Topology, name: str) -> dict[Key, lake.Row]:
    """A table by key: a stream by partition and offset, windows by their begin as well."""
    rows: dict[Key, lake.Row]
    match name:
        case "seen":
            found = lake.listed(lake.path(ports, topology, name))
            rows = {(row["_partition"], row["_offset"]): {"user": row["user"], "sku": row["sku"]} for row in found}
        case "counted":
            found = lake.listed(lake.path(ports, topology, name))
            rows = {(row["sku"], row["_window_start"]): {"count": row["count"]} for row in found}
        case _:
            return lake.rows(ports, topology, name)
    assert len(rows) == len(found), f"{name} has a row twice"
    return rows


Change = tuple[int, str, str | None, int]
"""Version, key, row (None: it went), and milliseconds since 1970."""


def _judge_published(verdict: Verdict, ports: Ports, kafka: Kafka, topology: Topology, name: str, topic: str) -> None:
    """A topic has, key by key, the table it began with, then what each version changed; and ends as the table does."""
    told = lake.received(kafka, topic)
    found = [(int(one.headers["tidetable.version"]), *_change(one), one.timestamp) for one in told]
    begun = min(version for version, *_ in found)
    whole = {"tidetable.whole" in one.headers for one in told if int(one.headers["tidetable.version"]) == begun}
    path = lake.path(ports, topology, name)
    if whole != {True} and lake.listed(path, begun - 1) != []:  # a topic that began with an empty table has none
        verdict.wrong.append(f"{topic} does not begin with all rows of {name}")
    wanted = _feed(path, topology.table(name).plan.key[0], begun)
    verdict.published += len(told)
    _compare_by_key(verdict, topic, found, wanted)
    last: dict[Key, lake.Row] = {}
    for _, key, row, _ in found:
        last.pop(json.loads(key), None)
        if row is not None:
            last[json.loads(key)] = json.loads(row)
    verdict.same(f"what {topic} ends with", last, lake.rows(ports, topology, name))


def _judge_stream(verdict: Verdict, told: list[Told], clicks: list[Logged]) -> None:
    """A topic has every record of a stream once, in the order of its partition."""
    found = [(0, *_change(one), one.timestamp) for one in told]
    wanted: list[Change] = [(0, str(one.key), _text(one.value or {}), one.timestamp) for one in clicks]
    verdict.published += len(told)
    _compare_by_key(verdict, "the stream's topic", found, wanted)


def _compare_by_key(verdict: Verdict, topic: str, found: list[Change], wanted: list[Change]) -> None:
    keys = sorted({key for _, key, *_ in [*found, *wanted]})
    for key in keys:
        verdict.compare(topic, (one for one in found if one[1] == key), (one for one in wanted if one[1] == key))


def _change(told: Told) -> tuple[str, str | None]:
    key, row = told.change
    return json.dumps(key), None if row is None else _text(row)


def _feed(path: str, key: str, begun: int) -> list[Change]:
    """The rows of a version, then the changes of each later one, as deltalake reads them."""
    changes: list[Change] = [(begun, json.dumps(row[key]), *_value(row, key)) for row in lake.listed(path, begun)]
    feed = lake.plain(DeltaTable(path).load_cdf(begun + 1, allow_out_of_range=True))
    sides: dict[tuple[int, str], dict[bool, tuple[str, int]]] = defaultdict(dict)
    for row in feed:
        version, name = int(str(row["_commit_version"])), json.dumps(row[key])
        new = row["_change_type"] in ("insert", "update_postimage")
        sides[version, name][new] = _value(row, key)
    for (version, name), side in sorted(sides.items()):
        if side.get(False) != side.get(True):
            changes.append((version, name, *(side[True] if True in side else (None, side[False][1]))))
    return changes


def _value(row: lake.Row, key: str) -> tuple[str, int]:
    value = {name: value for name, value in row.items() if name != key and not name.startswith("_")}
    return _text(value), int(str(row["_timestamp"]))


def _text(row: lake.Row) -> str:
    return json.dumps(row, sort_keys=True)
