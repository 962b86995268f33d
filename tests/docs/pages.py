"""The Python of the pages that explain by code, run as their reader would: in Spark's own session, without us.

Every block runs, in the order of its page, but for those below a comment `<!-- not run: why -->`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[2] / "docs"
PAGES = (DOCS / "tutorial.md", DOCS / "formats.md", DOCS / "shared-tables.md", *sorted((DOCS / "how-to").glob("*.md")))
BLOCK = re.compile(r"^(?P<not_run><!-- not run: [^\n]+ -->\n)?```python\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)
QUIET = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.adaptive.enabled": "false",
}


@dataclass(frozen=True)
class Block:
    """A block of a page; its code stands at its own line, so that an error names it."""

    page: Path
    code: str
    is_run: bool


def blocks(page: Path) -> Iterator[Block]:
    """The blocks of a page."""
    text = page.read_text()
    for found in BLOCK.finditer(text):
        line = text.count("\n", 0, found.start("code"))
        yield Block(page, "\n" * line + found["code"], found["not_run"] is None)


def run(page: Path) -> dict[str, Any]:
    """Execute the blocks of a page, one after the other, and the tests that they define; what they made."""
    namespace: dict[str, Any] = {}
    for block in blocks(page):
        code = compile(block.code, str(block.page), "exec")
        if block.is_run:
            exec(code, namespace)
    for name, made in list(namespace.items()):
        if name.startswith("test_"):
            made()
    return namespace


def main() -> None:
    """Every page, in one session."""
    from pyspark.sql import SparkSession

    from tests.support.quick import SETTINGS

    builder = SparkSession.builder.master("local[1]")  # few rows: tasks of their own would only cost their start
    for setting, value in {**SETTINGS, **QUIET}.items():
        builder = builder.config(setting, value)
    session = builder.getOrCreate()
    for page in PAGES:
        run(page)
        print("ran", page.relative_to(DOCS))
    session.stop()


if __name__ == "__main__":
    main()
