"""Where the engine and Kafka of the settings are. Starts nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resources.embedded_registry import EmbeddedRegistry

if TYPE_CHECKING:
    from resources.tidetable import Tidetable


def engine_url(tidetable: Tidetable) -> str | None:
    """The engine's URL without secrets; None if it is the lake's own and does not run."""
    running = tidetable.engine.running()
    return tidetable.engine.address or (None if running is None else f"sc://{running.address}")


def bootstrap_servers(tidetable: Tidetable) -> str | None:
    """Kafka's bootstrap servers; None if it is the lake's own broker and does not run."""
    kafka = tidetable.listening()
    return None if kafka is None else kafka.address


def registry_url(tidetable: Tidetable) -> str | None:
    """The schema registry's URL; None if there is none, or if it is the lake's own and does not run."""
    registry = tidetable.registry
    if isinstance(registry, EmbeddedRegistry):
        return None if registry.running() is None else registry.url
    return None if registry is None else registry.address
