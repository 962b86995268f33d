"""Processes that shall end when they are interrupted, as from a terminal."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

PATIENCE = 120.0  # seconds to end in, on a machine with other work


@contextmanager
def interrupted(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], output: int, well: Sequence[int] = (0,)
) -> Iterator[subprocess.Popen[str]]:
    """Run a command beside the block, then interrupt it, and expect that it ends, with an exit code that means well.

    Tests that a shell started in its background ignore interrupts, and a child would inherit that. What has a handler
    here has none in the child.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=dict(environment),
            stdout=output,
            stderr=subprocess.STDOUT if output != subprocess.PIPE else None,
            text=True,
            start_new_session=True,  # its interrupt is not ours
        )
    finally:
        signal.signal(signal.SIGINT, before)
    with process:
        try:
            yield process
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE) in well
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
