"""Detects other packages that have the name of one of our four packages."""

from __future__ import annotations

import csv
import sys
from base64 import urlsafe_b64encode
from hashlib import sha256
from pathlib import Path

ROOMS = ("assets", "dagster_project", "resources", "spark")
HERE = Path(__file__).resolve().parent.parent


class NameTaken(ImportError):
    """Another package has the name of one of ours, and a process can import only one of the two.

    Run Tidetable as a code location of its own, with an interpreter of its own: `tidetable init` writes one.
    """


def check() -> None:
    """Raise if another package has one of our names.

    Raises:
        NameTaken: such a package is imported, or on the path, or installed over ours.
    """
    for room in ROOMS:
        ours = HERE / room / "__init__.py"
        imported = getattr(sys.modules.get(room), "__file__", None)
        on_path = [Path(folder) / name for folder in sys.path for name in (f"{room}/__init__.py", f"{room}.py")]
        for other in [*([Path(imported)] if imported else []), *on_path]:
            if other.is_file() and other.resolve() != ours:
                raise _taken(room, other)
        if ours.is_file() and not _is_ours(ours):
            raise _taken(room, ours)


def _is_ours(file: Path) -> bool:
    """Whether a file is as installed: another distribution may have overwritten it. True in a checkout."""
    for record in HERE.glob("tidetable-*.dist-info/RECORD"):
        with record.open(newline="") as rows:
            for path, digest, _ in csv.reader(rows):
                if path == file.relative_to(HERE).as_posix():
                    encoded = urlsafe_b64encode(sha256(file.read_bytes()).digest()).decode().rstrip("=")
                    return digest == f"sha256={encoded}"
    return True


def _taken(room: str, other: Path) -> NameTaken:
    return NameTaken(
        f"{other.absolute()} is another package {room!r}, and Tidetable has a package of that name: a process can "
        "import only one of the two. Run Tidetable as a code location of its own, with an interpreter of its own and a "
        "working directory without that package; `tidetable init DIR` writes one"
    )
