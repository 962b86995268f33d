"""The public names: `from tidetable import Consumed, StreamsBuilder`.

This import needs neither Spark nor Dagster. Names that need more are imported at first use: `tidetable.testing`,
`tidetable.build_definitions`, `tidetable.Settings`, `tidetable.Reader`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from tidetable import rooms

rooms.check()

from spark.topology import (  # noqa: E402  # only after the check that this is our package
    Consumed,
    JoinWindows,
    Produced,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    Topology,
    TopologyError,
    Versioned,
)

if TYPE_CHECKING:
    from dagster_project.build import build_definitions
    from dagster_project.settings import Settings, SettingsError
    from spark.query.reader import Reader
    from tidetable import testing

__all__ = [
    "Consumed",
    "JoinWindows",
    "Produced",
    "Reader",
    "SessionWindows",
    "Settings",
    "SettingsError",
    "SlidingWindows",
    "StreamsBuilder",
    "Suppressed",
    "TimeWindows",
    "Topology",
    "TopologyError",
    "Versioned",
    "build_definitions",
    "testing",
]

_LATER = {
    "Reader": "spark.query.reader",
    "Settings": "dagster_project.settings",
    "SettingsError": "dagster_project.settings",
    "build_definitions": "dagster_project.build",
}
"""The names that need Spark, Dagster or Arrow, with their modules."""


if not TYPE_CHECKING:  # a type checker would accept every name

    def __getattr__(name: str) -> object:
        """Import a name at its first use."""
        if name == "testing":
            return import_module("tidetable.testing")
        if name not in _LATER:
            raise AttributeError(f"module 'tidetable' has no attribute {name!r}")
        return getattr(import_module(_LATER[name]), name)
