"""Runs: their ids, single ticks, and the loop of `tidetable run --follow`."""

from __future__ import annotations

import time
import traceback
import uuid
from typing import TYPE_CHECKING

import click
from pyspark.errors.exceptions.base import RetriesExceeded
from pyspark.errors.exceptions.connect import SparkConnectGrpcException

from assets.failures import TRANSIENT
from dagster_project import render
from dagster_project.cli.output import out, print_result, progress
from dagster_project.discover import gates_of
from spark.engine.errors import engine_died
from spark.engine.status import fingerprint, observe
from spark.engine.tick import TickEvent, tick

if TYPE_CHECKING:
    from resources.tidetable import Tidetable
    from spark.topology import Topology

RETRY = 60.0  # seconds until `follow` repeats a failed tick if nothing has changed


def new_run_id() -> str:
    """A new id, which identifies the commits of this run."""
    return f"cli-{uuid.uuid4().hex}"


def run_tick(tidetable: Tidetable, topology: Topology, as_json: bool) -> bool:
    """Run one tick and print its events. Returns whether nothing failed."""
    debug = click.get_current_context().find_root().params["debug"]

    def print_event(event: TickEvent) -> None:
        if not as_json:
            out.print(render.failure_line(event) if isinstance(event, Exception) else render.result_line(event))
        if isinstance(event, Exception) and debug:
            traceback.print_exception(event)

    with progress.status(f"ticking {topology.name}"):
        ticked = tick(tidetable.ports(), topology, new_run_id(), gates_of(topology), print_event)
    print_result(as_json, render.tick_json(ticked) if as_json else None, *map(render.held_line, ticked.held))
    return not ticked.failed


def follow(tidetable: Tidetable, topology: Topology, interval: float, as_json: bool) -> None:
    """Tick while something lags, until interrupted. Repeats a failed tick after any change, or `RETRY` seconds.

    `interval` is the number of seconds between two comparisons of topics and tables.
    """
    last_state, last_tick = "", 0.0
    while True:
        try:
            ends, statuses = observe(tidetable.lakehouse, tidetable.ports().kafka, topology)
            state = fingerprint(ends, statuses)
            is_due = state != last_state or time.monotonic() - last_tick > RETRY
            if is_due and any(status.is_lagging for status in statuses):
                last_state, last_tick = state, time.monotonic()
                run_tick(tidetable, topology, as_json)
        except (RetriesExceeded, SparkConnectGrpcException) as error:
            if not engine_died(error):
                raise
            progress.print(
                render.failure_line(f"{topology.name}: the engine stopped answering; the next tick starts it again")
            )
            last_state = ""
        except TRANSIENT as error:
            progress.print(render.failure_line(error))
            last_state = ""
        time.sleep(interval)
