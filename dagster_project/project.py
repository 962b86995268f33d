"""Writes a new project for topologies: the files of `template/`, into a folder."""

from __future__ import annotations

import json
from importlib.metadata import distribution
from pathlib import Path

TEMPLATE = Path(__file__).parent / "template"
HIDDEN = "dot-"
"""The prefix of template files that are hidden files in the project, and must not be hidden here."""


class FolderInUse(Exception):
    """The folder of a new project is a file, or has a file of a name that the project has too.

    Name another folder, or move the file away.
    """


def write(folder: Path) -> list[str]:
    """Write a project into a folder. Returns the paths of its files in the folder.

    Raises:
        FolderInUse: the folder is a file, or has a file that would be overwritten. Nothing was written.
    """
    if folder.exists() and not folder.is_dir():
        raise FolderInUse(f"{folder} is a file; name a folder")
    files = {
        "/".join(part.replace(HIDDEN, ".", 1) if part.startswith(HIDDEN) else part for part in _inside(path)): path
        for path in sorted(TEMPLATE.rglob("*"))
        if not path.is_dir() and "__pycache__" not in path.parts
    }
    if existing := [name for name in files if (folder / name).exists()]:
        raise FolderInUse(f"{folder} already has {', '.join(existing)}; name another folder, or move these away")
    for name, path in files.items():
        to = folder / name
        to.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_text()
        to.write_text(text.replace("{tidetable}", requirement()) if to.name == "requirements.txt" else text)
    return [*files]


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
