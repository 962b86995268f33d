"""`join`, `left_join`, `outer_join` of two tables: primary-key, foreign-key and global joins."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import Literal

from spark.topology.nodes.joined import Joined
from spark.topology.nodes.node import Costs, Node
from spark.topology.nodes.scan import Scan
from spark.topology.sql.ddl import quoted

Drive = Literal["both", "left"]


@dataclass(frozen=True)
class Join(Joined):
    """Every left row with the right row whose primary key equals its `on` expressions.

    `on` are expressions over left columns, in the order of the right key; in an "outer" join they are the left key.
    With `drive` "both", changes of either side update the table; with "left", only changes of the left side do, and the
    right side is only looked up.
    """

    on: tuple[str, ...]
    drive: Drive = "both"

    @property
    def driving_sources(self) -> tuple[Node, ...]:
        """Both sides; only the left one with `drive` "left"."""
        return (self.left,) if self.drive == "left" else self.sources

    @property
    def depends_on_spans(self) -> bool:
        """True if the right side is only looked up: the result depends on when that was."""
        return self.drive == "left"

    @property
    def on_left(self) -> tuple[str, ...]:
        """The lookup key."""
        return self.on

    @property
    def equal_keys(self) -> bool:
        """True if the right side is looked up by the left side's key."""
        return self.on == tuple(quoted(column) for column in self.left.key)

    def why_no_view(self, stored: Set[Node]) -> tuple[str, str] | None:  # noqa: ARG002  # stored or not
        """Refuse a view that only looks its right side up: it cannot be computed again."""
        if self.drive == "both":
            return None
        return 'a join with drive="left" cannot be a view', "call .materialize(name) on it"

    @property
    def kafka_name(self) -> str:
        """The processor's name in Kafka Streams."""
        return f"KTABLE-{'' if self.equal_keys else 'FK-'}{'' if self.how == 'inner' else self.how.upper()}JOIN"

    def explain(self, global_tables: Set[str]) -> str:
        """The kind, the lookup key, and which sides drive."""
        if isinstance(self.right, Scan) and self.right.table in global_tables:
            kind = "global-table"
        else:
            kind = "primary-key" if self.equal_keys else "foreign-key"
        drive = "both sides drive" if self.drive == "both" else "only the left side drives"
        return f"{kind} {self.how} join on {', '.join(self.on)}, {drive}"

    @property
    def costs(self) -> Costs:
        """A lookup for every changed left row; for changed right rows, the left rows that look them up."""
        left, right = self.left.title, self.right.title
        looked_up = tuple((scan, f"{words}, each looked up once in {right}") for scan, words in self.left.costs)
        if self.how == "outer":
            back = f", each looked up once in {left}"
        elif self.drive == "left":
            nothing = "nothing: it is only looked up"
            return (*looked_up, *((scan, nothing) for scan, _ in self.right.costs))
        elif self.equal_keys:
            back = f", and the rows of {left} with the same keys"
        else:
            back = f", and a scan of {left} for the rows whose {', '.join(self.on)} is among them"
        return (*looked_up, *((scan, words + back) for scan, words in self.right.costs))
