"""Renders results for users: one line each, tables, or JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Column
from rich.table import Table as Grid

from assets.lag import began, held_back, metrics, moment
from assets.lag import told as held
from spark.engine.attempt import Stepped
from spark.engine.audit import Audited, Unprovable
from spark.engine.compact import Compacted
from spark.engine.land import Landed
from spark.engine.publish import Published
from spark.engine.quarantine import Redecoded
from spark.topology.nodes import LANDING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from assets.gates import Verdict
    from assets.lag import Standing
    from spark.engine.check import Checked
    from spark.engine.dropped_records import DroppedRecord, DroppedRecords
    from spark.engine.log.position import Position
    from spark.engine.log.stored_table import State
    from spark.engine.quarantine import Undecodable
    from spark.engine.tick import Ticked
    from spark.engine.time_sync import Waiting

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
    return f"[yellow]held      [/] {escape(held(what))}"


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


def standing_shown(topology: str, standings: Sequence[Standing], positions: bool = False) -> list[str | Grid]:
    """The state of all landings and tables: a grid of numbers, and a line for everything that needs words.

    `positions` adds the position of each table.
    """
    grid = _grid("table", "version", "lag", "records", "quarantine", "dropped", "gaps", "published")
    notes: list[str] = []
    for standing in standings:
        state, table = standing.state, dotted(f"{topology}/{standing.table}")
        never = state is None or state.position.n == 0
        counted = standing.counted
        quarantined = 0 if counted is None else counted.quarantined
        missing = sum(gap.width for gap in standing.gaps)
        grid.add_row(
            table,
            "never" if never or state is None else str(state.version),
            "unknown" if standing.lag is None else str(sum(standing.lag.values())),
            "" if counted is None else str(counted.records),
            "" if counted is None else f"[red]{quarantined}[/]" if quarantined else "0",
            str(sum(state.position.dropped.values()) or "") if state is not None else "",
            f"[red]{missing}[/]" if missing else "",
            _published(standing),
        )
        notes += [f"  {table}: {note}" for note in _notes(standing, positions)]
    return [grid, *map(escape, notes)]


def _notes(standing: Standing, positions: bool) -> list[str]:
    """What the grid of numbers does not show of a landing or a table, a line each."""
    topic = standing.table.removeprefix(LANDING)
    notes = [
        standing.trouble or "",
        f"refused: {_short(standing.refused)}" if standing.refused else "",
        f"waits for {', '.join(standing.waiting_for).replace(LANDING, 'landing ')}" if standing.waiting_for else "",
        held_back(standing),
        "has not taken what was decoded again" if standing.redecoded else "",
        began(topic, standing.floor),
    ]
    if standing.counted is not None:
        notes += [f"wrong: {what}" for what in standing.counted.wrong]
        notes += [f"{count} in quarantine: {why}" for why, count in standing.counted.reasons.items()]
    if standing.taken is not None and standing.taken.wrong:
        notes.append(f"wrong: {standing.taken.wrong}")
    if standing.state is not None:
        if cleaned := standing.state.position.cleaned:
            notes.append(f"{cleaned} deleted by tombstones that compaction had removed before they were landed")
        notes += _begun(standing.state.position.begun)
        notes += gated(standing.state)
        counts = metrics(standing.state.position)
        notes.append(", ".join(f"{name} {number:g}" for name, number in counts.items() if number))
        if positions:
            notes.append("; ".join(filter(None, [_inputs(standing.state.position), _reached(standing)])))
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


def _published(standing: Standing) -> str:
    """The version that the topic has, and the numbers of versions that it does not have and of skipped records."""
    version = "" if standing.sent is None else str(standing.sent.version)
    behind = f"{standing.unsent} behind" if standing.unsent else ""
    skipped = f"{standing.sent.skipped} skipped" if standing.sent is not None and standing.sent.skipped else ""
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


def _reached(standing: Standing) -> str:
    """The cut of a table: the end offset of each partition of each topic."""
    cut = {} if standing.state is None else standing.state.position.cut
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


def gaps_grid(topology: str, standings: Sequence[Standing]) -> Grid:
    """A grid of what was gone before it was read."""
    grid = _grid("table", "of", "partition", "first", "last", "found", "reason")
    for standing in standings:
        for gap in standing.gaps:
            place = ("" if gap.partition is None else str(gap.partition), str(gap.first), str(gap.last))
            of = gap.input.replace(LANDING, "landing ")
            grid.add_row(dotted(f"{topology}/{standing.table}"), of, *place, moment(gap.at), gap.reason)
    return grid


def beginnings(topology: str, standings: Sequence[Standing]) -> list[str]:
    """The landings that did not begin at offset 0, a line each. This is no gap: nothing was landed before."""
    found = ((one.table, began(one.table.removeprefix(LANDING), one.floor)) for one in standings)
    return [f"{dotted(f'{topology}/{table}')} {place}" for table, place in found if place]


def missing_json(standings: Sequence[Standing]) -> Json:
    """The gaps, and by landing the first offsets that are not 0, as JSON."""
    return {
        "gaps": [{"table": standing.table, **asdict(gap)} for standing in standings for gap in standing.gaps],
        "first_offsets": {standing.table: _first(standing) for standing in standings if standing.floor},
    }


def _first(standing: Standing) -> Json:
    return {str(partition): offset for partition, offset in standing.floor.items()}


def older(found: DroppedRecords) -> list[str]:
    """The number of records that were dropped before the log begins, a line for each reason."""
    return [
        f"{count} older: {why}; the log was cleaned up, and does not tell which" for why, count in found.older.items()
    ]


def late_grid(records: Sequence[DroppedRecord]) -> Grid:
    """A grid of records that a stream dropped."""
    grid = _grid("topic", "partition", "offset", "timestamp", "reason", "stream time", "in version")
    for record in records:
        place = (record.topic, str(record.partition), str(record.offset))
        timestamp, reached = (at or "" for at in (record.timestamp, record.stream_time))
        grid.add_row(*place, timestamp, record.reason, reached, str(record.version))
    return grid


def standing_json(standing: Standing) -> Json:
    """The state of a landing or a table, as JSON."""
    state = standing.state
    return {
        "table": standing.table,
        "version": None if state is None else state.version,
        "position": None if state is None else json.loads(state.position.to_json()),
        "lag": None if standing.lag is None else {**standing.lag},
        "behind": standing.behind,
        "waiting_for": [*standing.waiting_for],
        "held": plain(standing.held),
        "in_transactions": {**standing.in_transactions},
        "gaps": plain(standing.gaps),
        "first_offsets": _first(standing),
        "counted": plain(standing.counted),
        "taken": plain(standing.taken),
        "metrics": {} if state is None else {**metrics(state.position)},
        "trouble": standing.trouble,
        "refused": standing.refused,
        "published": None if standing.sent is None else plain(standing.sent),
        "versions_behind": standing.unsent,
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
