"""Renders results for users: lines, grids, or JSON."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Column
from rich.table import Table as Grid

from spark.engine.attempt import Stepped
from spark.engine.audit import Audited, Unprovable
from spark.engine.compact import Compacted
from spark.engine.land import Landed
from spark.engine.publish import Published
from spark.engine.quarantine import Dropped, Redecoded
from spark.engine.status import describe_first_offsets, describe_held, describe_waiting, metrics, utc_text
from spark.topology.nodes import LANDING, leader_parts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from assets.gates import Verdict
    from spark.engine.check import Checked
    from spark.engine.dropped_records import DroppedRecord, DroppedRecords
    from spark.engine.log.position import Position
    from spark.engine.log.stored_table import State
    from spark.engine.quarantine import RawRecord, Undecodable
    from spark.engine.status import TableStatus
    from spark.engine.tick import Ticked
    from spark.engine.time_sync import Waiting
    from spark.query.history import History

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

SHORT = 3  # lines of a refusal that `status` shows in full

COLOURS = {"stepped": "green", "landed": "green", "published": "green", "waiting": "yellow"}


def dotted(table: str) -> str:
    """The name of a table as commands take it, `shop.orders`; of its landing, `shop.orders landing`."""
    topology, _, name = table.partition("/")
    if name.startswith(LANDING):
        return f"{topology}.{name.removeprefix(LANDING)} landing"
    return f"{topology}.{name}"


def result_line(result: Landed | Stepped | Published | Redecoded | Dropped | Compacted) -> str:
    """One line on the result of a landing, a step, a publication, a decoding, a drop or a compaction.

    Below the line of a step are the expectations that rows of its table fail.
    """
    match result:
        case Compacted():
            rewritten = f"{result.removed} files rewritten as {result.added}"
            return _line("compacted", result.table, rewritten if result.removed else "no small files", result.seconds)
        case Redecoded():
            counts = f"{result.decoded} records, {result.left} still in quarantine"
            return _line("decoded", result.table, counts, result.seconds)
        case Dropped():
            counts = f"{result.dropped} records from quarantine, {result.left} still in it"
            return _line("dropped", result.table, counts, result.seconds)
        case Published():
            return _line(result.outcome, result.table, _published_counts(result), result.seconds)
        case Landed():
            return _line(result.outcome, result.table, _landed_counts(result), result.seconds)
    line = _line(result.outcome, result.table, _stepped_counts(result), result.seconds)
    return "\n".join([line, *(f"    [yellow]{escape(gate_line)}[/]" for gate_line in gate_lines(result.after))])


def _published_counts(published: Published) -> str:
    version = "" if published.after is None else f"version {published.after.version}  "
    records = f"{published.records} records, {published.tombstones} of them tombstones" if published.records else ""
    left_out = f"{published.left_out} refused by the topic and replaced since" if published.left_out else ""
    skipped = f"[red]{len(published.skipped)} skipped[/]" if published.skipped else ""
    return f"{version}to {published.topic}  {', '.join(filter(None, [records, left_out, skipped]))}"


def _landed_counts(landed: Landed) -> str:
    missing = sum(gap.width for gap in landed.gaps)
    counts = [
        f"{landed.records} records",
        f"[red]{landed.errors} in quarantine[/]" if landed.errors else "",
        f"[red]{missing} offsets missing[/]" if missing else "",
        f"{landed.cleaned} deleted by tombstones that compaction had removed" if landed.cleaned else "",
        _left(landed),
    ]
    return ", ".join(filter(None, counts))


def _left(landed: Landed) -> str:
    """How much of the offsets up to the cut has landed, and the time that the others will take; empty at the end."""
    done = sum(landed.end.values()) - sum(landed.start.values())
    if not landed.left or not done:
        return ""
    seconds = landed.seconds * landed.left / done
    return f"{done / (done + landed.left):.0%} of {done + landed.left:,} offsets, {seconds:.0f} s left"


def _stepped_counts(stepped: Stepped) -> str:
    version = "" if stepped.after is None else f"version {stepped.after.version}  "
    match stepped.outcome:
        case "stepped":
            rows = f"+{stepped.inserted} ~{stepped.updated} -{stepped.deleted} rows, {stepped.touched} keys touched"
            rows += "".join(f", [yellow]{note}[/]" for note in _begun(stepped.begun))
            restored = None if stepped.after is None else stepped.after.position.restored
            return f"{version}{rows}" + ("" if restored is None else f", restored to version {restored}")
        case "waiting":
            return f"{version}for {', '.join(stepped.waiting_for)}"
        case _:
            return version


def gate_lines(state: State | None) -> list[str]:
    """The expectations that a table's rows fail, a line each: first all stored rows, then the newest ones."""
    gated = None if state is None else state.position.gated
    if gated is None:
        return []
    stored = [
        f"version {gated.version}: {'the table fails' if count is None else f'{count} rows fail'}: {expectation}"
        for expectation, count in gated.failing.items()
    ]
    newest = [
        f"{'the newest rows together' if count is None else f'{count} of the newest rows'} fail, "
        f"and were committed with a warning: {expectation}"
        for expectation, count in gated.let_through.items()
    ]
    return stored + newest


def failure_line(error: Exception | str) -> str:
    """The line of a failure, with its message."""
    return f"[red]failed    [/] {escape(str(error))}"


def skipped_line(record: str) -> str:
    """The line of a record that was left out of its topic on a user's request."""
    return f"[red]skipped   [/] {escape(record)}"


def held_line(held: Waiting) -> str:
    """The line of records that a tick held back."""
    return f"[yellow]held      [/] {escape(describe_waiting(held))}"


def _line(outcome: str, table: str, counts: str, seconds: float) -> str:
    colour = COLOURS.get(outcome, "dim")
    return f"[{colour}]{outcome:<10}[/] {dotted(table):<36} {counts}  [dim]{seconds:.1f} s[/]"


def audit_lines(audited: Audited | Unprovable) -> str:
    """The lines of an audit's verdict."""
    if isinstance(audited, Unprovable):
        several = audited.until is not None and audited.until > audited.version
        versions = f"versions {audited.version} to {audited.until}" if several else f"version {audited.version}"
        return f"[yellow]unprovable[/] {dotted(audited.table):<36} {versions}: {escape(audited.why)}"
    rows = f"version {audited.version}, {audited.rows} rows"
    if audited.holds:
        return _line("holds", audited.table, rows, audited.seconds)
    sample = "\n".join(f"    {escape(json.dumps(row, default=str))}" for row in audited.sample)
    return f"[red]differs[/]    {dotted(audited.table):<36} {rows}, [red]{audited.differing} keys differ[/]:\n{sample}"


def status_grid(topology: str, statuses: Sequence[TableStatus], positions: bool = False) -> list[str | Grid]:
    """The state of all landings and tables: a grid of numbers, and a line for everything that needs words.

    `positions` adds the position of each table.
    """
    grid = _grid("table", "version", "lag", "records", "quarantine", "dropped", "gaps", "published")
    notes: list[str] = []
    for status in statuses:
        state, table, counted = status.state, _dotted_in(topology, status), status.counted
        quarantined = 0 if counted is None else counted.quarantined
        missing = sum(gap.width for gap in status.gaps)
        grid.add_row(
            table,
            "never" if state is None or state.position.n == 0 else str(state.version),
            "unknown" if status.lag is None else str(sum(status.lag.values())),
            "" if counted is None else str(counted.records),
            "" if counted is None else f"[red]{quarantined}[/]" if quarantined else "0",
            str(sum(state.position.dropped.values()) or "") if state is not None else "",
            f"[red]{missing}[/]" if missing else "",
            _published(status),
        )
        notes += [f"  {table}: {note}" for note in _notes(status, positions)]
    return [grid, *map(escape, notes)]


def _dotted_in(topology: str, status: TableStatus) -> str:
    """The name of a landing or a table of a topology, or of a leader, with its lake if that is another one."""
    if (leader := leader_parts(status.table)) is None:
        return dotted(f"{topology}/{status.table}")
    lake, of, name = leader
    return f"{of}.{name} read-only{'' if lake is None else f' in {lake}'}"


def _notes(status: TableStatus, positions: bool) -> list[str]:
    """What the grid of numbers does not show of a landing or a table, a line each."""
    topic = status.table.removeprefix(LANDING)
    notes = [
        status.log_error or "",
        f"refused: {_short(status.refused)}" if status.refused else "",
        f"waits for {', '.join(status.waiting_for).replace(LANDING, 'landing ')}" if status.waiting_for else "",
        str(status.bootstrap or ""),
        describe_held(status),
        *(f"{count} versions behind {name}" for name, count in status.leader_lag.items() if count),
        "lacks records that an input has decoded again; the next tick adds them" if status.redecoded else "",
        describe_first_offsets(topic, status.first_offsets),
        "event time is the time of arrival: message.timestamp.type of the topic is LogAppendTime"
        if status.arrival_time
        else "",
    ]
    if status.counted is not None:
        notes += [f"wrong: {mismatch}" for mismatch in status.counted.wrong]
        notes += [f"{count} in quarantine: {reason}" for reason, count in status.counted.reasons.items()]
        notes += [f"{count} dropped from quarantine: {reason}" for reason, count in status.counted.dropped.items()]
    if status.taken is not None and status.taken.wrong:
        notes.append(f"wrong: {status.taken.wrong}")
    notes += [
        f"{count} rows whose {name} no event has: null, and unknown" for name, count in (status.unknown or {}).items()
    ]
    if status.state is not None:
        if cleaned := status.state.position.cleaned:
            notes.append(f"{cleaned} deleted by tombstones that compaction had removed before they were landed")
        notes += _begun(status.state.position.begun)
        notes += gate_lines(status.state)
        counters = metrics(status.state.position)
        notes.append(", ".join(f"{name} {number:g}" for name, number in counters.items() if number))
        if positions:
            notes.append("; ".join(filter(None, [_inputs(status.state.position), _cut(status)])))
    return [note for note in notes if note]


def _short(refusal: str) -> str:
    """A refusal on one line. Of a long one, what is refused and what to do: the step itself shows all lines."""
    lines = [line.strip() for line in refusal.splitlines()]
    return "; ".join(lines) if len(lines) <= SHORT else f"{lines[0]} {lines[-1]}"


def _begun(begun: Mapping[str, int]) -> list[str]:
    """The inputs whose rows replace older changes that were gone, a line each."""
    return [
        f"begins with the rows of {name} at version {version}: older changes were gone"
        for name, version in begun.items()
    ]


def _inputs(position: Position) -> str:
    """The versions of the inputs that a table was computed from."""
    inputs = (f"{'landing' if name.startswith(LANDING) else name}@{at.version}" for name, at in position.inputs.items())
    return ", ".join(inputs)


def _published(status: TableStatus) -> str:
    """The version that the topic has, and the numbers of versions that it does not have and of skipped records."""
    version = "" if status.published is None else str(status.published.version)
    behind = f"{status.unpublished} behind" if status.unpublished else ""
    skipped = f"{status.published.skipped} skipped" if status.published is not None and status.published.skipped else ""
    return ", ".join(filter(None, [version, behind, skipped]))


def _grid(*columns: str) -> Grid:
    """A grid that truncates no text, so that names can be copied."""
    first, *others = columns
    return Grid(
        Column(first, no_wrap=True),
        *(Column(name, overflow="fold") for name in others),
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )


def _cut(status: TableStatus) -> str:
    """The cut of a table: the end offset of each partition of each topic."""
    cut = {} if status.state is None else status.state.position.cut
    by_topic = {name.partition("/")[2]: sorted(end.offsets.items()) for name, end in sorted(cut.items())}
    return ", ".join(f"{topic} {' '.join(f'{p}:{offset}' for p, offset in ends)}" for topic, ends in by_topic.items())


def check_lines(checked: Checked, verdict: Verdict | None) -> list[str]:
    """The result of a suite on all rows of a table: a line, and one for each expectation that does not hold."""
    if verdict is None:
        return [f"  check {dotted(checked.table):<24} no rows yet"]
    summary = f"{len(verdict.failures)} of {verdict.expectations} expectations fail" if verdict.failures else "holds"
    lines = [f"  check {dotted(checked.table):<24} version {checked.version}: {summary}"]
    for failure in verdict.failures:
        rows = "" if failure.rows is None else f"{failure.rows} rows, "
        lines.append(escape(f"    {failure.severity}: {failure.expectation}: {rows}such as {failure.sample}"))
    return lines


def check_json(checked: Checked, verdict: Verdict | None) -> Json:
    """The same as JSON; `failures` is null if the table has no rows."""
    failures = None if verdict is None else to_json(verdict.failures)
    return {"table": checked.table, "version": checked.version, "failures": failures, "seconds": checked.seconds}


def check_error_json(table: str, error: Exception) -> Json:
    """A table whose suite could not be evaluated, and why, as JSON."""
    return {"table": table, "version": None, "failures": None, "error": str(error)}


def quarantine_grid(records: Sequence[Undecodable]) -> Grid:
    """A grid of records that did not decode."""
    grid = _grid("topic", "partition", "offset", "error", "key", "value")
    for record in records:
        place = (record.topic, str(record.partition), str(record.offset))
        grid.add_row(*place, *(escape(printable(text or "")) for text in (record.error, record.key, record.value)))
    return grid


def reasons_grid(counts: Sequence[tuple[str, int, str]]) -> Grid:
    """A grid of reasons of quarantine: the topic, the number of records, the reason."""
    grid = _grid("topic", "records", "reason")
    for topic, records, reason in counts:
        grid.add_row(topic, str(records), escape(printable(reason)))
    return grid


def raw_record_lines(record: RawRecord, limit: int) -> list[str]:
    """A record in quarantine, with at most `limit` bytes of its key and value, in hexadecimal digits and as text."""
    lines = [
        f"{record.topic} partition {record.partition} offset {record.offset}",
        f"  timestamp: {'none' if record.timestamp is None else record.timestamp.isoformat()}",
        f"  reason: {printable(record.error)}",
    ]
    for part, digits in (("key", record.key_hex), ("value", record.value_hex)):
        raw = None if digits is None else bytes.fromhex(digits)
        lines.append(f"  {part}: {'null' if raw is None else f'{len(raw)} bytes'}")
        lines += [] if raw is None else _dump(raw[:limit])
        if raw is not None and len(raw) > limit:
            lines.append(f"    {len(raw) - limit} more bytes: --bytes, or --json for all of them")
    lines += [f"  header {printable(name)}: {printable(str(text))}" for name, text in record.headers]
    return [escape(line) for line in lines]


def _dump(raw: bytes) -> list[str]:
    """Bytes, sixteen on a line: the place of the first, all of them in hexadecimal digits, and as ASCII text."""
    rows = [(at, raw[at : at + 16]) for at in range(0, len(raw), 16)]
    return [
        f"    {at:08x}  {row.hex(' '):<47}  {''.join(chr(byte) if 32 <= byte < 127 else '.' for byte in row)}"
        for at, row in rows
    ]


def printable(text: str) -> str:
    """A text on one line: control characters, such as a line's end or a terminal's colours, are escaped."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def gaps_grid(topology: str, statuses: Sequence[TableStatus]) -> Grid:
    """A grid of what was gone before it was read."""
    grid = _grid("table", "input", "partition", "first", "last", "found", "reason")
    for status in statuses:
        for gap in status.gaps:
            place = ("" if gap.partition is None else str(gap.partition), str(gap.first), str(gap.last))
            gap_input = gap.input.replace(LANDING, "landing ")
            grid.add_row(dotted(f"{topology}/{status.table}"), gap_input, *place, utc_text(gap.at), gap.reason)
    return grid


def first_offset_lines(topology: str, statuses: Sequence[TableStatus]) -> list[str]:
    """The landings that do not begin at offset 0, a line each. This is no gap: nothing was landed before."""
    return [
        f"{dotted(f'{topology}/{status.table}')} "
        f"{describe_first_offsets(status.table.removeprefix(LANDING), status.first_offsets)}"
        for status in statuses
        if status.first_offsets
    ]


def gaps_json(statuses: Sequence[TableStatus]) -> Json:
    """The gaps, and by landing the first offsets that are not 0, as JSON."""
    return {
        "gaps": [{"table": status.table, **asdict(gap)} for status in statuses for gap in status.gaps],
        "first_offsets": {status.table: _first_offsets(status) for status in statuses if status.first_offsets},
    }


def _first_offsets(status: TableStatus) -> Json:
    return {str(partition): offset for partition, offset in status.first_offsets.items()}


def older_lines(late: DroppedRecords) -> list[str]:
    """The number of records that were dropped before the log begins, a line for each reason."""
    return [
        f"{count} older records dropped: {reason}; the table's log, which was cleaned up, no longer says which"
        for reason, count in late.older.items()
    ]


def late_grid(records: Sequence[DroppedRecord]) -> Grid:
    """A grid of records that a stream dropped."""
    grid = _grid("topic", "partition", "offset", "timestamp", "reason", "stream time", "in version")
    for record in records:
        place = (record.topic, str(record.partition), str(record.offset))
        times = (record.timestamp or "", record.reason, record.stream_time or "")
        grid.add_row(*place, *times, str(record.version))
    return grid


def status_json(status: TableStatus) -> Json:
    """The state of a landing or a table, as JSON."""
    state = status.state
    return {
        "table": status.table,
        "version": None if state is None else state.version,
        "position": None if state is None else to_json({"tidetable": 1, **asdict(state.position)}),  # as in a step's
        "lag": None if status.lag is None else {**status.lag},
        "behind": status.is_lagging,
        "waiting_for": [*status.waiting_for],
        "held": to_json(status.held),
        "in_transactions": {**status.in_transactions},
        "gaps": to_json(status.gaps),
        "first_offsets": _first_offsets(status),
        "arrival_time": status.arrival_time,
        "counted": to_json(status.counted),
        "taken": to_json(status.taken),
        "unknown": to_json(status.unknown),
        "metrics": {} if state is None else {**metrics(state.position)},
        "trouble": status.log_error,
        "refused": status.refused,
        "read_only": status.is_leader,
        "leader_lag": {**status.leader_lag},
        "bootstrap": None if status.bootstrap is None else to_json(status.bootstrap),
        "published": None if status.published is None else to_json(status.published),
        "versions_behind": status.unpublished,
    }


def tick_json(ticked: Ticked) -> Json:
    """The result of a tick, as JSON."""
    return {
        "landed": [to_json(landed) for landed in ticked.landed],
        "stepped": [to_json(stepped) for stepped in ticked.stepped],
        "failed": {name: str(error) for name, error in ticked.failed.items()},
        "held": to_json(ticked.held),
        "published": to_json(ticked.published),
    }


def audit_json(audited: Audited | Unprovable) -> Json:
    """The verdict of an audit, as JSON; `holds` is null if the version could not be computed again."""
    fields = to_json(audited)
    assert isinstance(fields, dict)
    return {"holds": audited.holds if isinstance(audited, Audited) else None, **fields}


def rows_grid(rows: Sequence[Mapping[str, object]]) -> Grid:
    """Rows of a table."""
    grid = Grid(*(escape(name) for name in rows[0]), box=SIMPLE_HEAD)
    for row in rows:
        grid.add_row(*(_cell(value) for value in row.values()))
    return grid


def history_grid(history: History) -> Grid:
    """The changes of a key, oldest first."""
    names = next((list(change.row) for change in history if change.row is not None), [])
    grid = Grid("version", "committed", "cut", *map(escape, names), box=SIMPLE_HEAD)
    for change in history:
        row = ["deleted"] if change.row is None else [_cell(value) for value in change.row.values()]
        cut = "?" if change.cut is None else json.dumps(change.cut)
        grid.add_row(str(change.version), change.at.isoformat(timespec="milliseconds"), escape(cut), *row)
    return grid


def _cell(value: object) -> str:
    return "" if value is None else escape(value if isinstance(value, str) else str(to_json(value)))


def to_json(value: object) -> Json:
    """A frozen value as JSON; a value that JSON has no type for becomes text."""
    converted: Json = json.loads(json_text(value))
    return converted


def json_text(value: object) -> str:
    """The text of a value as JSON. What JSON has no type for becomes text: bytes in hexadecimal, and `NaN`."""
    try:
        return json.dumps(value, default=_jsonable, allow_nan=False, separators=(",", ":"))
    except ValueError:  # NaN, or an infinity: JSON has none
        return json.dumps(_without_nan(json.loads(json.dumps(value, default=_jsonable))), separators=(",", ":"))


def _without_nan(value: Json) -> Json:
    if isinstance(value, dict):
        return {name: _without_nan(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_without_nan(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _jsonable(value: object) -> object:
    if isinstance(value, bytes):
        return value.hex()
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)
