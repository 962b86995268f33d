"""What we use of Dagster that it still calls beta: code references and observable topics."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg


@contextmanager
def beta() -> Iterator[None]:
    """Use it without a warning in every process: the versions are bounded, and the tests would notice a change."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)
        yield
