"""Where a topology's tables are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Lakehouse:
    """A folder, or an object store's URL, with a folder per topology."""

    root: str

    def __post_init__(self) -> None:
        """A path is made absolute: the engine has another working directory."""
        root = self.root if "://" in self.root else str(Path(self.root).expanduser().resolve())
        object.__setattr__(self, "root", root.rstrip("/"))

    def table(self, topology: str, name: str) -> str:
        """The path of a stored table."""
        return f"{self.root}/{topology}/{name}"
