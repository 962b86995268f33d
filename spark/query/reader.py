"""Reads the tables of a lake without a JVM: one table at a version, or several at one cut."""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from spark.engine.inputs.pin import agree, walk_of
from spark.engine.log.stored_table import StoredTable
from spark.query.errors import NameUnknown, NotCovered, QueryError
from spark.query.files import CACHE, FileCache
from spark.query.positions import by_topic, missing, offsets_of
from spark.query.table_reader import (
    TIMEOUT,
    Resident,
    TableReader,
    at_version,
    looks,
    newest,
    not_whole,
)
from spark.topology.errors import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from spark.engine.inputs.pin import Walk
    from spark.engine.ports import Lakehouse
    from spark.query.positions import Offsets, Produced
    from spark.topology.topology import Topology


TABLES = 64  # of which a reader keeps the newest version open


class Reader:
    """The tables of a lake. Keeps what it has read of the files, up to `cache` bytes; threads may share it.

    It also keeps the tables that were asked for last open, so that `table` reads only what is new in their logs.

    Args:
        lake: the lake's folder or URL, or a `Lakehouse`.
        topology: its tables can be named without it, and their keys are those that it declares. Without one, tables
            have the keys of their stored definitions.
        cache: bytes of decoded columns to keep.
    """

    def __init__(
        self, lake: str | os.PathLike[str] | Lakehouse, topology: Topology | None = None, cache: int = CACHE
    ) -> None:
        self._lakehouse = _Folder.of(lake) if isinstance(lake, str | os.PathLike) else lake
        self._topology = topology
        self._cache = FileCache(cache)
        self._residents: OrderedDict[str, Resident] = OrderedDict()
        self._lock = Lock()

    def table(
        self, name: str, at_least: Offsets | Produced | Iterable[Produced] | None = None, timeout: float = TIMEOUT
    ) -> TableReader:
        """Return a reader of a table, `topology.table`, at its newest version.

        Args:
            name: the table.
            at_least: what the table must cover: by topic and partition the next offset, or records that were
                produced, as delivery reports of confluent_kafka have them.
            timeout: how many seconds to wait for it, its first step included.

        Raises:
            NameUnknown: the lake has no such table; with `at_least`, not in time.
            NotWhole: no step has computed it yet; with `at_least`, not in time.
            NotCovered: it does not cover `at_least` in time.
        """
        wanted = {} if at_least is None else offsets_of(at_least)
        began = time.monotonic()
        table = self._named(name, timeout if wanted else 0)
        left = max(0.0, timeout - (time.monotonic() - began))
        resident = self._resident(table)
        pinned = newest(table, self._cache, self._topology, resident, wanted, left)
        return TableReader(table, self._cache, self._topology, resident, pinned)

    def snapshot(
        self,
        names: Iterable[str],
        at_least: Offsets | Produced | Iterable[Produced] | None = None,
        timeout: float = TIMEOUT,
    ) -> Snapshot:
        """Return several tables at one cut: those that are ahead on a topic that they share go back in their history.

        With `at_least`, wait until there is a cut at which each table covers what it says of the table's topics.

        Raises:
            NameUnknown: the lake has no such table.
            NotWhole: no step has computed one of them yet; with `at_least`, not in time.
            NoCommonCut: no versions of the tables agree.
            NotCovered: there is no such cut in time.
        """
        if isinstance(names, str):
            raise QueryError(f"a snapshot is of several tables: pass a list of names, not {names!r}")
        wanted = {} if at_least is None else offsets_of(at_least)
        began = time.monotonic()
        tables = {name: self._named(name, timeout if wanted else 0) for name in dict.fromkeys(names)}
        left = max(0.0, timeout - (time.monotonic() - began))
        topologies = " ".join(dict.fromkeys(table.name.partition("/")[0] for table in tables.values()))
        problem: QueryError
        for _ in looks(left):
            found = {table: walk_of(table, table.dotted_name) for table in tables.values()}
            walks = [walk for walk in found.values() if walk is not None]
            if len(walks) < len(found):
                problem = not_whole(next(table for table, walk in found.items() if walk is None))
                if not wanted:
                    raise problem
                continue
            agree(walks, "a snapshot", topologies)
            lacking = _lacking(walks, wanted)
            if not lacking:
                break
            problem = NotCovered(
                f"the tables have no common cut that covers {lacking} after {timeout:g} s: run `tidetable run "
                f"{topologies}`, or wait longer"
            )
        else:
            raise problem
        readers = {}
        for (name, table), walk in zip(tables.items(), walks, strict=True):
            resident = self._resident(table)
            pinned = at_version(table, self._cache, self._topology, resident, walk.at.version, walk.at.cut)
            readers[name] = TableReader(table, self._cache, self._topology, resident, pinned, follows=False)
        return Snapshot(readers)

    def names(self) -> tuple[str, ...]:
        """Return the names of the tables in the lake's folder; none if the lake is an object store."""
        root = Path(self._lakehouse.table("", "")).resolve()
        logs = root.glob("*/*/_delta_log") if root.is_dir() else ()
        found = (log.parent.relative_to(root) for log in logs)
        return tuple(sorted(str(one).replace(os.sep, ".", 1) for one in found if not str(one).startswith("_")))

    def _resident(self, table: StoredTable) -> Resident:
        """Return what is kept of a table; nothing at first."""
        with self._lock:
            found = self._residents.setdefault(table.path, Resident())
            self._residents.move_to_end(table.path)
            while len(self._residents) > TABLES:
                self._residents.popitem(last=False)
            return found

    def _named(self, name: str, timeout: float = 0) -> StoredTable:
        """Return a table that exists, or that does within a number of seconds.

        Raises:
            NameUnknown: there is none; the message has those that exist.
        """
        topology, _, table = name.partition(".")
        if self._topology is not None and name in {one.name for one in self._topology.tables}:
            topology, table = self._topology.name, name
        if table and not table.startswith("_"):
            found = StoredTable.of(self._lakehouse, topology, table)
            for _ in looks(timeout):
                if found.state() is not None:
                    return found
        root = self._lakehouse.table("", "").rstrip("/")
        if "://" not in root and not Path(root).is_dir():
            raise NameUnknown(f"there is no lake at {root}, so there is no table {name!r}: name the lake's folder")
        known = list(self.names())
        there = f"{did_you_mean(name, known)}; the lake has {', '.join(known)}" if known else ""
        raise NameUnknown(f"there is no table {name!r}{there}. A table exists from its first step on")


@dataclass(frozen=True)
class Snapshot:
    """Several tables at one cut, by the names that they were asked for with."""

    tables: dict[str, TableReader]

    def __getitem__(self, name: str) -> TableReader:
        if name not in self.tables:
            raise NameUnknown(f"the snapshot has no table {name!r}; it has {', '.join(self.tables)}")
        return self.tables[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tables)

    @property
    def cut(self) -> dict[str, dict[int, int]]:
        """By topic and partition, the next offset: every table was computed from all records before it."""
        return {topic: offsets for table in self.tables.values() for topic, offsets in table.cut.items()}


def _lacking(walks: Iterable[Walk], wanted: Offsets) -> str:
    """Return what of some offsets the pins of tables do not cover, each table of its own topics; empty if nothing.

    Raises:
        NotCovered: no table is computed from a topic.
    """
    cuts = {walk.name: walk.at.cut for walk in walks}
    topics = {topic for cut in cuts.values() for topic in by_topic(cut)}
    if unknown := [topic for topic in wanted if topic not in topics]:
        raise NotCovered(
            f"no table of the snapshot is computed from {', '.join(unknown)}, but from {', '.join(topics)}"
        )
    each = (
        missing(name, cut, {topic: offsets for topic, offsets in wanted.items() if topic in by_topic(cut)})
        for name, cut in cuts.items()
    )
    return next(filter(None, each), "")


@dataclass(frozen=True)
class _Folder:
    """A lake by its folder or URL."""

    root: str

    @staticmethod
    def of(lake: str | os.PathLike[str]) -> _Folder:
        text = os.fspath(lake)
        if text == "":
            raise QueryError("the lake has no name; pass its folder or its URL")
        return _Folder((text if "://" in text else str(Path(text).expanduser().resolve())).rstrip("/"))

    def table(self, topology: str, name: str) -> str:
        return f"{self.root}/{topology}/{name}"
