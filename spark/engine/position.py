"""The position of a table: what it was computed from, written into its own commits, and read without a JVM.

A commit of ours carries its position as JSON in `userMetadata`, and its number `n` as a Delta transaction of the
application `<table>/<epoch>` (the fence). Checkpoints keep the transaction and drop the metadata (Delta protocol,
"Commit Provenance Information"), so the position at the start of an epoch is also a table property (the anchor).
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from spark.engine.errors import ChangesExpired, FormatUnknown, InputChanged, LogBroken, PositionLost
from spark.engine.offsets import TopicOffsets

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

PAGE = 20  # commits; the newest own commit is nearly always among them
ANCHOR = "tidetable.anchor"
FORMAT = 1
"""The version of the stored format: positions in commits, properties of a table, definitions, names of columns. A table
with a newer format is refused. A change to the stored format raises this number, reads the older formats too, and adds
an example of them to `tests/engine/golden`."""
STORED_FORMAT = "tidetable.format"  # a property; a table without it is older than the numbering, and is read
FORGETS = "delta.setTransactionRetentionDuration"  # Delta's default is null: transactions never expire
RETIRED = 2**63 - 1  # the number that closes an epoch: Delta accepts no greater one

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

    `records` is from Delta's metrics of the commits. `values`, `tombstones` and `errors` were counted in the rows.
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

    - `data_version`: the newest version that changed data before this commit.
    - `whole`: the commit computed every key, not only the touched ones.
    - `floor`: of a landing, the first offset of each partition when its topic was first landed, where it was not 0.
    - `time`: stream time of an operator on streams, in microseconds since 1970 (KIP-353).
    - `dropped`: how many records the table has dropped so far, by reason.
    - `lateness`: how late the newest records were by stream time, in milliseconds: `avg` and `max`.
    - `seen`: by landing, the greatest timestamp of each versioned table that is looked up, in microseconds since 1970.
    - `enforced`: how many steps were made although an input was empty.
    - `release`: the cut that limits all steps of the topology; in one landing only (`spark.engine.sync`).
    - `restored`: the version of this table whose rows and position the commit restored. It undid the commits between.
    - `gaps`: the ledger: all that was missing up to this commit (`on_data_loss="ledger"`).
    - `gated`: the result of the table's gate; None without a gate, or if it has not evaluated all rows.
    - `begun`: by stored input whose changes are read, the version whose rows replace all changes up to it. Those had
      expired when the table was first computed.
    - `read_at`: when a landing was last read up to the cut, in milliseconds since 1970.
    - `cleaned`: how many tombstones a landing wrote for those that compaction had removed (`spark.engine.cleaned`).
    - `counts`: what a landing received before this commit, including this one if it decoded records again
      (`spark.engine.counts`); None if it was not counted.
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
    counts: Counts | None = None

    def to_json(self) -> str:
        """Return the JSON that `userMetadata` holds."""
        return json.dumps({"tidetable": 1, **asdict(self)}, sort_keys=True, separators=(",", ":"))

    @staticmethod
    def from_json(text: str | None) -> Position | None:
        """Return the position in a commit's metadata; None if the commit is not ours."""
        try:
            fields = json.loads(text or "")
        except ValueError:
            return None
        if not isinstance(fields, dict) or fields.pop("tidetable", None) != 1:
            return None
        fields["cut"] = _cut(fields["cut"])
        fields["inputs"] = {name: Input(**at) for name, at in fields["inputs"].items()}
        fields["floor"] = _by_partition(fields["floor"])
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


@dataclass(frozen=True)
class Commit:
    """A version of a table whose commit has a position of ours."""

    version: int
    data_version: int
    """The newest version before our next commit that changed data, whoever wrote it."""
    position: Position
    metrics: dict[str, int]
    """Delta's metrics of the commit."""
    at: int = 0
    """The time of the commit, in milliseconds since 1970."""


@dataclass(frozen=True)
class Changed:
    """A version that changed data: how many rows (None: unknown), and the position (None: not our commit)."""

    version: int
    rows: int | None
    position: Position | None
    replaced: bool = False
    """The commit replaced all rows, maybe with other columns."""


@dataclass(frozen=True)
class State:
    """The state of a stored table, read from its log."""

    id: str
    version: int
    data_version: int
    position: Position
    properties: dict[str, str]
    metrics: dict[str, int]
    """Delta's metrics of the commit that carries the position."""
    at: int = 0
    """The time of that commit, in milliseconds since 1970."""
    own: int = 0
    """The version of that commit. Later versions were committed by others."""


@dataclass(frozen=True)
class _Entry:
    version: int
    operation: str
    metadata: str | None
    metrics: dict[str, int]
    overwrites: bool
    at: int
    transaction: str = ""
    """Delta's id of the commit, which is unique."""


def read(path: str, table: str) -> State | None:
    """Return the state of a stored table; None if it does not exist.

    Raises:
        PositionLost: the table exists, and its log does not say what it was computed from.
        LogBroken: its log cannot be read, or its transactions expire.
        FormatUnknown: a later version of Tidetable wrote it.
    """
    try:
        delta, history = _history(path)
    except TableNotFoundError:
        return None
    _check_format(delta, table)
    anchor = _anchor(delta, path, table)
    _check_fence(delta, path, table)
    ours = _commits(history, anchor)
    newest = next(ours)
    next(ours, None)  # raises for a RESTORE between the two newest commits, which the newest did not see
    position = newest.position
    fence = delta.transaction_version(app(anchor))
    if fence != position.n and not (fence is None and position.n == 0):
        raise PositionLost(
            f"{table}: the newest position in its log is number {position.n}, but {fence} was committed: "
            f"{_remedy(table)}"
        )
    return replace(_state(delta, newest.data_version, position, newest.metrics, newest.at), own=newest.version)


def app(position: Position) -> str:
    """Return the application id of the fence: `<table>/<epoch>`."""
    return f"{position.table}/{position.epoch}"


def fence(path: str, position: Position) -> int | None:
    """Return the greatest number that was committed in the position's epoch; None if there is none."""
    return DeltaTable(path).transaction_version(app(position))


def version(path: str) -> int:
    """Return the newest version of a table, whoever committed it."""
    return DeltaTable(path).version()


def salvage(path: str, table: str) -> State:
    """Return a state for a table whose position is lost: number 0 in its last known epoch, with its newest gaps."""
    delta, history = _history(path)
    epoch = _anchor(delta, path, table).epoch
    told = (Position.from_json(entry.metadata) for entry in history)
    gaps = next((one.gaps for one in told if one is not None and one.table == table), ())
    nothing = Position(table, epoch, n=0, run="", cut={}, inputs={}, data_version=delta.version(), gaps=gaps)
    return _state(delta, delta.version(), nothing, {})


def open_beside(path: str, table: str) -> list[Position]:
    """Return a position of every epoch that is not closed, except the table's present one.

    A RESTORE to before an epoch leaves it open; of two concurrent rebuilds, each may have begun an epoch.
    """
    delta, history = _history(path)
    own = app(_anchor(delta, path, table))
    told = [Position.from_json(entry.metadata) for entry in history]
    found = {app(one): one for one in told if one is not None and one.table == table and app(one) != own}
    return [one for one in found.values() if delta.transaction_version(app(one)) != RETIRED]


def commits(path: str, table: str, until: int | None = None) -> Iterator[Commit]:
    """Return the commits of this table's epoch (up to a version), newest first.

    Excludes the anchor, which no step computed, and commits that a restore undid.
    """
    return _standing(every(path, table), until)


def every(path: str, table: str) -> Iterator[Commit]:
    """Return the commits of this table's epoch, newest first, including those that a restore undid."""
    delta, history = _history(path)
    return (commit for commit in _commits(history, _anchor(delta, path, table)) if commit.position.n > 0)


def _standing(found: Iterator[Commit], until: int | None) -> Iterator[Commit]:
    for commit in found:
        if until is None or commit.version <= until:
            yield commit
            until = commit.position.restored if commit.position.restored is not None else until


def at(path: str, table: str, version: int, cut: Cut) -> Position:
    """Return the newest position of a table whose rows are at most of `version`, and whose cut is part of `cut`.

    Includes closed epochs, and commits that a restore undid.

    Raises:
        ChangesExpired: the log was cleaned up, and no longer has the position.
    """
    for entry in _history(path)[1]:
        position = Position.from_json(entry.metadata)
        if position is None or position.table != table or position.n in (0, RETIRED):
            continue
        data_version = position.data_version if changed_rows(entry) == 0 else entry.version
        if data_version <= version and position.cut.items() <= cut.items():
            return position
    raise ChangesExpired(
        f"the log of {table} was cleaned up, and no longer tells what it was computed from at version {version}"
    )


def told(path: str, table: str) -> dict[int, Position | None]:
    """Return, by version that the log has, the position of any epoch in it; None if the commit is not ours."""
    found = ((entry.version, Position.from_json(entry.metadata)) for entry in _history(path)[1])
    return {number: one if one is not None and one.table == table else None for number, one in found}


def changed(path: str, table: str, since: int, until: int) -> list[Changed]:
    """Return the commits after version `since`, up to `until`, that changed data; newest first.

    Raises:
        ChangesExpired: the log was cleaned up, and no longer has some of them.
    """
    found = []
    oldest, unchanged = until + 1, None
    for entry in _history(path)[1]:
        oldest = entry.version
        if entry.version <= since:
            break
        count, position = changed_rows(entry), Position.from_json(entry.metadata)
        ours = position if position is not None and position.table == table else None
        unchanged = unchanged if ours is None else ours.data_version
        if entry.version <= until and count != 0:
            found.append(Changed(entry.version, count, ours, entry.overwrites))
    # The oldest of our commits in the log has the version before it that last changed data.
    if oldest > since + 1 and (unchanged is None or unchanged > since):
        raise ChangesExpired(
            f"the log of {table} was cleaned up and begins at version {oldest}: what changed since version {since} "
            f"cannot be told"
        )
    return found


def standing(path: str, table: str, version: int) -> int:
    """Return the newest version with the same rows: the files of `version` are removed a week after a compaction."""
    newest = DeltaTable(path).version()
    try:
        later = changed(path, table, since=version, until=newest)
    except InputChanged:
        return version
    return min((one.version for one in later), default=newest + 1) - 1


def _check_format(delta: DeltaTable, table: str) -> None:
    """Refuse a table that a later version of Tidetable wrote: its positions may have another meaning."""
    stored = int(delta.metadata().configuration.get(STORED_FORMAT, 0))
    if stored > FORMAT:
        raise FormatUnknown(
            f"{table} is stored in format {stored}, and this version of Tidetable reads formats up to {FORMAT}: a "
            f"later version wrote it. Install that version, or a later one; nothing was changed"
        )


def _anchor(delta: DeltaTable, path: str, table: str) -> Position:
    anchor = Position.from_json(delta.metadata().configuration.get(ANCHOR))
    if anchor is None or anchor.table != table:
        raise PositionLost(
            f"{path} is a Delta table that Tidetable did not make for {table}; move it away or rename {table}"
        )
    return anchor


def _check_fence(delta: DeltaTable, path: str, table: str) -> None:
    """Refuse a table whose transactions expire: a run that was suspended for longer would commit a second time."""
    expires = delta.metadata().configuration.get(FORGETS)
    if expires is not None:
        raise LogBroken(
            f"{table}: {FORGETS} is '{expires}', so Delta forgets what was committed longer ago, and nothing keeps a "
            f"run that stood still from committing it again. No table of Tidetable may have that: "
            f"ALTER TABLE delta.`{path}` UNSET TBLPROPERTIES ('{FORGETS}')"
        )


def _state(delta: DeltaTable, data_version: int, position: Position, metrics: dict[str, int], at: int = 0) -> State:
    metadata = delta.metadata()
    return State(str(metadata.id), delta.version(), data_version, position, metadata.configuration, metrics, at)


def _commits(history: Iterable[_Entry], anchor: Position) -> Iterator[Commit]:
    """Yield the commits of the anchor's epoch, newest first, and the anchor itself at the end.

    Raises:
        PositionLost: the log has a Delta RESTORE that is newer than the next commit to yield.
    """
    foreign = 0  # the newest version since our last commit in which somebody else changed data; 0: none
    for entry in history:
        if entry.operation == "RESTORE":
            raise PositionLost(
                f"{anchor.table} was restored in version {entry.version}, so no position says what it holds: "
                f"{_remedy(anchor.table)}"
            )
        position = Position.from_json(entry.metadata)
        count = changed_rows(entry)
        if position is not None and app(position) == app(anchor) and position.n != RETIRED:
            data_version = position.data_version if count == 0 else entry.version
            yield Commit(entry.version, max(data_version, foreign), position, entry.metrics, entry.at)
            if position.n == 0:
                return
            foreign = 0
        elif count != 0:
            foreign = max(foreign, entry.version)
    yield Commit(0, max(anchor.data_version, foreign), anchor, {})


def _history(path: str) -> tuple[DeltaTable, Iterator[_Entry]]:
    """Return a table and its commits, newest first; reads the whole log only if the newest page does not suffice."""
    delta, page = _listed(path, PAGE)

    def entries() -> Iterator[_Entry]:
        yield from page
        if len(page) == PAGE:
            yield from _older(path, page[-1])

    return delta, entries()


def _listed(path: str, limit: int | None = None) -> tuple[DeltaTable, list[_Entry]]:
    """Return a table and its newest commits, which agree on the version of each.

    deltalake lists the files of the log, and numbers them down from the version that it loaded: a commit in between
    would shift all numbers. If there was one, this reads again: a page takes less time than a commit.
    """
    while True:
        delta = _opened(path)
        entries = [_entry(found) for found in delta.history(limit)]
        if DeltaTable(path).version() == delta.version():
            return delta, entries


def _older(path: str, last: _Entry) -> Iterator[_Entry]:
    """Yield the commits before `last`, newest first.

    A whole log takes long to read, and on a busy table there are commits meanwhile, which shift the numbers. So the
    commits are numbered down from `last`, whose version is known.
    """
    version = None
    for entry in map(_entry, _opened(path).history()):
        if version is not None:
            version -= 1
            yield replace(entry, version=version)
        elif replace(entry, version=last.version) == last:
            version = last.version


def _opened(path: str) -> DeltaTable:
    try:
        return DeltaTable(path)
    except TableNotFoundError:
        raise
    except OSError as error:  # of an object store: credentials, endpoint, bucket
        raise LogBroken(
            f"{path} cannot be read: {_first_line(error)}. Where the lake is an object store, this process takes "
            f"credentials and endpoint from the environment (AWS_ACCESS_KEY_ID and so on), the engine from its own "
            f"settings"
        ) from error
    except DeltaError as error:
        raise LogBroken(
            f"the log of {path} cannot be read: {_first_line(error)}. If a checkpoint is missing or broken, and the "
            f"log still has its JSON files from version 0 on, remove _last_checkpoint and *.checkpoint.parquet from "
            f"{path}/_delta_log: Delta makes them again. Else put the folder back from a copy"
        ) from error


def _first_line(error: Exception) -> str:
    """Return the first line of a library's message, without escape sequences and the stack that follows."""
    return re.sub(r"\x1b\[[0-9;]*m", "", str(error).partition("\n")[0])


def _entry(found: dict[str, Any]) -> _Entry:
    counted = found.get("operationMetrics") or {}
    metrics = {name: int(count) for name, count in counted.items() if str(count).isdigit()}
    overwrites = (found.get("operationParameters") or {}).get("mode") == "Overwrite"
    operation, metadata = found.get("operation", ""), found.get("userMetadata")
    transaction = found.get("txnId", "")
    return _Entry(found["version"], operation, metadata, metrics, overwrites, found.get("timestamp", 0), transaction)


def _remedy(table: str) -> str:
    if "/_landing/" in table:
        return f"move the folder {table} of the lake away to land its topic anew, then rebuild the tables that read it"
    return f"run `tidetable rebuild {table.replace('/', '.')}`"


def changed_rows(entry: _Entry) -> int | None:
    """Return how many rows a commit inserted, updated or deleted; None if its operation and metrics do not say."""
    match entry.operation:
        case "WRITE" if "numOutputRows" in entry.metrics and not entry.overwrites:
            return entry.metrics["numOutputRows"]
        case "MERGE":
            counts = [entry.metrics.get(f"numTargetRows{verb}") for verb in ("Inserted", "Updated", "Deleted")]
            known = [count for count in counts if count is not None]
            return sum(known) if len(known) == len(counts) else None
        case (
            "OPTIMIZE"
            | "VACUUM START"
            | "VACUUM END"
            | "SET TBLPROPERTIES"
            | "UNSET TBLPROPERTIES"
            | "ADD COLUMNS"
            | "CREATE TABLE"
        ):
            return 0
        case _:
            return None


def _cut(cut: Mapping[str, Any]) -> Cut:
    return {topic: TopicOffsets(**at | {"offsets": _by_partition(at["offsets"])}) for topic, at in cut.items()}


def _by_partition(offsets: Mapping[str, int]) -> dict[int, int]:
    return {int(partition): offset for partition, offset in offsets.items()}
