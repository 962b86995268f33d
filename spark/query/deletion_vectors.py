"""Deletion vectors of the Delta protocol: the rows of a data file that are deleted.

deltalake gives those of one version. The history of a key needs those that a commit replaced, so they are read here.
The protocol ("Deletion Vector Format") has a 64-bit Roaring bitmap: 32-bit Roaring bitmaps, each for the rows with the
same upper half of their number.
"""

from __future__ import annotations

import struct
from base64 import b85decode
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np

from spark.query.errors import LayoutUnknown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]

MAGIC = 1681511377
"""The first number of a bitmap in the portable format."""
UUID_TEXT = 20  # characters of a UUID in base 85
Z85 = bytes.maketrans(
    b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#",
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~",
)
"""From the alphabet of Z85, which Delta writes, to the one that Python reads."""
WITH_RUNS, WITHOUT_RUNS = 12347, 12346
"""The cookies of a 32-bit Roaring bitmap."""
ARRAY_SIZE = 4096  # values of a container: more are a bitmap of 65,536 bits
OFFSETS_FROM = 4  # containers from which on a bitmap with runs has their offsets


def deleted_rows(descriptor: Mapping[str, Any] | None, read: Callable[[str, int, int], bytes]) -> Numbers:
    """Return the numbers of the deleted rows, ascending; none without a descriptor.

    `descriptor` is the field `deletionVector` of an action of the log. `read` returns bytes of a file of the table:
    its name, where they begin, and how many.

    Raises:
        LayoutUnknown: the vector has a form that the protocol does not name.
        FileNotFoundError: its file was removed.
    """
    if descriptor is None:
        return np.empty(0, np.int64)
    kind, where, size = descriptor["storageType"], descriptor["pathOrInlineDv"], descriptor["sizeInBytes"]
    if kind == "i":
        return _rows(_z85(where))
    if kind == "u":
        folder, name = where[:-UUID_TEXT], UUID(bytes=_z85(where[-UUID_TEXT:]))
        path = f"{folder}/deletion_vector_{name}.bin".lstrip("/")
        return _rows(read(path, descriptor.get("offset", 0) + 4, size))  # the size comes first, in four bytes
    raise LayoutUnknown(f"a deletion vector is stored as {kind!r}; only vectors inside the table's folder are read")


def _z85(text: str) -> bytes:
    return b85decode(text.encode().translate(Z85))


def _rows(data: bytes) -> Numbers:
    magic, count = struct.unpack_from("<iq", data)
    if magic != MAGIC:
        raise LayoutUnknown(f"a deletion vector begins with {magic} instead of {MAGIC}")
    at, found = 12, []
    for _ in range(count):
        [high] = struct.unpack_from("<I", data, at)
        low, at = _bitmap(data, at + 4)
        found.append(low + (high << 32))
    return np.concatenate(found) if found else np.empty(0, np.int64)


def _bitmap(data: bytes, at: int) -> tuple[Numbers, int]:
    """Return the values of the 32-bit Roaring bitmap that begins at a byte, and where it ends."""
    [cookie] = struct.unpack_from("<I", data, at)
    runs = np.empty(0, np.uint8)
    if cookie & 0xFFFF == WITH_RUNS:
        size, at = (cookie >> 16) + 1, at + 4
        flags = np.frombuffer(data, np.uint8, (size + 7) // 8, at)
        runs, at = np.unpackbits(flags, bitorder="little"), at + len(flags)
    elif cookie == WITHOUT_RUNS:
        [size] = struct.unpack_from("<I", data, at + 4)
        at += 8
    else:
        raise LayoutUnknown(f"a bitmap of a deletion vector begins with {cookie}")
    heads = np.frombuffer(data, "<u2", 2 * size, at).astype(np.int64)
    at += 4 * size
    if len(runs) == 0 or size >= OFFSETS_FROM:
        at += 4 * size  # where each container begins: they are read one after the other
    found: list[Numbers] = []
    for number in range(size):
        high, count = heads[2 * number], int(heads[2 * number + 1]) + 1
        if len(runs) and runs[number]:
            [count] = struct.unpack_from("<H", data, at)
            pairs = np.frombuffer(data, "<u2", 2 * count, at + 2).astype(np.int64).reshape(-1, 2)
            values = np.concatenate([np.arange(first, first + more + 1) for first, more in pairs])
            at += 2 + 4 * count
        elif count > ARRAY_SIZE:
            bits = np.unpackbits(np.frombuffer(data, np.uint8, 8192, at), bitorder="little")
            values, at = np.flatnonzero(bits), at + 8192
        else:
            values, at = np.frombuffer(data, "<u2", count, at).astype(np.int64), at + 2 * count
        found.append(values + (high << 16))
    return np.concatenate(found) if found else np.empty(0, np.int64), at
