"""Renders results for users: one line each, tables, or JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Column
from rich.table import Table as Grid

from spark.engine.compact import Compacted
from spark.engine.land import Landed
from spark.engine.publish import Published
from spark.engine.quarantine import Redecoded
from spark.engine.repair import Audited, Unprovable
from spark.engine.status import describe_first_offsets, describe_held, describe_waiting, metrics, utc_text
from spark.engine.step import Stepped
from spark.topology.nodes import LANDING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from assets.gates import Verdict
    from spark.engine.check import Checked
    from spark.engine.late import Dropped, Late
    from spark.engine.position import Position, State
    from spark.engine.quarantine import Undecodable
    from spark.engine.status import TableStatus
    from spark.engine.sync import Waiting
    from spark.engine.tick import Ticked

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


def dotted(table: str) -> str:
    """The name of a table as commands take it, `shop.orders`; of its landing, `shop.orders landing`."""
    topology, _, name = table.partition("/")
    if name.startswith(LANDING):
        return f"{topology}.{name.removeprefix(LANDING)} landing"
    return f"{topology}.{name}"


def line(done: Landed | Stepped | Published | Redecoded | Compacted) -> str:
    """One line on the result of a landing, a step, a publication, a decoding or a compaction."""
    if isinstance(done, Compacted):
        return _line(
            "compacted",
            done.table,
            f"{done.removed} files are {done.added} now" if done.removed else "no files are small",
            done.seconds,
        )
    if isinstance(done, Redecoded):
        return _line("decoded", done.table, f"{done.decoded} records, {done.left} still do not", done.seconds)
    if isinstance(done, Published):
        version = "" if done.after is None else f"version {done.after.version}  "
        records = f"{done.records} records, {done.tombstones} of them tombstones" if done.records else ""
        left_out = f", {done.left_out} that it refuses left out" if done.left_out else ""
        left_out += f", [red]{len(done.skipped)} skipped[/]" if done.skipped else ""
        return _line(done.outcome, done.table, f"{version}to {done.topic}  {records}{left_out}", done.seconds)
    if isinstance(done, Landed):
        broken = f", [red]{done.errors} in quarantine[/]" if done.errors else ""
        missing = sum(gap.width for gap in done.gaps)
        lost = f", [red]{missing} offsets missing[/]" if missing else ""
        cleaned = f", {done.cleaned} deleted by tombstones that compaction had removed" if done.cleaned else ""
        return _line(done.outcome, done.table, f"{done.records} records{broken}{lost}{cleaned}", done.seconds)
    match done.outcome:
        case "stepped":
            rows = f"+{done.inserted} ~{done.updated} -{done.deleted} rows, {done.touched} keys touched"
            rows += "".join(f", [yellow]{note}[/]" for note in _begun(done.begun))
            restored = None if done.after is None else done.after.position.restored
            rows += "" if restored is None else f", as in version {restored}"
        case "waiting":
            rows = f"for {', '.join(done.waiting_for)}"
        case _:
            rows = ""
    version = "" if done.after is None else f"version {done.after.version}  "
    step = _line(done.outcome, done.table, f"{version}{rows}", done.seconds)
    return "\n".join([step, *(f"    [yellow]{escape(one)}[/]" for one in gated(done.after))])


def gated(state: State | None) -> list[str]:
    """The expectations that a table's rows fail, a line each: those of older rows, and of rows let through."""
    found = None if state is None else state.position.gated
    if found is None:
        return []
    stored = [
        f"in version {found.version} {'the table fails' if count is None else f'{count} rows fail'}: {one}"
        for one, count in found.failing.items()
    ]
    newest = [
        f"{'the table fails' if count is None else f'{count} of the newest rows fail'}, and were let through: {one}"
        for one, count in found.let_through.items()
    ]
    return stored + newest


def failure(why: Exception | str) -> str:
    """The line of a failure, with its message."""
    return f"[red]failed    [/] {escape(str(why))}"


def skipped(what: str) -> str:
    """The line of a record that was left out of its topic on a user's request."""
    return f"[red]skipped   [/] {escape(what)}"


def waits(what: Waiting) -> str:
    """The line of records that a tick held back."""
    return f"[yellow]held      [/] {escape(describe_waiting(what))}"


def _line(outcome: str, table: str, what: str, seconds: float) -> str:
    colour = {"stepped": "green", "landed": "green", "published": "green", "waiting": "yellow"}.get(outcome, "dim")
    return f"[{colour}]{outcome:<10}[/] {dotted(table):<36} {what}  [dim]{seconds:.1f} s[/]"


def verdict(audited: Audited | Unprovable) -> str:
    """The lines of an audit's verdict."""
    if isinstance(audited, Unprovable):
        several = audited.until is not None and audited.until > audited.version
        which = f"versions {audited.version} to {audited.until}" if several else f"version {audited.version}"
        return f"[yellow]left out  [/] {dotted(audited.table):<36} {which}: {escape(audited.why)}"
    told = f"version {audited.version}, {audited.rows} rows"
    if audited.holds:
        return _line("holds", audited.table, told, audited.seconds)
    wrong = "\n".join(f"    {escape(json.dumps(row, default=str))}" for row in audited.sample)
    return f"[red]differs[/]    {dotted(audited.table):<36} {told}, [red]{audited.differing} keys differ[/]:\n{wrong}"


def render_statuses(topology: str, statuses: Sequence[TableStatus], positions: bool = False) -> list[str | Grid]:
    """The state of all landings and tables: a grid of numbers, and a line for everything that needs words.

    `positions` adds the position of each table.
    """
    grid = _grid("table", "version", "lag", "records", "quarantine", "dropped", "gaps", "published")
    notes: list[str] = []
    for status in statuses:
        state, table = status.state, dotted(f"{topology}/{status.table}")
        never = state is None or state.position.n == 0
        counted = status.counted
        quarantined = 0 if counted is None else counted.quarantined
        missing = sum(gap.width for gap in status.gaps)
        grid.add_row(
            table,
            "never" if never or state is None else str(state.version),
            "unknown" if status.lag is None else str(sum(status.lag.values())),
            "" if counted is None else str(counted.records),
            "" if counted is None else f"[red]{quarantined}[/]" if quarantined else "0",
            str(sum(state.position.dropped.values()) or "") if state is not None else "",
            f"[red]{missing}[/]" if missing else "",
            _published(status),
        )
        notes += [f"  {table}: {note}" for note in _notes(status, positions)]
    return [grid, *map(escape, notes)]


def _notes(status: TableStatus, positions: bool) -> list[str]:
    """What the grid of numbers does not show of a landing or a table, a line each."""
    topic = status.table.removeprefix(LANDING)
    notes = [
        status.log_error or "",
        f"refused: {_short(status.refused)}" if status.refused else "",
        f"waits for {', '.join(status.waiting_for).replace(LANDING, 'landing ')}" if status.waiting_for else "",
        describe_held(status),
        "has not taken what was decoded again" if status.redecoded else "",
        describe_first_offsets(topic, status.first_offsets),
    ]
    if status.counted is not None:
        notes += [f"wrong: {what}" for what in status.counted.wrong]
        notes += [f"{count} in quarantine: {why}" for why, count in status.counted.reasons.items()]
    if status.taken is not None and status.taken.wrong:
        notes.append(f"wrong: {status.taken.wrong}")
    if status.state is not None:
        if cleaned := status.state.position.cleaned:
            notes.append(f"{cleaned} deleted by tombstones that compaction had removed before they were landed")
        notes += _begun(status.state.position.begun)
        notes += gated(status.state)
        counts = metrics(status.state.position)
        notes.append(", ".join(f"{name} {number:g}" for name, number in counts.items() if number))
        if positions:
            notes.append("; ".join(filter(None, [_inputs(status.state.position), _reached(status)])))
    return [note for note in notes if note]


def _short(refusal: str) -> str:
    """The first and the last line of a refusal: what is refused, and what to do. The step itself shows all lines."""
    lines = refusal.splitlines()
    return lines[0] if len(lines) == 1 else f"{lines[0]} {lines[-1]}"


def _begun(begun: Mapping[str, int]) -> list[str]:
    """The inputs whose rows replace older changes that were gone, a line each."""
    return [
        f"begins with the rows of {name} at version {version}: older changes were gone"
        for name, version in begun.items()
    ]


def _inputs(position: Position) -> str:
    """The versions of the inputs that a table was computed from."""
    read = (f"{'landing' if name.startswith(LANDING) else name}@{at.version}" for name, at in position.inputs.items())
    return ", ".join(read)


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


def _reached(status: TableStatus) -> str:
    """The cut of a table: the end offset of each partition of each topic."""
    cut = {} if status.state is None else status.state.position.cut
    offsets = {name.partition("/")[2]: sorted(at.offsets.items()) for name, at in sorted(cut.items())}
    return ", ".join(f"{topic} {' '.join(f'{p}:{offset}' for p, offset in its)}" for topic, its in offsets.items())


def checked(done: Checked, verdict: Verdict | None) -> list[str]:
    """The result of a suite on all rows of a table: a line, and one for each expectation that does not hold."""
    if verdict is None:
        return [f"  check {dotted(done.table):<24} no rows yet"]
    failed = f"{len(verdict.failures)} of {verdict.expectations} expectations fail" if verdict.failures else "holds"
    lines = [f"  check {dotted(done.table):<24} version {done.version}: {failed}"]
    for one in verdict.failures:
        rows = "" if one.rows is None else f"{one.rows} rows, "
        lines.append(escape(f"    {one.severity}: {one.expectation}: {rows}such as {one.sample}"))
    return lines


def checked_json(done: Checked, verdict: Verdict | None) -> Json:
    """The same as JSON; `failures` is null if the table has no rows."""
    failures = None if verdict is None else plain(verdict.failures)
    return {"table": done.table, "version": done.version, "failures": failures, "seconds": done.seconds}


def unchecked_json(table: str, why: Exception) -> Json:
    """A table whose suite could not be evaluated, and why, as JSON."""
    return {"table": table, "version": None, "failures": None, "error": str(why)}


def quarantine_grid(records: Sequence[Undecodable]) -> Grid:
    """A grid of records that did not decode."""
    grid = _grid("topic", "partition", "offset", "error", "key", "value")
    for record in records:
        place = (record.topic, str(record.partition), str(record.offset))
        grid.add_row(*place, *(escape(visible(text or "")) for text in (record.error, record.key, record.value)))
    return grid


def visible(text: str) -> str:
    """A text on one line: what a terminal would obey, as a line's end or a colour, is shown by its escape."""
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def gaps_grid(topology: str, statuses: Sequence[TableStatus]) -> Grid:
    """A grid of what was gone before it was read."""
    grid = _grid("table", "of", "partition", "first", "last", "found", "reason")
    for status in statuses:
        for gap in status.gaps:
            place = ("" if gap.partition is None else str(gap.partition), str(gap.first), str(gap.last))
            of = gap.input.replace(LANDING, "landing ")
            grid.add_row(dotted(f"{topology}/{status.table}"), of, *place, utc_text(gap.at), gap.reason)
    return grid


def beginnings(topology: str, statuses: Sequence[TableStatus]) -> list[str]:
    """The landings that did not begin at offset 0, a line each. This is no gap: nothing was landed before."""
    found = (
        (one.table, describe_first_offsets(one.table.removeprefix(LANDING), one.first_offsets)) for one in statuses
    )
    return [f"{dotted(f'{topology}/{table}')} {place}" for table, place in found if place]


def missing_json(statuses: Sequence[TableStatus]) -> Json:
    """The gaps, and by landing the first offsets that are not 0, as JSON."""
    return {
        "gaps": [{"table": status.table, **asdict(gap)} for status in statuses for gap in status.gaps],
        "first_offsets": {status.table: _first(status) for status in statuses if status.first_offsets},
    }


def _first(status: TableStatus) -> Json:
    return {str(partition): offset for partition, offset in status.first_offsets.items()}


def older(found: Late) -> list[str]:
    """The number of records that were dropped before the log begins, a line for each reason."""
    return [
        f"{count} older: {why}; the log was cleaned up, and does not tell which" for why, count in found.older.items()
    ]


def late_grid(records: Sequence[Dropped]) -> Grid:
    """A grid of records that a stream dropped."""
    grid = _grid("topic", "partition", "offset", "timestamp", "reason", "stream time", "in version")
    for record in records:
        place = (record.topic, str(record.partition), str(record.offset))
        timestamp, reached = (at or "" for at in (record.timestamp, record.stream_time))
        grid.add_row(*place, timestamp, record.reason, reached, str(record.version))
    return grid


def status_json(status: TableStatus) -> Json:
    """The state of a landing or a table, as JSON."""
    state = status.state
    return {
        "table": status.table,
        "version": None if state is None else state.version,
        "position": None if state is None else json.loads(state.position.to_json()),
        "lag": None if status.lag is None else {**status.lag},
        "behind": status.is_lagging,
        "waiting_for": [*status.waiting_for],
        "held": plain(status.held),
        "in_transactions": {**status.in_transactions},
        "gaps": plain(status.gaps),
        "first_offsets": _first(status),
        "counted": plain(status.counted),
        "taken": plain(status.taken),
        "metrics": {} if state is None else {**metrics(state.position)},
        "trouble": status.log_error,
        "refused": status.refused,
        "published": None if status.published is None else plain(status.published),
        "versions_behind": status.unpublished,
    }


def ticked_json(ticked: Ticked) -> Json:
    """The result of a tick, as JSON."""
    return {
        "landed": [plain(landed) for landed in ticked.landed],
        "stepped": [plain(stepped) for stepped in ticked.stepped],
        "failed": {name: str(error) for name, error in ticked.failed.items()},
        "held": plain(ticked.held),
        "published": plain(ticked.published),
    }


def audited_json(audited: Audited | Unprovable) -> Json:
    """The verdict of an audit, as JSON; `holds` is null if the version could not be computed again."""
    told = plain(audited)
    assert isinstance(told, dict)
    return {"holds": audited.holds if isinstance(audited, Audited) else None, **told}


def plain(value: object) -> Json:
    """A frozen value as JSON; a value that JSON has no type for becomes text."""
    told: Json = json.loads(json.dumps(value, default=_word))
    return told


def _word(value: object) -> object:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)
