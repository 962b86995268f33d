"""Generates the reference pages: every build replaces `<!-- code: NAME -->` in a page with text from the code."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from importlib import import_module
from pkgutil import walk_packages
from typing import TYPE_CHECKING, Any

import click
from mkdocs.exceptions import PluginError

from assets import metadata
from dagster_project import settings
from dagster_project.cli import main
from spark.engine.log.comments import COMMENTS, PARTIAL, comment
from spark.engine.log.position import Position
from spark.testing import TopologyTestDriver
from spark.topology import (
    Consumed,
    JoinWindows,
    Produced,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    Topology,
    Versioned,
)
from spark.topology.handles import GlobalKTable, KGroupedStream, KGroupedTable, KStream, KTable
from spark.topology.handles.handles import TimeWindowedKStream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

OPERATORS: dict[str, tuple[type, ...]] = {
    "Sources": (StreamsBuilder, Consumed, Versioned),
    "Tables": (KTable, GlobalKTable, KGroupedTable),
    "Streams": (KStream, KGroupedStream, TimeWindowedKStream),
    "Windows": (JoinWindows, TimeWindows, SlidingWindows, SessionWindows, Suppressed),
    "Publishing": (Produced,),
    "The topology": (Topology, TopologyTestDriver),
}
PACKAGES = ("tidetable", "spark", "resources", "assets", "dagster_project")
WIDTH = 100  # characters of a signature on one line
LOADS = ("dagster_project.definitions", "dagster_project.topologies")
"""Modules that load topologies when they are imported."""

SECTION = re.compile(r"^(Args|Raises|Returns|Example):\n((?:[ \n].*\n?)*)", re.MULTILINE)
ITEM = re.compile(r"^ {4}(\w+): ", re.MULTILINE)
PAGE = re.compile(r"`docs/([\w/-]+\.md)`")
NOTE = "*Generated from the code: `make docs` builds the site that has it.*"
MARK = re.compile(rf"^(?:{re.escape(NOTE)}\n\n)?<!-- code: (\w+) -->$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: object) -> str:
    """Replace the marks in a page with the generated text."""
    return MARK.sub(lambda mark: PAGE.sub(r"[\1](../\1)", "\n".join(GENERATED[mark.group(1)]())), markdown)


def operators() -> Iterator[str]:
    """Every class that a topology is written with, and its public methods, as Markdown."""
    for title, classes in OPERATORS.items():
        yield f"## {title}\n"
        for cls in classes:
            yield f"### {cls.__name__}\n"
            yield f"{text_of(cls)}\n"
            for name, method in methods(cls):
                yield f"#### {cls.__name__ if name == '__init__' else name} {{ #{cls.__name__}.{name.strip('_')} }}\n"
                yield f"```python\n{signature(cls, name, method)}\n```\n"
                yield f"{text_of(method)}\n"


def methods(cls: type) -> list[tuple[str, Any]]:
    """The public methods of a class in the order of its source, inherited ones last, without those that only raise."""
    found: dict[str, Any] = {}
    for owner in cls.__mro__:
        if owner.__module__.partition(".")[0] in PACKAGES:
            for name, member in vars(owner).items():
                found.setdefault(name, member)
    plain = {name: inspect.unwrap(getattr(member, "__func__", member)) for name, member in found.items()}
    return [
        (name, member)
        for name, member in plain.items()
        if inspect.isfunction(member)
        and member.__module__.partition(".")[0] in PACKAGES
        and (name == "__init__" or not name.startswith("_"))
        and member.__doc__ is not None  # a dataclass's generated __init__ has none
        and member.__annotations__.get("return") not in ("NoReturn", "Place")
    ]


def signature(cls: type, name: str, method: Callable[..., object]) -> str:
    """The signature of a method, as its source has it."""
    source = ast.parse(textwrap.dedent(inspect.getsource(method))).body[0]
    assert isinstance(source, ast.FunctionDef)
    args = source.args
    args.args = [one for one in args.args if one.arg != "self"]
    shown = cls.__name__ if name == "__init__" else f"{cls.__name__}.{name}"
    returned = "" if name == "__init__" or source.returns is None else f" -> {ast.unparse(source.returns)}"
    given = parameters(args)
    line = f"{shown}({', '.join(given)}){returned}"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"{shown}(", *(f"    {one}," for one in given), f"){returned}"])


def parameters(args: ast.arguments) -> list[str]:
    """The parameters of a function, one string each."""
    optional = [None] * (len(args.args) - len(args.defaults)) + args.defaults
    found = [parameter(one, default) for one, default in zip(args.args, optional, strict=True)]
    if args.vararg is not None:
        found.append(f"*{parameter(args.vararg, None)}")
    elif args.kwonlyargs:
        found.append("*")
    found += [parameter(one, default) for one, default in zip(args.kwonlyargs, args.kw_defaults, strict=True)]
    return found if args.kwarg is None else [*found, f"**{parameter(args.kwarg, None)}"]


def parameter(one: ast.arg, default: ast.expr | None) -> str:
    """One parameter with its type and its default."""
    return ast.unparse(one) if default is None else f"{ast.unparse(one)} = {ast.unparse(default)}"


def text_of(described: object) -> str:
    """A docstring as Markdown: its sections become lists, its example a code block."""
    text = inspect.getdoc(described)
    if text is None:
        raise PluginError(f"{described} has no docstring, and is public: write one")
    return SECTION.sub(section, text + "\n").rstrip()


def section(found: re.Match[str]) -> str:
    """One section of a docstring, as Markdown."""
    title, body = found.group(1), found.group(2).rstrip()
    if title == "Example":
        return f"```python\n{textwrap.dedent(body)}\n```\n"
    items = ITEM.sub(r"    - `\1`: ", body)
    lines = [line.strip() if line.startswith("    - ") else f"  {line.strip()}" for line in items.splitlines()]
    # A line below a blank line, at the left margin of the list, is text again.
    return f"**{title}**\n\n" + "\n".join(lines) + "\n"


def options() -> Iterator[str]:
    """The table of the settings: key in the file, environment variable, default and meaning."""
    yield "| key in the file | variable | default | meaning |\n|---|---|---|---|"
    for one in settings.Settings.reference():
        default = f"`{one.default}`" if one.default else ""
        yield f"| `{one.key}` | `{one.variable}` | {default} | {one.description} |"


def commands() -> Iterator[str]:
    """Every command with its arguments and options."""
    yield from command(main, click.Context(main, info_name="tidetable", **main.context_settings))


def command(verb: click.Command, context: click.Context) -> Iterator[str]:
    """A command, and its subcommands."""
    yield f"## {context.command_path}\n"
    yield "```\n" + "  ".join(verb.get_usage(context).removeprefix("Usage: ").split("\n")) + "\n```\n"
    yield f"{inspect.cleandoc(verb.help or '')}\n"
    yield "| option | meaning |\n|---|---|"
    for option in verb.get_params(context):
        record = option.get_help_record(context) if isinstance(option, click.Option) else None
        if record is not None:
            yield f"| `{record[0]}` | {record[1]} |"
    yield ""
    if isinstance(verb, click.Group):
        for name in verb.list_commands(context):
            below = verb.get_command(context, name)
            assert below is not None
            yield from command(below, click.Context(below, info_name=name, parent=context))


def errors() -> Iterator[str]:
    """Every public error: what it means, and, in the second paragraph of its docstring, what to do."""
    for cls in sorted(exceptions(), key=lambda one: one.__name__):
        meaning, _, remedy = text_of(cls).partition("\n\n")
        if remedy == "":
            raise PluginError(f"{cls.__name__} says what happened and not what to do: add a paragraph to its docstring")
        bases = ", ".join(f"`{base.__name__}`" for base in cls.__bases__)
        yield f"## {cls.__name__}\n\n`{cls.__module__}.{cls.__name__}`, a kind of {bases}.\n"
        yield f"**What it means.** {meaning}\n\n**What to do.** {remedy}\n"


def exceptions() -> set[type[Exception]]:
    """The public exception classes of the packages."""
    found = set()
    for package in PACKAGES:
        root = import_module(package)
        for module in walk_packages(root.__path__, f"{package}."):
            if module.name.startswith(LOADS) or module.name.endswith(".__main__"):
                continue
            for name, cls in vars(import_module(module.name)).items():
                ours = inspect.isclass(cls) and cls.__module__ == module.name
                if ours and issubclass(cls, Exception) and not name.startswith("_"):
                    found.add(cls)
    return found


def columns() -> Iterator[str]:
    """The table of Tidetable's own columns in stored tables, with the comments that the tables have."""
    yield "| column | meaning |\n|---|---|"
    for name, meaning in {**COMMENTS, f"{PARTIAL}0, {PARTIAL}1, ...": comment(f"{PARTIAL}0")}.items():
        yield f"| `{name}` | {meaning} |"


def position() -> Iterator[str]:
    """The fields of a position, which every commit has."""
    yield f"{text_of(Position)}\n"
    yield "| field | type |\n|---|---|"
    for name, kind in Position.__annotations__.items():
        yield f"| `{name}` | `{kind}` |".replace(" | None", " or None")


def plots() -> Iterator[str]:
    """The table of the metadata that Dagster shows, by the event that reports it."""
    yield "| what | metadata | meaning |\n|---|---|---|"
    for name, function in vars(metadata).items():
        if name.startswith("of_") and inspect.isfunction(function):
            nodes = list(ast.walk(ast.parse(inspect.getsource(function))))
            found = [key for node in nodes if isinstance(node, ast.Dict) for key in node.keys]
            found += [node.slice for node in nodes if isinstance(node, ast.Subscript)]
            names = [key.value for key in found if isinstance(key, ast.Constant) and isinstance(key.value, str)]
            keys = ", ".join(f"`{key}`" for key in dict.fromkeys(names))
            meaning = text_of(function).partition("\n\n")[0].replace("\n", " ")
            yield f"| {name.removeprefix('of_').replace('_', ' ')} | {keys} | {meaning} |"


GENERATED: dict[str, Callable[[], Iterator[str]]] = {
    "operators": operators,
    "settings": options,
    "commands": commands,
    "errors": errors,
    "columns": columns,
    "position": position,
    "plots": plots,
}
