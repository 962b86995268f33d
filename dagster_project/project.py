"""Writes a new project for topologies: the files of `template/`, into a folder."""

from __future__ import annotations

import json
from importlib.metadata import distribution
from pathlib import Path

TEMPLATE = Path(__file__).parent / "template"
HIDDEN = "dot-"
"""The prefix of template files that are hidden files in the project, and must not be hidden here."""


class FolderInUse(Exception):
    """The folder of a new project is a file, or is not empty.

    Name another folder, or empty this one.
    """


def write(folder: Path) -> list[str]:
    """Write a project into a folder. Returns the paths of its files in the folder.

    Raises:
        FolderInUse: the folder is not empty, or is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise FolderInUse(f"{folder} is a file; name a folder that is new or empty")
    if folder.is_dir() and any(folder.iterdir()):
        raise FolderInUse(f"{folder} is not empty; name a folder that is new or empty")
    written = []
    for path in sorted(TEMPLATE.rglob("*")):
        if path.is_dir() or "__pycache__" in path.parts:
            continue
        parts = [part.replace(HIDDEN, ".", 1) if part.startswith(HIDDEN) else part for part in _inside(path)]
        to = folder.joinpath(*parts)
        to.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_text()
        to.write_text(text.replace("{tidetable}", requirement()) if to.name == "requirements.txt" else text)
        written.append("/".join(parts))
    return written


def requirement() -> str:
    """The installed Tidetable, as pip and uv write a requirement: a release, or the URL of its installation."""
    installed = distribution("tidetable")
    origin = json.loads(installed.read_text("direct_url.json") or "{}")
    url = origin.get("url")
    if url is None:
        return f"tidetable=={installed.version}"
    if origin.get("dir_info", {}).get("editable"):
        return f"-e {url}"
    vcs = origin.get("vcs_info")
    return f"tidetable @ {vcs['vcs']}+{url}@{vcs['commit_id']}" if vcs else f"tidetable @ {url}"


def is_local(requirement: str) -> bool:
    """Whether a requirement exists on this machine only."""
    return "file://" in requirement


def _inside(path: Path) -> tuple[str, ...]:
    return path.relative_to(TEMPLATE).parts
