"""The topologies of this project: what the modules of `dagster_project/topologies/` call `topology`."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from traceback import extract_tb

from dagster_project import topologies as package
from spark.topology import Topology, TopologyError

# What a file that somebody is still writing raises.
UNFINISHED = (TopologyError, SyntaxError, ImportError, NameError, AttributeError, TypeError, ValueError, LookupError)


class BrokenTopology(Exception):
    """A file in the folder of topologies that gives none."""


def topologies() -> tuple[Topology, ...]:
    """Every topology, by name.

    Raises:
        BrokenTopology: a file cannot be imported, has no `topology`, or has one of a name that another file uses.
    """
    found: dict[str, tuple[Topology, Path]] = {}
    for module in iter_modules(package.__path__):
        path = Path(package.__path__[0], f"{module.name}.py")
        topology = _topology(f"{package.__name__}.{module.name}", path)
        folder = topology.name.lower()  # case does not count on some file systems
        if folder in found:
            twin, other = found[folder]
            raise BrokenTopology(f"{path} holds {topology.name!r}, and {other} {twin.name!r}: one name; change one")
        found[folder] = topology, path
    return tuple(topology for _, (topology, _) in sorted(found.items()))


def _topology(module: str, path: Path) -> Topology:
    try:
        topology = getattr(import_module(module), "topology", None)
    except UNFINISHED as error:
        lines = [frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename == str(path)]
        at = f":{lines[-1]}" if lines else ""
        raise BrokenTopology(f"{path}{at}: {type(error).__name__}: {error}") from error
    if not isinstance(topology, Topology):
        raise BrokenTopology(f"{path} has no topology: end it with `topology = builder.build()`")
    return topology
