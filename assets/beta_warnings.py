"""Suppresses Dagster's beta warnings about code references and observable topics."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg


@contextmanager
def without_beta_warnings() -> Iterator[None]:
    """Suppress beta warnings: the bounds on Dagster's version and the tests guard against changes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)
        yield
