"""Records as nobody should send them, and a judge of each: JSON by the letter, without Spark."""

from __future__ import annotations

import base64
import json
import math
import re
from binascii import Error as NotBase64
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from spark.topology import Consumed

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

CONSUMED = Consumed.json(
    key="id bigint",
    value="tiny tinyint, small smallint, a int, b bigint, d decimal(12,2), f double, yes boolean, s string, "
    "t timestamp, day date, raw binary, list array<int>, m map<string,int>, st struct<x:int,y:string>",
)
COLUMNS = [column.name for column in CONSUMED.value]

BLANKS = " \t\r\n"
DEEPEST = 1000  # levels: Jackson's limit, and so ours
LONGEST = 1000  # digits: the same
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{3})?(Z|[+-]\d\d:\d\d)")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Row = dict[str, Any]


class Bad(Exception):
    """Not JSON of the declared columns."""


class Pairs(list[tuple[str, Any]]):
    """An object as it was written: a field may be there twice."""


@dataclass(frozen=True)
class Number:
    """A number with a point or an exponent, by its text."""

    text: str


@dataclass(frozen=True)
class Judged:
    """What becomes of a record: broken, or its key (None: it has none) and its row (None: a tombstone)."""

    broken: bool = False
    key: int | None = None
    row: Row | None = None


def judge(key: bytes | None, value: bytes | None) -> Judged:
    """What must become of a record."""
    try:
        return Judged(False, _key(key), _value(value))
    except Bad:
        return Judged(broken=True)


def _value(raw: bytes | None) -> Row | None:
    if raw is None or raw.strip(BLANKS.encode()) == b"null":
        return None
    found = _parsed(raw)
    if not isinstance(found, Pairs):
        raise Bad
    row: Row = dict.fromkeys(COLUMNS)
    for name, value in found:
        if name in row:
            row[name] = None if value is None else READ[name](value)
    if isinstance(exact := row["d"], Decimal):  # of a field that is there twice, the last counts
        row["d"] = exact.quantize(Decimal("0.01"))
        if row["d"] != exact:
            raise Bad
    return row


def _key(raw: bytes | None) -> int | None:
    if raw is None:
        return None
    text = _text(raw).strip(BLANKS)
    if text == "null":
        return None
    if text.startswith("{"):
        ids = [value for name, value in _parsed(raw) if name == "id"]
        checked = [None if value is None else _integer(64)(value) for value in ids]
        return checked[-1] if checked else None
    if text.startswith('"'):
        text = _parsed(raw)
    if not re.fullmatch(r"[+-]?[0-9]{1,40}", text):
        raise Bad
    return _integer(64)(int(text))


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise Bad from error


def _parsed(raw: bytes) -> Any:
    text = _text(raw)
    if _depth(text) > DEEPEST:
        raise Bad
    try:
        return json.loads(
            text, object_pairs_hook=Pairs, parse_float=Number, parse_int=_digits, parse_constant=_no_constant
        )
    except ValueError as error:
        raise Bad from error


def _depth(text: str) -> int:
    """How deep brackets nest at most, outside of strings."""
    depth = deepest = 0
    for bracket in re.findall(r"[\[\]{}]", re.sub(r'"(?:[^"\\]|\\.)*"', "", text)):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _digits(text: str) -> int:
    if len(text) > LONGEST:
        raise ValueError(text)
    return int(text)


def _no_constant(name: str) -> None:
    raise ValueError(name)


def _integer(bits: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if type(value) is not int or not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
            raise Bad
        return value

    return read


def _decimal(value: Any) -> Decimal:
    text = value.text if isinstance(value, Number) else str(value) if type(value) is int else value
    if not isinstance(text, str) or not NUMBER.fullmatch(text):
        raise Bad
    if abs(exact := Decimal(text)) >= 10**10:
        raise Bad
    return exact + 0  # no column tells -0 from 0


def _double(value: Any) -> float:
    if value in ("NaN", "Infinity", "-Infinity"):
        return float(value)
    if not isinstance(value, Number) and type(value) is not int:
        raise Bad
    try:
        found = float(value.text if isinstance(value, Number) else value)
    except OverflowError as error:
        raise Bad from error
    if math.isinf(found):
        raise Bad
    return found


def _is(kind: type) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if type(value) is not kind:
            raise Bad
        return value

    return read


def _string(value: Any) -> str:
    """What is no string is kept as text, as Jackson writes it: without blanks, and numbers as doubles print."""
    return value if isinstance(value, str) else _written(value)


def _written(value: Any) -> str:
    if isinstance(value, Pairs):
        return "{" + ",".join(f"{json.dumps(name)}:{_written(one)}" for name, one in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_written, value)) + "]"
    if isinstance(value, Number):
        double = json.dumps(float(value.text))
        return f'"{double}"' if "Infinity" in double else double
    return json.dumps(value)


def _time(value: Any) -> int:
    try:
        if type(value) is int:
            at = EPOCH + timedelta(seconds=value)
        elif isinstance(value, str) and TIME.fullmatch(value):
            at = datetime.fromisoformat(value)
        else:
            raise Bad
    except (ValueError, OverflowError) as error:
        raise Bad from error
    return round((at - EPOCH) / timedelta(milliseconds=1))


def _day(value: Any) -> date:
    if not isinstance(value, str) or not re.fullmatch(r"\d{4}-\d\d-\d\d", value):
        raise Bad
    try:
        return date.fromisoformat(value)
    except ValueError as error:
        raise Bad from error


def _bytes(value: Any) -> bytes:
    if not isinstance(value, str):
        raise Bad
    try:
        return base64.b64decode(value, validate=True)
    except NotBase64 as error:
        raise Bad from error


def _list(value: Any) -> list[int | None]:
    if not isinstance(value, list) or isinstance(value, Pairs):
        raise Bad
    return [None if one is None else _integer(32)(one) for one in value]


def _map(value: Any) -> list[tuple[str, int | None]]:
    if not isinstance(value, Pairs) or len({name for name, _ in value}) < len(value):
        raise Bad
    return [(name, None if one is None else _integer(32)(one)) for name, one in value]


def _struct(value: Any) -> Row:
    if not isinstance(value, Pairs):
        raise Bad
    found: Row = {"x": None, "y": None}
    for name, one in value:
        if name in found:
            found[name] = None if one is None else _integer(32)(one) if name == "x" else _string(one)
    return found


READ: dict[str, Callable[[Any], Any]] = {
    "tiny": _integer(8),
    "small": _integer(16),
    "a": _integer(32),
    "b": _integer(64),
    "d": _decimal,
    "f": _double,
    "yes": _is(bool),
    "s": _string,
    "t": _time,
    "day": _day,
    "raw": _bytes,
    "list": _list,
    "m": _map,
    "st": _struct,
}

# A value of every column, as JSON text.
RIGHT: dict[str, list[str]] = {
    "tiny": ["-128", "127", "0"],
    "small": ["-32768", "32767"],
    "a": ["1", "-0", "2147483647", "null"],
    "b": ["9223372036854775807", "-9223372036854775808"],
    "d": ["12.340", "12.345", '"12.30"', "1e3", '"1E+2"', "-0.005", '"+7"', "9999999999.99"],
    "f": ["1.5", "1e300", '"NaN"', '"-Infinity"', "7", "1e-400"],
    "yes": ["true", "false"],
    "s": ['"größe ☃"', '"}{"', '"NaN"', '"12e45678"', '"\\u00e9\\n"', '""', '{"kept": [1, "x"]}', "7", "true"],
    "t": ['"2026-02-28T01:02:03.004+01:00"', "1700000000", '"0001-01-02T00:00:00Z"'],
    "day": ['"2024-02-29"', '"9999-12-31"'],
    "raw": ['"aGk="', '""'],
    "list": ["[]", "[1, null]"],
    "m": ["{}", '{"a": 1, "b": null}'],
    "st": ['{"x": 1, "y": "z"}', "{}", '{"x": 1, "x": 2}'],
}

# What is wrong for some column, or for all of them.
ODD = [
    *("null", "true", '"true"', "1.0", "1e2", '"1"', "128", "-129", "32768", "2147483648", "9223372036854775808"),
    *("NaN", "Infinity", "-INF", '"NaN"', "1e999", "-1e999", "1e1000000000", "1e-1000000000", '"1e1000000000"'),
    *('"1,5"', '"1,234.50"', '"12 "', '"0x1F"', '""', '"yesterday"', '"2026-02-30"', '"2026-13-01T00:00:00Z"'),
    *('"99999-01-01"', "1700000000000", '"%%"', '"aGk"', "[]", "[1]", '["x"]', "[[1]]", "{}", '{"a": 1}'),
    *(
        '{"a": 1, "a": 2}',
        '{"x": "1"}',
        '{"a": "b"}',
        "01",
        "+1",
        ".5",
        "1.",
        "0x1F",
        "truE",
        "'x'",
        "9" * 900,
        "9" * 1100,
    ),
]

KEYS = ['{"id": %d}', "%d", '"%d"', " %d ", '{"id": %d, "other": NaN}', '{"id": %d} x', "%d.5", '{"id": "%d"}', "[%d]"]
NO_KEYS = [
    None,
    b"null",
    b"{}",
    b'{"id": null}',
    b"",
    b"seven",
    b"\xff\xfe",
    b'"\xff"',
    b"9" * 40,
    b"{" * 2000,
    b'{"id": 1',
]
NO_OBJECTS = [
    None,
    b"",
    b" ",
    b"null",
    b"\nnull ",
    b"nil",
    b"5",
    b'"x"',
    b"[]",
    b"[{}]",
    b"NaN",
    b"\x00",
    b"\xff" * 9,
    b"{" * 5000,
]


def drawn(rng: random.Random, number: int) -> tuple[bytes | None, bytes | None]:
    """A record: in some two of five nothing is wrong."""
    key = number if rng.random() < 0.5 else rng.randrange(300)
    return _some_key(rng, key), _some_value(rng)


def _some_key(rng: random.Random, key: int) -> bytes | None:
    dice = rng.random()
    if dice < 0.05:
        return rng.choice(NO_KEYS)
    return (rng.choice(KEYS) % key if dice < 0.15 else str(key)).encode()


def _some_value(rng: random.Random) -> bytes | None:
    dice = rng.random()
    if dice < 0.05:
        return rng.choice(NO_OBJECTS)
    if dice < 0.15:
        return _flipped(rng, _object(rng, [name for name in COLUMNS if name not in ("s", "t", "day", "raw")]).encode())
    fields = _object(rng, COLUMNS)
    if dice < 0.45:
        return fields.encode()
    if dice < 0.80:
        name = rng.choice([*COLUMNS, "undeclared"])
        return f'{fields[:-1]}{", " if len(fields) > 2 else ""}"{name}": {rng.choice(ODD)}}}'.encode()
    return rng.choice(SPOILT)(rng, fields.encode())


def _object(rng: random.Random, names: list[str]) -> str:
    chosen = rng.sample(names, rng.randrange(len(names)))
    fields = ", ".join(f'"{name}": {rng.choice(RIGHT[name])}' for name in chosen)
    return f"{{{fields}}}"


def _flipped(rng: random.Random, text: bytes) -> bytes:
    """With some bytes that are others."""
    spoilt = bytearray(text)
    for _ in range(rng.randrange(1, 4)):
        spoilt[rng.randrange(len(spoilt))] = rng.choice(b'{}[]",:0123456789eE.-+ntf\\\x00\x7f\xc3\xff \t')
    return bytes(spoilt)


def _nested(rng: random.Random, text: bytes) -> bytes:  # noqa: ARG001  # one of many
    depth, name = rng.choice([5, 500, 1500, 30_000]), rng.choice([b"undeclared", b"a", b"list", b"st", b"m"])
    opening, closing = rng.choice([(b"[", b"]"), (b'{"x":', b"}")])
    return b'{"%s": %s1%s}' % (name, opening * depth, closing * depth)


SPOILT: list[Callable[[random.Random, bytes], bytes]] = [
    lambda rng, text: text[: rng.randrange(len(text))],
    lambda rng, text: text + rng.choice([b" x", b"{}", b" ", b"}", b"\n\n", b",", b"\x00", b"/* x */", b"// x"]),
    lambda rng, text: rng.choice([b"\xef\xbb\xbf", b"\xff\xfe", b" ", b"x", b"{"]) + text,
    lambda rng, text: text.replace(*rng.choice([(b'"', b"'"), (b"}", b",}"), (b", ", b" "), (b":", b"=")])),
    lambda rng, text: text.decode().encode(rng.choice(["utf-16", "utf-32", "utf-8-sig"])),
    lambda rng, text: text.replace(b"{", b"{" + rng.choice([b'"s": "\xc3\x28", ', b'"s": "\x01", ', b"a: 1, "]), 1),
    _nested,
    _nested,
]
