"""`table`, `global_table`, `to_table`: the newest record of every key."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from spark.topology.columns import Column
from spark.topology.durations import format_duration
from spark.topology.nodes.node import Costs, Node, Unary
from spark.topology.nodes.records import Records
from spark.topology.nodes.select import Select


@dataclass(frozen=True)
class Latest(Unary):
    """The newest record of every key of a stream. A newest record without a value deletes the row.

    The newest record is the one with the greatest offset. With `history` (milliseconds) the table is versioned, and the
    newest record is the one with the greatest timestamp.
    """

    history: int | None = None

    @property
    def columns(self) -> tuple[Column, ...]:
        """The key's columns, then the value's."""
        return self.source.columns

    @property
    def by_arrival(self) -> bool:
        """True if a span that has records of a key contains the newest record of that key.

        This is false for a versioned table, for merged topics and for a stream with another key: their records are
        ordered by time only, and an order by arrival would depend on when the ticks ran. It is false for a stored
        stream too: its commits are its own steps, not the landing steps of its records. It is true for the changes of a
        table, which are ordered by commit.
        """
        one_landing = len(self.scans) == 1 and self.scans[0].landing and not _has_other_key(self.source)
        return self.history is None and (self.source.of_changes or one_landing)

    @property
    def is_decoded_topic(self) -> bool:
        """True if it is the table of a topic."""
        return isinstance(self.source, Records)

    @property
    def rereads(self) -> tuple[Node, ...]:
        """Its stream: it reads the earlier records of changed keys."""
        return self.sources

    def drops_records(self, stream_topics: Set[str]) -> bool:
        """Whether it reads anything but the landing of a table's topic."""
        return any(not scan.landing or scan.table in stream_topics for scan in self.scans)

    def why_no_view(self, stored: Set[Node]) -> tuple[str, str] | None:  # noqa: ARG002  # stored or not
        """Refuse a view of a table's changes: they are not retained."""
        if not self.source.of_changes:
            return None
        what = "to_table() of a table's changes cannot be a view: the changes are not retained"
        return what, "call .materialize(name) after .to_table()"

    @property
    def title(self) -> str:
        """The topic; otherwise the method and the stream."""
        return self.source.title if isinstance(self.source, Records) else f"to_table of {self.source.title}"

    @property
    def kafka_name(self) -> str:
        """The processor's name in Kafka Streams."""
        return "KTABLE-SOURCE" if isinstance(self.source, Records) else "KSTREAM-TOTABLE"

    def explain(self, global_tables: Set[str]) -> str:
        """What the newest record is, and of which topic."""
        topic = f" of topic {self.title}" if isinstance(self.source, Records) else ""
        kind = ", a global table" if self.title in global_tables else ""
        kind += "" if self.history is None else f", by timestamp (versioned, history {format_duration(self.history)})"
        return f"the newest record of every key{topic}{kind}"

    @property
    def explained_sources(self) -> tuple[tuple[str, Node], ...]:
        """The stream, unless the explanation names it."""
        return () if isinstance(self.source, Records) else (("of", self.source),)

    @property
    def costs(self) -> Costs:
        """The keys of the new records, and a scan of the stream unless the newest record is always among them."""
        rescan = "" if self.by_arrival else f", and a scan of {self.source.title} for all records that have them"
        return tuple((scan, f"the keys of {words}{rescan}") for scan, words in self.source.costs)


def _has_other_key(stream: Node) -> bool:
    return (isinstance(stream, Select) and stream.rekeyed is not None) or any(map(_has_other_key, stream.sources))
