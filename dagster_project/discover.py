"""Finds the topologies of the settings: the `topology` of every module in their folders and packages."""

from __future__ import annotations

import re
import sys
from contextlib import redirect_stdout
from hashlib import sha256
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from pkgutil import iter_modules
from traceback import extract_tb
from typing import TYPE_CHECKING

from assets import suites
from assets.gates import gates
from dagster_project.settings import SHIPPED, Settings, SettingsError, is_folder
from spark.topology import Topology

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import ModuleType

    from assets.gates import SuiteGate
    from assets.suites import Suite

BUILDERS = re.compile(r"""StreamsBuilder\(\s*(?:name\s*=\s*)?["']([^"']+)["']""")


class BrokenTopology(Exception):
    """A file has no valid topology, or the topology's suite is broken.

    Correct the file at the line that the message names. Until then this topology is left out; the others are loaded.

    `name` is the topology's name, or that of its file. `builders` are the names of the builders that the file's text
    creates: its topology would have one of them.
    """

    def __init__(self, name: str, why: str, builders: Sequence[str] = ()) -> None:
        super().__init__(why)
        self.name = name
        self.builders = builders


def topologies(
    left_out: Callable[[BrokenTopology], object] | None = None, settings: Settings | None = None
) -> tuple[Topology, ...]:
    """All topologies, sorted by name. Without `left_out`, the first broken one is raised.

    Args:
        left_out: is called with the error of each broken file.
        settings: where the topologies are. By default, the settings of the environment.

    Raises:
        BrokenTopology: a file cannot be imported, has no `topology`, or has one with the name of another file's.
        SettingsError: a folder or a module does not exist.
    """
    settings = settings or Settings.from_environment()
    found: dict[str, list[tuple[Topology, Path]]] = {}
    broken: list[BrokenTopology] = []
    for module, path in _modules(settings, broken.append):
        try:
            topology = _topology(module, path)
        except BrokenTopology as error:
            broken.append(error)
            continue
        found.setdefault(topology.name.lower(), []).append((topology, path))  # some file systems ignore case
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


def suites_of(
    topology: Topology,
    found: Sequence[Topology],
    broken: Sequence[BrokenTopology],
    settings: Settings | None = None,
) -> dict[str, Suite]:
    """The suites of one topology by `<topology>.<table>`; suites of other topologies, `found` or `broken`, are ignored.

    Raises:
        BrokenSuite: a suite is not valid, its table does not exist, or two files are for one table.
        SettingsError: the folder that the settings name does not exist.
    """
    others = {one.name for one in found} | {name for one in broken for name in (one.name, *one.builders)}
    others.discard(topology.name)
    checked: dict[str, Suite] = {}
    for folder in _expectations(settings or Settings.from_environment()):
        here = suites.suites([topology], folder, others)
        for twin in here.keys() & checked.keys():
            raise suites.BrokenSuite(f"{here[twin].path} and {checked[twin].path} are of one table; keep one")
        checked |= here
    return checked


def _expectations(settings: Settings) -> list[Path]:
    """The folders of suites: the one in the settings, or those next to the topologies, if they exist."""
    if settings.expectations is not None:
        folder = Path(settings.expectations).expanduser()
        if not folder.is_dir():
            raise SettingsError(f"{settings.called('expectations')}={folder}: there is no such folder")
        return [folder]
    beside = []
    for place in settings.places:
        try:
            beside.append(_beside(place, settings))
        except BrokenTopology:  # `topologies` reports it
            continue
    return [folder for folder in dict.fromkeys(beside) if folder.is_dir()]


def _beside(place: str, settings: Settings) -> Path:
    if place == SHIPPED:
        return suites.FOLDER
    if is_folder(place):
        return _folder(place).with_name("expectations")
    spec = _spec(place, settings)
    file = spec.submodule_search_locations[0] if spec.submodule_search_locations else str(spec.origin)
    return Path(file).with_name("expectations")


def _modules(settings: Settings, left_out: Callable[[BrokenTopology], object]) -> Iterator[tuple[str, Path]]:
    """The modules of all places, with their files."""
    for place in settings.places:
        try:
            if is_folder(place):
                package = _package(place, settings)
            else:
                spec = _spec(place, settings)
                if spec.submodule_search_locations is None:
                    yield place, Path(str(spec.origin))
                    continue
                package = _imported(place, Path(str(spec.origin)), place)
        except BrokenTopology as error:
            left_out(error)
            continue
        for module in iter_modules(package.__path__):
            name = f"{package.__name__}.{module.name}"
            found = find_spec(name)
            assert found is not None, "it was listed"
            yield name, Path(str(found.origin))


def _folder(place: str) -> Path:
    return Path(place).expanduser().resolve()


def _package(place: str, settings: Settings) -> ModuleType:
    """A folder as a package with a unique name. Its files can import what is next to the folder."""
    folder = _folder(place)
    if not folder.is_dir():
        raise SettingsError(f"{settings.called('topologies')}={folder}: there is no such folder")
    name = f"tidetable_topologies_{sha256(str(folder).encode()).hexdigest()[:12]}"
    if name not in sys.modules:
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [str(folder)]
        sys.modules[name] = module_from_spec(spec)
        _importable(folder.parent)
    return sys.modules[name]


def _spec(module: str, settings: Settings) -> ModuleSpec:
    """The spec of a module, which need not be installed."""
    if module != SHIPPED:
        _importable(settings.base)
    try:
        spec = find_spec(module)
    except Exception as error:  # the search imports the module's package, which is the user's code
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is None or not f"{module}.".startswith(f"{missing}."):
            raise BrokenTopology(module, f"{module}: {type(error).__name__}: {error}") from error
        spec = None
    if spec is None:
        raise SettingsError(f"{settings.called('topologies')}={module}: there is no such folder, and no such module")
    return spec


def _importable(folder: Path) -> None:
    """Add a folder to the end of the import path."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def gates_of(topology: Topology) -> dict[str, SuiteGate]:
    """The gates of a topology's tables by the table's name, from the current suites."""
    broken: list[BrokenTopology] = []
    return gates(topology, suites_of(topology, topologies(broken.append), broken))


def _topology(module: str, path: Path) -> Topology:
    topology = getattr(_imported(module, path, path.stem), "topology", None)
    if not isinstance(topology, Topology):
        why = f"{path} has no topology: end it with `topology = builder.build()`"
        raise BrokenTopology(path.stem, why, _builders(path))
    return topology


def _imported(module: str, path: Path, name: str) -> ModuleType:
    try:
        with redirect_stdout(sys.stderr):  # what a file prints must not be in a command's output
            return import_module(module)
    except (Exception, SystemExit) as error:  # a user's code runs here, and may raise anything
        lines = [frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename == str(path)]
        at = f":{lines[-1]}" if lines else ""
        raise BrokenTopology(name, f"{path}{at}: {type(error).__name__}: {error}", _builders(path)) from error


def _builders(path: Path) -> list[str]:
    """The names of the builders that a file's text creates; none for a folder."""
    return BUILDERS.findall(path.read_text(errors="replace")) if path.is_file() else []
