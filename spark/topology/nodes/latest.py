"""`table`, `global_table`, `to_table`: the newest record of every key."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from spark.topology.columns import Column
from spark.topology.durations import written
from spark.topology.nodes.node import Costs, Node, Unary
from spark.topology.nodes.records import Records
from spark.topology.nodes.select import Select


@dataclass(frozen=True)
class Latest(Unary):
    """The newest record of every key of a stream; one without a value is no row.

    Newest is by offset. Where `history` (milliseconds) is given the table is versioned, and newest is by timestamp.
    """

    history: int | None = None

    @property
    def columns(self) -> tuple[Column, ...]:
        """The key's columns, then the value's."""
        return self.source.columns

    @property
    def by_arrival(self) -> bool:
        """Whether a key's newest record is among the new records of a span, if that has any of the key.

        It need not be where timestamps decide, where several topics are merged, which have no order between them but
        time, or where a stream took another key, whose records then come from several partitions: an order by arrival
        would depend on when the ticks were. So would that of a stored stream, whose commits are its own steps, not
        those that landed its records. The changes of a table are in the order of its commits.
        """
        one_landing = len(self.scans) == 1 and self.scans[0].landing and not _has_other_key(self.source)
        return self.history is None and (self.source.of_changes or one_landing)

    @property
    def is_decoded_topic(self) -> bool:
        """Whether it is a topic's table."""
        return isinstance(self.source, Records)

    @property
    def reads_again(self) -> tuple[Node, ...]:
        """The stream, for the keys of which it has new records."""
        return self.sources

    def drops_records(self, stream_topics: Set[str]) -> bool:
        """Whether it reads anything but the landing of a table's topic."""
        return any(not scan.landing or scan.table in stream_topics for scan in self.scans)

    def why_no_view(self, stored: Set[Node]) -> tuple[str, str] | None:  # noqa: ARG002  # stored or not
        """The changes of a table are not kept for ever."""
        if not self.source.of_changes:
            return None
        what = "the newest changes of a table are no view: the changes are not kept for ever"
        return what, "write .materialize(name) behind .to_table()"

    @property
    def title(self) -> str:
        """The topic, or the method and the stream."""
        return self.source.title if isinstance(self.source, Records) else f"to_table of {self.source.title}"

    @property
    def kafka_name(self) -> str:
        """As Kafka Streams prints it."""
        return "KTABLE-SOURCE" if isinstance(self.source, Records) else "KSTREAM-TOTABLE"

    def explain(self, global_tables: Set[str]) -> str:
        """What newest means here."""
        of = f" of topic {self.title}" if isinstance(self.source, Records) else ""
        kind = ", a global table" if self.title in global_tables else ""
        kind += "" if self.history is None else f", by timestamp (versioned, history {written(self.history)})"
        return f"the newest record of every key{of}{kind}"

    @property
    def explained_sources(self) -> tuple[tuple[str, Node], ...]:
        """The stream, unless its name says it."""
        return () if isinstance(self.source, Records) else (("of", self.source),)

    @property
    def costs(self) -> Costs:
        """The keys of the new records; where the newest may be an older one, a scan of the stream."""
        again = "" if self.by_arrival else f", and a scan of {self.source.title} for all records that have them"
        return tuple((scan, f"the keys of {words}{again}") for scan, words in self.source.costs)


def _has_other_key(stream: Node) -> bool:
    return (isinstance(stream, Select) and stream.rekeyed is not None) or any(map(_has_other_key, stream.sources))
