"""Find a Java that Spark and Kafka run on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

VERSIONS = (17, 21)  # Spark 4.0 runs on exactly these long-term releases
APT, BREW = "sudo apt-get install openjdk-17-jre-headless", "brew install openjdk@17"


class JavaNotFound(RuntimeError):
    """This machine has no Java 17 or 21.

    Install Java 17 or 21 with the command in the message, or set `JAVA_HOME` to an installation.
    """


def java() -> Path:
    """The path of the first Java 17 or 21 in `JAVA_HOME` and `PATH`.

    Raises:
        JavaNotFound: there is none.
    """
    rejected = []
    for path in _candidates():
        version = _version(path)
        if version in VERSIONS:
            return path
        rejected.append(f"{path} is Java {version}" if version is not None else f"{path} does not run")
    why = "; ".join(rejected) or "no java in JAVA_HOME or on PATH"
    raise JavaNotFound(f"Java 17 or 21 is required: {why}. Install it: {BREW if sys.platform == 'darwin' else APT}")


def java_home(path: Path) -> Path:
    """The installation folder of a `java` executable, as `JAVA_HOME` names it."""
    return path.resolve().parent.parent


def _candidates() -> list[Path]:
    home, on_path = os.environ.get("JAVA_HOME"), shutil.which("java")
    paths = [Path(home, "bin", "java")] if home else []
    return paths + ([Path(on_path)] if on_path else [])


def _version(path: Path) -> int | None:
    """The feature release that `java -version` prints (17 for 17.0.15, 8 for 1.8.0); None if it does not run."""
    try:
        printed = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    number = re.search(r'version "(?:1\.)?(\d+)', printed.stderr)
    return int(number[1]) if number else None
