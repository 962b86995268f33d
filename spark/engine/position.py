"""Which inputs a table was computed from: written into its own commits, read back without a JVM.

A commit of ours carries its position as JSON in `userMetadata`, and its number `n` as a Delta transaction of the
application `<table>/<epoch>` (the fence). Checkpoints keep the transaction and drop the metadata (Delta protocol,
"Commit Provenance Information"), so the position at creation is also kept as a table property (the anchor).
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
"""The version of what is stored beside rows: positions in commits, the properties of a table, definitions, names of
columns. A table of a newer one is refused. Whoever changes what is stored raises it, reads the older ones still, and
adds what they look like to `tests/engine/golden`."""
STORED_FORMAT = "tidetable.format"  # a property; a table without it was made before formats had a number, and is read
FORGETS = "delta.setTransactionRetentionDuration"  # null, so for ever, unless somebody sets it
RETIRED = 2**63 - 1  # the number that closes an epoch: nothing can commit after it

Cut = dict[str, TopicOffsets]
"""By `<cluster id>/<topic>`: the next offset of every partition."""


@dataclass(frozen=True)
class Input:
    """A version of a stored input: the table's own id, so that a recreated table is not taken for it."""

    id: str
    version: int


@dataclass(frozen=True)
class Release:
    """How far steps may go in what has landed: a cut, by which run, and the newest time of every partition up to it.

    Times are microseconds since 1970, by topic and partition; `enforced` are the topics whose records were let go
    although a partition beside them was empty.
    """

    run: str
    cut: Cut
    times: dict[str, dict[int, int]]
    enforced: tuple[str, ...] = ()


@dataclass(frozen=True)
class Gap:
    """What was gone before it was read, first to last: offsets of a topic's partition, or versions of a stored input.

    `at` is when it was found missing, in milliseconds since 1970.
    """

    input: str
    partition: int | None
    first: int
    last: int
    reason: str
    at: int

    @property
    def width(self) -> int:
        """How many offsets, or versions, that is."""
        return self.last - self.first + 1


@dataclass(frozen=True)
class Gated:
    """What a gate says of all rows of a table: those that were there before it, and those that it let pass since.

    `gate` is the gate's digest. `version` is the one whose rows it looked at, and `failing` how many of them failed it
    there, by expectation (None: it is not about single rows). `let_through` is the same of the newest rows since.
    """

    gate: str
    version: int
    failing: dict[str, int | None]
    let_through: dict[str, int | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Counts:
    """How many records the commits of a landing wrote, up to number `through` and up to a version of the landing.

    `records` is what Delta counted in them; of each kind there were so many when they were counted. `others` says that
    somebody else changed the landing.
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
    """What commit `n` of a table was computed from: the cut of every topic behind it, and its direct inputs.

    `data_version` is the newest version that changed data before this commit; `whole` says that every key was computed,
    not only those a span touched; `floor` holds the first offsets that were still on the broker when a topic was first
    landed, where they were not 0.
    Of a stream's operator `time` is stream time in microseconds since 1970 (KIP-353), and `dropped` counts, by reason,
    the records that had no part in it so far; `lateness` is, in milliseconds, by how much the newest records were
    behind stream time: `avg` and `max`; `seen` is, by landing and in microseconds, the greatest timestamp in each
    versioned table that it looks up. `enforced` counts the steps that were made although an input was empty; `release`
    is kept by one landing for all of a topology (`spark.engine.sync`). `restored` is the version of this table whose
    rows, and position, the commit put back: those in between are history, and stand no more. `gaps` is the ledger of
    all that is missing, up to this commit (`on_data_loss="ledger"`). `gated` is what the table's gate says of its rows;
    None if there was none, or if it has not seen all of them. `begun` is, by stored input whose changes are read, the
    version whose rows stand for all changes until then: those were no longer told when the table was first computed.
    Of a landing `read_at` is when it was last read to the cut, in milliseconds since 1970, and `cleaned` counts the
    tombstones that stand for those that compaction had removed (`spark.engine.cleaned`), and `counts` what it was given
    before this commit, or with it where that decoded records again (`spark.engine.counts`); None if nobody counted yet.
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
        """The text kept in `userMetadata`."""
        return json.dumps({"tidetable": 1, **asdict(self)}, sort_keys=True, separators=(",", ":"))

    @staticmethod
    def from_json(text: str | None) -> Position | None:
        """The position in a commit's metadata, or None if the commit is not ours."""
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
    """A version of a table that carries a position of ours."""

    version: int
    data_version: int
    """The newest version that changed data: before the next commit of ours, by whomever."""
    position: Position
    metrics: dict[str, int]
    """What Delta counted in it."""
    at: int = 0
    """When it was made, in milliseconds since 1970."""


@dataclass(frozen=True)
class Changed:
    """A version of a table that changed data: how many rows (None: unknown), and its position if it is ours."""

    version: int
    rows: int | None
    position: Position | None
    replaced: bool = False
    """All rows were written anew, maybe with other columns."""


@dataclass(frozen=True)
class State:
    """A stored table as its log tells it."""

    id: str
    version: int
    data_version: int
    position: Position
    properties: dict[str, str]
    metrics: dict[str, int]
    """What Delta counted in the commit that carries the position."""
    at: int = 0
    """When that commit was made, in milliseconds since 1970."""
    own: int = 0
    """Its version; what others changed behind it is in none of ours yet."""


@dataclass(frozen=True)
class _Entry:
    version: int
    operation: str
    metadata: str | None
    metrics: dict[str, int]
    overwrites: bool
    at: int
    transaction: str = ""
    """Delta's own name for it, which no other commit has."""


def read(path: str, table: str) -> State | None:
    """The state of a stored table, or None where there is none.

    Raises:
        PositionLost: the table exists and cannot say what it was computed from.
        LogBroken: its log cannot be read, or forgets what was committed.
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
    next(ours, None)  # what was restored between the newest commit and the one before, the newest knew nothing of
    position = newest.position
    fence = delta.transaction_version(app(anchor))
    if fence != position.n and not (fence is None and position.n == 0):
        raise PositionLost(
            f"{table}: the newest position in its log is number {position.n}, but {fence} was committed: "
            f"{_remedy(table)}"
        )
    return replace(_state(delta, newest.data_version, position, newest.metrics, newest.at), own=newest.version)


def app(position: Position) -> str:
    """The fence's application: a table in one epoch."""
    return f"{position.table}/{position.epoch}"


def fence(path: str, position: Position) -> int | None:
    """The greatest number that was committed in the position's epoch."""
    return DeltaTable(path).transaction_version(app(position))


def version(path: str) -> int:
    """The newest version of a table, whoever made it."""
    return DeltaTable(path).version()


def salvage(path: str, table: str) -> State:
    """What is left of a table whose position is lost: computed from nothing, in its last known epoch, and its gaps."""
    delta, history = _history(path)
    epoch = _anchor(delta, path, table).epoch
    told = (Position.from_json(entry.metadata) for entry in history)
    gaps = next((one.gaps for one in told if one is not None and one.table == table), ())
    nothing = Position(table, epoch, n=0, run="", cut={}, inputs={}, data_version=delta.version(), gaps=gaps)
    return _state(delta, delta.version(), nothing, {})


def open_beside(path: str, table: str) -> list[Position]:
    """A position of every epoch but the table's own in which somebody could still commit.

    RESTORE takes a table back behind some; of two rebuilds at once, each may have begun one.
    """
    delta, history = _history(path)
    own = app(_anchor(delta, path, table))
    told = [Position.from_json(entry.metadata) for entry in history]
    found = {app(one): one for one in told if one is not None and one.table == table and app(one) != own}
    return [one for one in found.values() if delta.transaction_version(app(one)) != RETIRED]


def commits(path: str, table: str, until: int | None = None) -> Iterator[Commit]:
    """The commits of this table's epoch that stand (up to a version), newest first.

    Its anchor is none: it was computed from nothing. Nor are those that a restore went back behind.
    """
    return _standing(every(path, table), until)


def every(path: str, table: str) -> Iterator[Commit]:
    """The commits of this table's epoch, newest first, also those that a restore went back behind."""
    delta, history = _history(path)
    return (commit for commit in _commits(history, _anchor(delta, path, table)) if commit.position.n > 0)


def _standing(found: Iterator[Commit], until: int | None) -> Iterator[Commit]:
    for commit in found:
        if until is None or commit.version <= until:
            yield commit
            until = commit.position.restored if commit.position.restored is not None else until


def at(path: str, table: str, version: int, cut: Cut) -> Position:
    """The position of a table where it is pinned: at a version, and at least as far as its part of a cut.

    Also of an epoch that is over, or of a commit that a restore went back behind.

    Raises:
        ChangesExpired: the log was cleaned up, and no longer holds it.
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
    """By version that the log still holds, of any epoch: the position in it, or None if it is not ours."""
    found = ((entry.version, Position.from_json(entry.metadata)) for entry in _history(path)[1])
    return {number: one if one is not None and one.table == table else None for number, one in found}


def changed(path: str, table: str, since: int, until: int) -> list[Changed]:
    """The commits after version `since`, up to `until`, that changed data; newest first.

    Raises:
        ChangesExpired: the log was cleaned up, and some of them are no longer in it.
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
    # The oldest commit of ours that is left knows which version before it was the last to change data.
    if oldest > since + 1 and (unchanged is None or unchanged > since):
        raise ChangesExpired(
            f"the log of {table} was cleaned up and begins at version {oldest}: what changed since version {since} "
            f"cannot be told"
        )
    return found


def standing(path: str, table: str, version: int) -> int:
    """The newest version with the rows of a version. Its own files are gone a week after it was compacted."""
    newest = DeltaTable(path).version()
    try:
        later = changed(path, table, since=version, until=newest)
    except InputChanged:
        return version
    return min((one.version for one in later), default=newest + 1) - 1


def _check_format(delta: DeltaTable, table: str) -> None:
    """Refuse a table that a later version of Tidetable wrote, whose positions may mean something else."""
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
    """Refuse a table whose transactions expire: behind that a run that stood still would commit a second time."""
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
    """The commits of the anchor's epoch, newest first, and the anchor itself at the end.

    Raises:
        PositionLost: somebody restored an older version since.
    """
    foreign = 0  # the newest version since in which somebody else changed data; 0 created the table
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
    """A table and its commits, newest first; the whole log is read only if its newest page was not enough."""
    delta, page = _listed(path, PAGE)

    def entries() -> Iterator[_Entry]:
        yield from page
        if len(page) == PAGE:
            yield from _older(path, page[-1])

    return delta, entries()


def _listed(path: str, limit: int | None = None) -> tuple[DeltaTable, list[_Entry]]:
    """A table and its newest commits, of one moment.

    deltalake lists the files that are there, and numbers them down from the version it loaded: a commit in between
    would shift them all. Where there was one, it looks again: a page is read in less time than a commit takes.
    """
    while True:
        delta = _opened(path)
        entries = [_entry(found) for found in delta.history(limit)]
        if DeltaTable(path).version() == delta.version():
            return delta, entries


def _older(path: str, last: _Entry) -> Iterator[_Entry]:
    """The commits before one, newest first.

    A whole log takes long to read, and on a busy table somebody commits meanwhile: what that shifted is put right by
    the number of the commit that is known.
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
    except OSError as error:  # an object store's: credentials, an address, a name
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
    """What a library says, without the stack that it says it with."""
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
    """How many rows a commit inserted, updated or deleted; None where its operation does not tell."""
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
