"""What a user imports: `from tidetable import Consumed, StreamsBuilder`.

Importing this needs neither Spark nor Dagster; what does is imported when it is first asked for: `tidetable.testing`,
`tidetable.build_definitions`, `tidetable.Settings`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from tidetable import rooms

rooms.check()

from spark.topology import (  # noqa: E402  # not before it is known whose package that is
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
    from tidetable import testing

__all__ = [
    "Consumed",
    "JoinWindows",
    "Produced",
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
    "Settings": "dagster_project.settings",
    "SettingsError": "dagster_project.settings",
    "build_definitions": "dagster_project.build",
}
"""What needs Spark or Dagster, and where it is."""


if not TYPE_CHECKING:  # a type checker would take every name for granted

    def __getattr__(name: str) -> object:
        """Import what is asked for."""
        if name == "testing":
            return import_module("tidetable.testing")
        if name not in _LATER:
            raise AttributeError(f"module 'tidetable' has no attribute {name!r}")
        return getattr(import_module(_LATER[name]), name)
