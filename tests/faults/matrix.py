"""What can fail where: every errand, at every place between its effects, by every fault, on the worlds of some seeds.

An errand is a verb on a lake at a stage; its places are before each of its boundaries, and behind the last one. Behind
a boundary is before the next one: between two there is no effect, which `test_boundaries` proves. What lasts is also
killed while it is under way, at a moment that the seed draws.

A fault is put where its victim is in play. The engine is, from when a session is opened; before, a client that finds a
dead engine is the one that finds it dead when it opens its session. A publisher needs it until it has its rows. The
broker is in landings and in publishing; the other verbs never ask it, so that one cell of each shows that.
A place that has before it what another one has, since what lies between only reads or opens or closes a session, has
one seed; the others have all.

A new verb is an entry here, in `VERBS` and in `OPS` of `client.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal, get_args

from tests.faults.boundaries import IN_BROKER, IN_ENGINE, LASTING, READS
from tests.faults.world import NOTE

Fault = Literal["client", "engine", "broker", "all", "zombie", "twice", "retry"]

FAULTS: dict[Fault, str] = {
    "client": "kill -9 of the client",
    "engine": "kill -9 of the engine",
    "broker": "kill -9 of the broker",
    "all": "kill -9 of client, engine and broker",
    "zombie": "SIGSTOP of the client, another run takes over, SIGCONT",
    "twice": "the same run twice at once, both stopped there and woken together",
    "retry": "an error there that Dagster takes for passing, and its retry in the same run",
}

QUIET = (*(name for name in READS if name != "read back"), "session opened", "session closed")
"""What is there before one of these was there before, too."""

Before = Literal["before", "while"]


@dataclass(frozen=True)
class Errand:
    """A verb at a stage of the world, the effects it has, in order, and what must be there in the end."""

    verb: str
    stage: str
    effects: tuple[str, ...]
    waves: int
    """How many waves its table or landing holds then."""
    statements: tuple[str, ...] = ()
    """What it sends to the engine that changes tables, each with the boundaries it is sent inside of."""
    more: str = ""
    """A column that the declaration gained."""
    passed: tuple[str, ...] = ()
    """What the join passes on of it."""
    amount: str = "left.amount"
    """How the amount is computed."""
    follows: bool = False
    """Whether its table is a copy of the join in another topology."""

    @property
    def places(self) -> tuple[str, ...]:
        """Its boundaries, and what is behind the last."""
        return (*self.effects, "the end")


ASKED = ("offsets asked", "position read", "first offsets asked", "session opened")
PINNED = ("position read", "inputs pinned", "session opened")
TYPED = ("position read", "position read")  # of both landings behind the table
TAIL = ("offsets asked", "offsets asked", "first offsets asked")
WRITTEN = ("read back", "session closed")
ENDED = ("transaction told", "transaction told")
TRANSACTION = ("record sent", "record sent", *ENDED)
OPENED = ("position asked", "position read", "publisher opened", "position asked")
APPENDED = "write_operation while appended"

ERRANDS: dict[str, Errand] = {
    "first landing": Errand(
        "land",
        "empty",
        (*ASKED, "table created", "columns added", "appended", *WRITTEN),
        5,
        ("CREATE while table created", APPENDED),
    ),
    "landing": Errand("land", "first", (*ASKED, "columns added", "appended", *WRITTEN), 5, (APPENDED,)),
    "landing with a new column": Errand(
        "land",
        "first",
        (*ASKED, "columns added", "properties set", "appended", *WRITTEN),
        5,
        ("ALTER while columns added", "ALTER while columns added > properties set", APPENDED),
        more=NOTE,
    ),
    "first step": Errand(
        "step",
        "landed",
        ("position read", "inputs pinned", *TYPED, "session opened", "table created", "appended", *WRITTEN),
        1,
        ("CREATE while table created", APPENDED),
    ),
    "step": Errand("step", "second", (*PINNED, "merged", *WRITTEN), 2, ("MERGE while merged",)),
    "step that replaces rows": Errand(
        "step",
        "ordered",
        (*PINNED, "rows replaced", *WRITTEN),
        4,
        ("write_operation by replaceWhere while rows replaced",),
    ),
    "step that replaces the rows at many keys": Errand(
        "step",
        "many",
        (*PINNED, "rows replaced", *WRITTEN),
        5,
        ("write_operation by replaceOn while rows replaced",),
    ),
    "step of the position": Errand("step", "moved", (*PINNED, "appended", *WRITTEN), 3, (APPENDED,)),
    "first publishing": Errand(
        "publish",
        "first",
        (
            *(*OPENED, *TAIL, "position read", "first offsets asked", "session opened"),
            *(*TRANSACTION, *ENDED, "session closed"),
        ),
        1,
    ),
    "publishing": Errand(
        "publish",
        "moved",
        (
            *(*OPENED, "position read", "session opened"),
            *(*TRANSACTION, *TRANSACTION, *ENDED, "session closed"),
        ),
        2,
    ),
    "step with a new column": Errand(
        "step",
        "gained",
        (
            "position read",
            *TYPED,
            "session opened",
            "columns added",
            "appended",
            "read back",
            "properties set",
            "session closed",
            "position read",
            *PINNED[1:],
            "merged",
            *WRITTEN,
        ),
        2,
        (
            "ALTER while columns added",
            "write_operation while appended",
            "ALTER while properties set",
            "MERGE while merged",
        ),
        more=NOTE,
        passed=("left.note",),
    ),
    "attachment to a leader": Errand(
        "attach",
        "first",
        ("position read", "inputs pinned", "session opened", "table created", "appended", *WRITTEN),
        1,
        ("CREATE while table created", APPENDED),
        follows=True,
    ),
    "following a leader": Errand(
        "follow", "followed", (*PINNED, "merged", *WRITTEN), 2, ("MERGE while merged",), follows=True
    ),
    "rebuild": Errand(
        "rebuild",
        "spoiled",
        ("position read", "inputs pinned", "session opened", "merged", *WRITTEN),
        3,
        ("MERGE while merged",),
    ),
    "rebuild by another definition": Errand(
        "rebuild",
        "second",
        (
            "position read",
            *(*TYPED, *TYPED),
            "session opened",
            "epoch closed",
            "properties set",
            "session closed",
            "position read",
            "inputs pinned",
            "session opened",
            "replaced",
            *WRITTEN,
        ),
        2,
        ("write_operation while epoch closed", "ALTER while properties set", "write_operation while replaced"),
        amount="cast(left.amount AS bigint) AS amount",
    ),
    "restore": Errand(
        "restore", "moved", ("position read", "session opened", "merged", *WRITTEN), 1, ("MERGE while merged",)
    ),
    "compaction": Errand(
        "compact",
        "moved",
        ("position read", "session opened", "files compacted", "files removed", "session closed"),
        2,
        ("OPTIMIZE while files compacted", "VACUUM while files removed"),
    ),
}


LASTS = {"record sent": 0.01, "transaction told": 0.02, "publisher opened": 0.1}
"""Seconds that an effect lasts about, where it is not one of the engine's, which take half a second and more."""


@dataclass(frozen=True)
class Cell:
    """One fault at one place of one errand, on the world of a seed."""

    errand: str
    place: int
    fault: Fault
    seed: int = 1
    moment: Before = "before"

    @property
    def at(self) -> str:
        """The boundary it is before, or in."""
        return ERRANDS[self.errand].places[self.place]

    @property
    def publishes(self) -> bool:
        """Whether its client is a publisher."""
        return ERRANDS[self.errand].verb == "publish"

    def __str__(self) -> str:
        """In words."""
        return f"{self.errand}, {self.fault}, {self.moment} {self.place} {self.at}, seed {self.seed}"

    @property
    def delay(self) -> float:
        """Seconds from where the effect begins to the kill, if the victim is killed while at it."""
        return Random(str(self)).uniform(0.0, LASTS.get(self.at, 0.5))


def cells(seeds: Sequence[int] = (1, 2, 3)) -> list[Cell]:
    """The whole matrix."""
    found: list[Cell] = []
    for name, errand in ERRANDS.items():
        for fault in get_args(Fault):
            for place in _places(errand, fault):
                at = errand.places[place]
                for seed in seeds[:1] if at in QUIET else seeds:
                    found.append(Cell(name, place, fault, seed))
                    if at in _killed_in(fault):
                        found.append(Cell(name, place, fault, seed, "while"))
    return found


def _places(errand: Errand, fault: Fault) -> list[int]:
    """Where a fault's victim is in play."""
    every = list(range(len(errand.places)))
    opened = errand.places.index("session opened")
    if fault == "engine" and errand.verb == "publish":
        return [opened, opened + 1]
    if fault in ("engine", "all"):
        return every[opened:]
    if fault == "broker" and errand.verb not in ("land", "publish"):
        return [opened]
    return every


def _killed_in(fault: Fault) -> tuple[str, ...]:
    """The effects that a kill finds under way. Landing reads from the broker while it appends."""
    by_fault = {"client": LASTING, "engine": IN_ENGINE, "broker": (*IN_BROKER, "appended"), "all": LASTING}
    return by_fault.get(fault, ())


def sample(matrix: Sequence[Cell], every: int) -> list[Cell]:
    """Every so many cells of each errand and fault, and at least one: those in the middle first."""
    if every == 1:
        return list(matrix)
    groups: dict[tuple[str, Fault], list[Cell]] = {}
    for cell in matrix:
        groups.setdefault((cell.errand, cell.fault), []).append(cell)
    return [cell for group in groups.values() for cell in group[min(every // 2, len(group) // 2) :: every]]


def subset() -> list[Cell]:
    """What `make test` plays: of the faults that kill no server, those at, and right behind, what commits.

    Where an errand commits in several transactions, zombies and twins are at the first commit and at the last.
    """
    found = []
    for cell in cells((1,)):
        places = ERRANDS[cell.errand].places
        behind = places[cell.place - 1] in LASTING and cell.at not in LASTING
        commits = [place for place, at in enumerate(places) if at in COMMITS]
        if cell.fault == "client" and (behind or (cell.moment == "while" and cell.at in COMMITS)):
            found.append(cell)
        if cell.fault in ("zombie", "twice") and cell.place in commits[:1] + commits[-1:] and cell.errand in ZOMBIES:
            found.append(cell)
        if cell.fault == "twice" and cell.at == "columns added" and cell.errand == "landing with a new column":
            found.append(cell)
        if cell.fault == "retry" and cell.at == "the end" and cell.errand in RETRIED:
            found.append(cell)
    return found


COMMITS = ("appended", "replaced", "rows replaced", "merged", "files compacted", "transaction told")
RETRIED = ("landing", "step", "first publishing", "rebuild", "restore", "compaction")
ZOMBIES = ("first landing", "landing", "first step", "step", "restore", "rebuild by another definition", "publishing")
