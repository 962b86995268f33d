"""Finds the topologies of the settings: the `topology` of every module in their folders and packages."""

from __future__ import annotations

import re
import sys
from contextlib import redirect_stdout
from functools import partial
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
from spark.engine.log.leaders import stored_columns
from spark.topology import Topology
from spark.topology.leaders import reading_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import ModuleType

    from assets.gates import SuiteGate
    from assets.suites import Suite

BUILDERS = re.compile(r"""StreamsBuilder\(\s*(?:name\s*=\s*)?["']([^"']+)["']""")


class BrokenTopology(Exception):
    """A file has no valid topology, or the topology's suite is broken.

    Correct the file at the line that the message names. Until then this topology is left out; the others are loaded.

    `name` is the name of the topology, or of its file. `builders` are the names of the builders that the file's text
    creates: its topology would have one of these names.
    """

    def __init__(self, name: str, message: str, builders: Sequence[str] = ()) -> None:
        super().__init__(message)
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
    with reading_columns(partial(stored_columns, settings.tidetable().lakehouse)):
        return _topologies(left_out, settings)


def _topologies(left_out: Callable[[BrokenTopology], object] | None, settings: Settings) -> tuple[Topology, ...]:
    by_name: dict[str, list[tuple[Topology, Path]]] = {}
    broken: list[BrokenTopology] = []
    for module, path in _modules(settings, broken.append):
        try:
            topology = _topology(module, path)
        except BrokenTopology as error:
            broken.append(error)
            continue
        by_name.setdefault(topology.name.lower(), []).append((topology, path))  # some file systems ignore case
    for same_name in by_name.values():
        if len(same_name) > 1:
            (first, path), (second, other), *_ = same_name
            message = f"{path} defines topology {first.name!r}, and {other} defines {second.name!r}"
            broken.append(BrokenTopology(first.name, f"{message}: rename one of the two, as case is ignored"))
    for broken_topology in broken:
        if left_out is None:
            raise broken_topology
        left_out(broken_topology)
    return tuple(same_name[0][0] for _, same_name in sorted(by_name.items()) if len(same_name) == 1)


def suites_of(
    topology: Topology,
    sound: Sequence[Topology],
    broken: Sequence[BrokenTopology],
    settings: Settings | None = None,
) -> dict[str, Suite]:
    """The suites of one topology by `<topology>.<table>`; suites of the topologies in `sound` and `broken` are ignored.

    Raises:
        BrokenSuite: a suite is not valid, its table does not exist, or two files are for one table.
        SettingsError: the folder that the settings name does not exist.
    """
    others = {other.name for other in sound} | {name for error in broken for name in (error.name, *error.builders)}
    others.discard(topology.name)
    by_table: dict[str, Suite] = {}
    for folder in _expectations(settings or Settings.from_environment()):
        in_folder = suites.suites([topology], folder, others)
        for table in in_folder.keys() & by_table.keys():
            raise suites.BrokenSuite(
                f"{in_folder[table].path} and {by_table[table].path} are both suites of {table}: keep one of the two"
            )
        by_table |= in_folder
    return by_table


def _expectations(settings: Settings) -> list[Path]:
    """The folders of suites: the one in the settings, or those next to the topologies, if they exist."""
    if settings.expectations is not None:
        folder = Path(settings.expectations).expanduser()
        if not folder.is_dir():
            raise SettingsError(f"{settings.origin('expectations')}={folder}: there is no such folder")
        return [folder]
    defaults = []
    for place in settings.places:
        try:
            defaults.append(_default_expectations(place, settings))
        except BrokenTopology:  # `topologies` reports it
            continue
    return [folder for folder in dict.fromkeys(defaults) if folder.is_dir()]


def _default_expectations(place: str, settings: Settings) -> Path:
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
            module_spec = find_spec(name)
            assert module_spec is not None, "the package listed it"
            yield name, Path(str(module_spec.origin))


def _folder(place: str) -> Path:
    return Path(place).expanduser().resolve()


def _package(place: str, settings: Settings) -> ModuleType:
    """A folder as a package with a unique name. Its files can import what is next to the folder."""
    folder = _folder(place)
    if not folder.is_dir():
        raise SettingsError(f"{settings.origin('topologies')}={folder}: there is no such folder")
    name = f"tidetable_topologies_{sha256(str(folder).encode()).hexdigest()[:12]}"
    if name not in sys.modules:
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [str(folder)]
        sys.modules[name] = module_from_spec(spec)
        _add_to_path(folder.parent)
    return sys.modules[name]


def _spec(module: str, settings: Settings) -> ModuleSpec:
    """The spec of a module, which need not be installed."""
    if module != SHIPPED:
        _add_to_path(settings.base)
    try:
        spec = find_spec(module)
    except Exception as error:  # the search imports the module's package, which is the user's code
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is None or not f"{module}.".startswith(f"{missing}."):
            raise BrokenTopology(module, f"{module}: {type(error).__name__}: {error}") from error
        spec = None
    if spec is None:
        raise SettingsError(f"{settings.origin('topologies')}={module}: there is no such folder, and no such module")
    return spec


def _add_to_path(folder: Path) -> None:
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
        message = f"{path} has no topology: end it with `topology = builder.build()`"
        raise BrokenTopology(path.stem, message, _builders(path))
    return topology


def _imported(module: str, path: Path, name: str) -> ModuleType:
    try:
        with redirect_stdout(sys.stderr):  # what a file prints must not be in a command's output
            return import_module(module)
    except (Exception, SystemExit) as error:  # the user's code runs here, and may raise anything
        lines = [frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename == str(path)]
        at = f":{lines[-1]}" if lines else ""
        raise BrokenTopology(name, f"{path}{at}: {type(error).__name__}: {error}", _builders(path)) from error


def _builders(path: Path) -> list[str]:
    """The names of the builders that a file's text creates; none for a folder."""
    return BUILDERS.findall(path.read_text(errors="replace")) if path.is_file() else []
