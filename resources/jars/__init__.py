"""The jars of engine and broker: pinned by manifest and checksum, fetched once into a cache."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tarfile
import tempfile
from pathlib import Path

import pyspark

from resources.java import java
from resources.locked import locked

HERE = Path(__file__).parent
CHECKSUMS = HERE / "checksums.txt"
FOR_TESTS = {"debezium", "streams"}  # fetched by the test that needs them, never by `make setup`
ON_REQUEST = {"registry"}  # fetched by the first `tidetable up --registry`


class JarsUnavailable(RuntimeError):
    """The jars of a group could not be fetched, or differ from the pinned ones.

    Give the machine access to Maven Central once, or copy the cache folder (`TIDETABLE_CACHE`) of another machine.
    """


def groups() -> list[str]:
    """The names of the groups of jars that every user needs; each group has one manifest."""
    return sorted({manifest.stem for manifest in HERE.glob("*.xml")} - FOR_TESTS - ON_REQUEST)


def cache() -> Path:
    """The folder of all fetched files: outside the tree, shared by all checkouts."""
    if own := os.environ.get("TIDETABLE_CACHE"):
        return Path(own).expanduser().absolute()  # the servers have other working directories
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tidetable"


def jars(group: str) -> list[Path]:
    """The paths of the group's jars. The first use fetches and checks them; later uses need no network.

    The folder is named by the pinned checksums, and it is created only after all jars match them. So an existing folder
    needs no second check.

    Raises:
        JarsUnavailable: the jars cannot be fetched, or differ from the pinned ones.
    """
    pinned = checksums(group)
    folder = cache() / "jars" / f"{group}-{_digest(repr(sorted(pinned.items())).encode())[:12]}"
    paths = [folder / name for name in pinned]
    if not all(path.exists() for path in paths):
        with locked(cache() / "jars" / f"{group}.lock"):
            if not all(path.exists() for path in paths):
                _fetch(group, pinned, folder)
    return paths


def unpacked(group: str) -> Path:
    """The folder of the files of a group that is one archive. The first use fetches and unpacks it.

    Raises:
        JarsUnavailable: the archive cannot be fetched, or differs from the pinned one.
    """
    [archive] = jars(group)
    folder = archive.parent.with_name(f"{archive.parent.name}-unpacked")
    if not folder.exists():
        with locked(folder.parent / f"{group}.lock"):
            if not folder.exists():
                with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{group}-") as scratch:
                    with tarfile.open(archive) as content:
                        content.extractall(f"{scratch}/files", filter="data")
                    Path(scratch, "files").rename(folder)
    return folder


def checksums(group: str) -> dict[str, str]:
    """The pinned SHA-256 of every jar of the group, by file name."""
    lines = (line.split() for line in CHECKSUMS.read_text().splitlines())
    pinned = {Path(path).name: sha256 for sha256, path in lines if Path(path).parent.name == group}
    if not pinned:
        raise JarsUnavailable(f"no jars are pinned for '{group}'; pin them: python -m resources.jars --pin {group}")
    return pinned


def pin(group: str) -> dict[str, str]:
    """Resolve the group's manifest again, and write and return the checksums: this adds or upgrades a jar."""
    with tempfile.TemporaryDirectory() as scratch:
        pinned = {jar.name: _digest(jar.read_bytes()) for jar in _resolve(group, Path(scratch))}
    others = [line for line in CHECKSUMS.read_text().splitlines() if f" {group}/" not in line]
    lines = others + [f"{sha256}  {group}/{name}" for name, sha256 in pinned.items()]
    CHECKSUMS.write_text("\n".join(sorted(lines, key=lambda line: line.split()[1])) + "\n")
    return pinned


def _fetch(group: str, pinned: dict[str, str], folder: Path) -> None:
    """Fetch into a temporary folder, check every jar, and then move all of them into place by one rename."""
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{group}-") as scratch:
        fetched = {jar.name: jar for jar in _resolve(group, Path(scratch))}
        if missing := pinned.keys() - fetched.keys():
            raise JarsUnavailable(f"{group}.xml does not resolve to {sorted(missing)}, which checksums.txt lists")
        for name, sha256 in pinned.items():
            if (actual := _digest(fetched[name].read_bytes())) != sha256:
                raise JarsUnavailable(
                    f"{name} is not the pinned jar, and was deleted: its SHA-256 is {actual}, checksums.txt has "
                    f"{sha256}. Fetch it again: python -m resources.jars"
                )
        for name in fetched.keys() - pinned.keys():
            fetched[name].unlink()
        _discard(folder)
        (Path(scratch) / "jars").rename(folder)


def _resolve(group: str, scratch: Path) -> list[Path]:
    """Fetch the jars with the Ivy that pyspark ships. Its cache is in `scratch` too, so no partial file remains."""
    ivy = next((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"))
    command: list[str | Path] = [java(), f"-Divy.default.ivy.user.dir={scratch}"]
    command += ["-cp", ivy, "org.apache.ivy.Main"]
    command += ["-cache", scratch / "cache", "-ivy", HERE / f"{group}.xml", "-confs", "default"]
    command += ["-retrieve", f"{scratch}/jars/[artifact]-[revision].[ext]"]
    fetched = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if fetched.returncode != 0:
        end = "\n".join(fetched.stdout.splitlines()[-20:])
        raise JarsUnavailable(f"could not fetch the jars of '{group}'; Maven Central must be reachable once:\n{end}")
    return sorted((scratch / "jars").iterdir())


def _discard(folder: Path) -> None:
    """Remove the rest of a folder in which jars are missing: a rename needs a free or empty target."""
    for path in folder.glob("*"):
        path.unlink()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
