"""Every allowed difference to Kafka Streams, with a case that shows it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import yaml  # type: ignore[import-untyped]  # comes with Dagster, without its types

from tests.conformance.cases import DIVERGENT, KINDS, Record

if TYPE_CHECKING:
    from tests.conformance.cases import Kind, World
    from tests.conformance.oracle import State


@dataclass(frozen=True)
class Divergence:
    """What differs, what of Kafka it lies in, why we differ, and a history after which the two tables are these."""

    name: str
    table: str
    differs: str
    kafka: str
    why: str
    case: World
    ours: State
    theirs: State


def divergences() -> list[Divergence]:
    """All of them, in the order of the file; the case of entry i is world i of what is recorded."""
    return [
        Divergence(
            name=entry["name"],
            table=entry["table"],
            differs=entry["differs"],
            kafka=entry["kafka"],
            why=entry["why"],
            case=tuple(Record(*record) for record in entry["case"]),
            ours=_state(world, entry["ours"]),
            theirs=_state(world, entry["kafka_rows"]),
        )
        for world, entry in enumerate(yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text()))
    ]


def kinds() -> list[Kind]:
    """The kinds that they are cases of."""
    every = KINDS | DIVERGENT
    return [every[name] for name in dict.fromkeys(divergence.table for divergence in divergences())]


def _state(world: int, rows: list[tuple[list[object], list[object], int]]) -> State:
    return {(world, *key): (tuple(row), time) for key, row, time in rows}
