"""The position of a table: what it was computed from, written into its own commits, and read without a JVM.

A commit of ours carries its position as JSON in `userMetadata`, and its number `n` as a Delta transaction of the
application `<table>/<epoch>` (the fence). Checkpoints keep the transaction and drop the metadata (Delta protocol,
"Commit Provenance Information"), so the position at the start of an epoch is also a table property (the anchor).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from spark.engine.offsets import TopicOffsets
from spark.topology.nodes import leader_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ANCHOR = "tidetable.anchor"
FORMAT = 5
"""The version of the stored format: positions in commits, properties of a table, definitions, names of columns. A table
with a newer format is refused. A change to the stored format raises this number, reads the older formats too, and adds
an example of them to `tests/engine/golden`. Formats 1 and 2 named inputs without their topology; formats 1 to 3 have
no types of inputs in definitions; up to format 4 no commit replaced rows by the keys of a frame."""
STORED_FORMAT = "tidetable.format"  # a property; a table without it is older than the numbering, and is read
DEFINITION = "tidetable.definition"
"""The property that holds the definition that the table was computed by: a landing's columns, a table's plan."""
CLOSED = 2**63 - 1  # the number that closes an epoch: Delta accepts no greater one

Cut = dict[str, TopicOffsets]
"""By `<cluster id>/<topic>`: the next offset of every partition."""


@dataclass(frozen=True)
class Input:
    """A version of a stored input. `id` is the Delta table's, which a recreated table does not have."""

    id: str
    version: int


@dataclass(frozen=True)
class Release:
    """The cut up to which steps may read what has landed, and the run that committed it.

    `times` has the newest time up to the cut, in microseconds since 1970, by topic and partition. `enforced` are the
    topics whose held records were released at the deadline, although a partition was empty.
    """

    run: str
    cut: Cut
    times: dict[str, dict[int, int]]
    enforced: tuple[str, ...] = ()


@dataclass(frozen=True)
class Gap:
    """Offsets of a partition, or versions of a stored input, that were removed before they were read.

    `first` and `last` are inclusive. `at` is when they were found missing, in milliseconds since 1970.
    """

    input: str
    partition: int | None
    first: int
    last: int
    reason: str
    at: int

    @property
    def width(self) -> int:
        """The number of offsets, or versions."""
        return self.last - self.first + 1


@dataclass(frozen=True)
class Gated:
    """The result of a gate for all rows of a table.

    `gate` is the digest of the gate. `version` is the version on whose rows it was evaluated as a whole, and `failing`
    counts those that failed, by expectation (None: it is not about single rows). `let_through` counts the same among
    the newest rows that were committed since.
    """

    gate: str
    version: int
    failing: dict[str, int | None]
    let_through: dict[str, int | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Counts:
    """How many records the commits of a landing wrote, up to the number `through` and the landing's `version`.

    `records` is from Delta's metrics of the commits, without those that were dropped from quarantine. `values`,
    `tombstones` and `errors` were counted in the rows.
    `others`: somebody else changed the landing.
    """

    through: int
    version: int
    records: int = 0
    values: int = 0
    tombstones: int = 0
    errors: int = 0
    others: bool = False


@dataclass(frozen=True)
class Position:
    """What commit `n` of a table was computed from: the `cut` of its source topics, and the versions of its `inputs`.

    Inputs are named as in the plan: `<table>` or `_landing/<topic>` of the table's own topology, `<topology>/<table>`
    of another one, `<lake>/<topology>/<table>` in another lake. What is stored names all of them in full.

    - `data_version`: the newest version that changed data before this commit.
    - `whole`: the commit computed every key, not only the touched ones.
    - `floor`: of a landing, the first offset of each partition when its topic was first landed, where it was not 0.
    - `bootstrap`: of a landing, the offsets that were captured when it was first landed, until it has reached them. No
      table reads it before (KIP-99).
    - `time`: stream time of an operator on streams, in microseconds since 1970 (KIP-353).
    - `dropped`: how many records the table has dropped so far, by reason; of a landing, how many were dropped from its
      quarantine on request, by the reason that was given and by whom.
    - `lateness`: how late the newest records were by stream time, in milliseconds: `avg` and `max`.
    - `seen`: by landing, the greatest timestamp of each versioned table that is looked up, in microseconds since 1970.
    - `enforced`: how many steps were made although an input was empty.
    - `release`: the cut that limits all steps of the topology; in one landing only (`spark.engine.time_sync`).
    - `restored`: the version of this table whose rows and position the commit restored. It undid the commits between.
    - `gaps`: the ledger: all that was missing up to this commit (`on_data_loss="ledger"`).
    - `gated`: the result of the table's gate; None without a gate, or if it has not evaluated all rows.
    - `begun`: by stored input whose changes are read, the version whose rows replace all changes up to it. Those had
      expired when the table was first computed.
    - `read_at`: when a landing was last read up to the cut, in milliseconds since 1970.
    - `cleaned`: how many tombstones a landing wrote for those that compaction had removed (`missed_tombstones`).
    - `deleted`: of a commit that replaced the rows of a small step, how many keys it deleted; None of any other.
    - `counts`: what a landing received before this commit, including this one if it decoded records again
      (`spark.engine.counts`); None if it was not counted.
    - `widened`: the commit rewrote all rows with wider types of columns, and changed no value.
    """

    table: str
    epoch: str
    n: int
    run: str
    cut: Cut
    inputs: dict[str, Input]
    data_version: int
    whole: bool = False
    floor: dict[int, int] = field(default_factory=dict)
    bootstrap: dict[int, int] = field(default_factory=dict)
    time: int | None = None
    dropped: dict[str, int] = field(default_factory=dict)
    lateness: dict[str, float] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)
    enforced: int = 0
    release: Release | None = None
    restored: int | None = None
    gaps: tuple[Gap, ...] = ()
    gated: Gated | None = None
    begun: dict[str, int] = field(default_factory=dict)
    read_at: int | None = None
    cleaned: int = 0
    deleted: int | None = None
    counts: Counts | None = None
    widened: bool = False

    @property
    def app_id(self) -> str:
        """The application id of the fence: `<table>/<epoch>`."""
        return f"{self.table}/{self.epoch}"

    @property
    def is_readable(self) -> bool:
        """Whether tables may read the table: a step computed it, or its first landing has reached its cut."""
        return self.n > 0 and not self.bootstrap

    def next(self, run: str, data_version: int) -> Position:
        """Return the position of the table's next commit, without what tells of one commit alone.

        Args:
            run: the run that commits.
            data_version: the newest version that changed data so far.
        """
        return replace(
            self,
            n=self.n + 1,
            run=run,
            data_version=data_version,
            whole=False,
            restored=None,
            deleted=None,
            widened=False,
        )

    def to_json(self) -> str:
        """Return the JSON that `userMetadata` holds."""
        fields = {"tidetable": 1, **asdict(self)}
        own = self.table.partition("/")[0] + "/"
        _rename_inputs(fields, lambda name: name if leader_parts(name) else own + name)
        return json.dumps(fields, sort_keys=True, separators=(",", ":"))

    @staticmethod
    def from_json(text: str | None) -> Position | None:
        """Return the position in a commit's metadata; None if the commit is not ours."""
        try:
            fields = json.loads(text or "")
        except ValueError:
            return None
        if not isinstance(fields, dict) or fields.pop("tidetable", None) != 1:
            return None
        own = fields["table"].partition("/")[0] + "/"
        _rename_inputs(fields, lambda name: name.removeprefix(own))
        fields["cut"] = _cut(fields["cut"])
        fields["inputs"] = {name: Input(**at) for name, at in fields["inputs"].items()}
        fields["floor"] = _by_partition(fields["floor"])
        fields["bootstrap"] = _by_partition(fields.get("bootstrap", {}))
        fields["gaps"] = tuple(Gap(**gap) for gap in fields.get("gaps", ()))
        if (gated := fields.get("gated")) is not None:
            fields["gated"] = Gated(**gated)
        if (counts := fields.get("counts")) is not None:
            fields["counts"] = Counts(**counts)
        if (release := fields.get("release")) is not None:
            times = {topic: _by_partition(known) for topic, known in release["times"].items()}
            enforced = tuple(release["enforced"])
            fields["release"] = Release(release["run"], _cut(release["cut"]), times, enforced)
        return Position(**fields)


def _rename_inputs(fields: dict[str, Any], rename: Callable[[str], str]) -> None:
    """Replace every name of an input in the fields of a position."""
    for name in ("inputs", "seen", "begun"):
        fields[name] = {rename(table): value for table, value in fields.get(name, {}).items()}
    gaps = fields.get("gaps", ())
    # A gap of a landing names its topic.
    fields["gaps"] = [gap | {"input": rename(gap["input"])} if gap["partition"] is None else gap for gap in gaps]


def _cut(cut: Mapping[str, Any]) -> Cut:
    return {topic: TopicOffsets(**at | {"offsets": _by_partition(at["offsets"])}) for topic, at in cut.items()}


def _by_partition(offsets: Mapping[str, int]) -> dict[int, int]:
    return {int(partition): offset for partition, offset in offsets.items()}
