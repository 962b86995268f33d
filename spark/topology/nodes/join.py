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
    """Every left row with the right row whose primary key its `on` expressions hold.

    `on` are expressions over left columns, in the order of the right key; in an "outer" join they are the left key.
    `drive` says whether changes of the right side are followed ("both"), or only the left side's ("left": the join is
    lookup-only).
    """

    on: tuple[str, ...]
    drive: Drive = "both"

    @property
    def followed(self) -> tuple[Node, ...]:
        """The left side alone, where that drives alone."""
        return (self.left,) if self.drive == "left" else self.sources

    @property
    def in_span_form(self) -> bool:
        """Whether it is lookup-only: its rows depend on when they were looked up."""
        return self.drive == "left"

    @property
    def on_left(self) -> tuple[str, ...]:
        """The lookup key."""
        return self.on

    @property
    def equal_keys(self) -> bool:
        """Whether the right side is looked up by the left side's own key."""
        return self.on == tuple(quoted(column) for column in self.left.key)

    def why_no_view(self, stored: Set[Node]) -> tuple[str, str] | None:  # noqa: ARG002  # stored or not
        """What a lookup found is history: it could not be computed again."""
        if self.drive == "both":
            return None
        return 'a join with drive="left" is no view', "write .materialize(name) behind it"

    @property
    def kafka_name(self) -> str:
        """As Kafka Streams prints it."""
        return f"KTABLE-{'' if self.equal_keys else 'FK-'}{'' if self.how == 'inner' else self.how.upper()}JOIN"

    def explain(self, global_tables: Set[str]) -> str:
        """The kind, the lookup key, and who drives."""
        if isinstance(self.right, Scan) and self.right.table in global_tables:
            kind = "global-table"
        else:
            kind = "primary-key" if self.equal_keys else "foreign-key"
        drive = "both sides drive" if self.drive == "both" else "only the left side drives"
        return f"{kind} {self.how} join on {', '.join(self.on)}, {drive}"

    @property
    def costs(self) -> Costs:
        """Changed left rows are looked up; for changed right rows, those that look them up are found."""
        left, right = self.left.title, self.right.title
        looked_up = tuple((scan, f"{words}, each looked up once in {right}") for scan, words in self.left.costs)
        if self.how == "outer":
            back = f", each looked up once in {left}"
        elif self.drive == "left":
            driven = "nothing; it is looked up, and its changes are not followed"
            return (*looked_up, *((scan, driven) for scan, _ in self.right.costs))
        elif self.equal_keys:
            back = f", and the rows of {left} with the same keys"
        else:
            back = f", and a scan of {left} for the rows whose {', '.join(self.on)} is among them"
        return (*looked_up, *((scan, words + back) for scan, words in self.right.costs))
