"""The topologies of this project: what the modules of `dagster_project/topologies/` call `topology`."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from traceback import extract_tb
from typing import TYPE_CHECKING

from assets import suites
from assets.gates import gates
from dagster_project import topologies as package
from spark.topology import Topology, TopologyError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from assets.gates import SuiteGate
    from assets.suites import Suite

# What a file that somebody is still writing raises.
UNFINISHED = (TopologyError, SyntaxError, ImportError, NameError, AttributeError, TypeError, ValueError, LookupError)

BUILDERS = re.compile(r"""StreamsBuilder\(\s*(?:name\s*=\s*)?["']([^"']+)["']""")


class BrokenTopology(Exception):
    """A file that gives no topology, or a topology with a broken suite: its `name`, or that of its file, and why.

    Correct the file at the line that the message names. Until then this topology is left out, and the others go on.

    `builders` are the names of the builders that such a file is seen to make: its topology would have one of them.
    """

    def __init__(self, name: str, why: str, builders: Sequence[str] = ()) -> None:
        super().__init__(why)
        self.name = name
        self.builders = builders


def topologies(left_out: Callable[[BrokenTopology], object] | None = None) -> tuple[Topology, ...]:
    """Every topology, by name; without a listener for what is left out, nothing is.

    Raises:
        BrokenTopology: a file cannot be imported, has no `topology`, or has one of a name that another file uses.
    """
    found: dict[str, list[tuple[Topology, Path]]] = {}
    broken: list[BrokenTopology] = []
    for module in iter_modules(package.__path__):
        path = Path(package.__path__[0], f"{module.name}.py")
        try:
            topology = _topology(f"{package.__name__}.{module.name}", path)
        except BrokenTopology as error:
            broken.append(error)
            continue
        found.setdefault(topology.name.lower(), []).append((topology, path))  # case does not count on some file systems
    for one in found.values():
        if len(one) > 1:
            (first, path), (twin, other), *_ = one
            why = f"{other} holds {twin.name!r}, and {path} {first.name!r}: one name; change one"
            broken.append(BrokenTopology(first.name, why))
    for wrong in broken:
        if left_out is None:
            raise wrong
        left_out(wrong)
    return tuple(one[0][0] for _, one in sorted(found.items()) if len(one) == 1)


def suites_of(topology: Topology, found: Sequence[Topology], broken: Sequence[BrokenTopology]) -> dict[str, Suite]:
    """The suites of one topology, among those that were found and those that were left out, whose suites may wait.

    Raises:
        BrokenSuite: one of them cannot be meant, or a file is of nobody's table.
    """
    others = {one.name for one in found} | {name for one in broken for name in (one.name, *one.builders)}
    others.discard(topology.name)
    return suites.suites([topology], suites.FOLDER, others)


def gates_of(topology: Topology) -> dict[str, SuiteGate]:
    """The gates of a topology's tables, as its suites are now."""
    broken: list[BrokenTopology] = []
    return gates(topology, suites_of(topology, topologies(broken.append), broken))


def _topology(module: str, path: Path) -> Topology:
    try:
        topology = getattr(import_module(module), "topology", None)
    except UNFINISHED as error:
        lines = [frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename == str(path)]
        at = f":{lines[-1]}" if lines else ""
        raise BrokenTopology(path.stem, f"{path}{at}: {type(error).__name__}: {error}", _builders(path)) from error
    if not isinstance(topology, Topology):
        why = f"{path} has no topology: end it with `topology = builder.build()`"
        raise BrokenTopology(path.stem, why, _builders(path))
    return topology


def _builders(path: Path) -> list[str]:
    """The names of the builders that a file is seen to make; a folder has none that are seen."""
    return BUILDERS.findall(path.read_text(errors="replace")) if path.is_file() else []
