"""Random plans: every operator over every operator, and what their expressions mean to the reference.

Every node here has the key (world, k) or (world, f), the other of the two as a foreign key, and a value v, so that
any operator can stand on any other.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from spark.topology.columns import Column
from spark.topology.nodes import Aggregate, Join, Latest, Node, Records, Scan, Select, Union
from spark.topology.sql.fold import Fold
from tests.laws.worlds import COLUMNS, TOPICS, table
from tests.support import reference

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from spark.topology.nodes import How

Row = reference.Row

TABLES = tuple(table(name) for name in "abc")
STREAMS = tuple(Records(Scan(f"_landing/{topic}", ("world", "k"), COLUMNS, appended=True)) for topic in TOPICS)


def key_of(node: Node) -> str:
    """The column that is the key, beside the world."""
    return node.key[1]


def other_of(node: Node) -> str:
    """The column that is a foreign key."""
    return "f" if key_of(node) == "k" else "k"


def columns_of(node: Node, key: str | None = None) -> tuple[Column, ...]:
    """The columns, with a key of them in front."""
    first = key_of(node) if key is None else key
    return tuple(Column(name, "bigint") for name in ("world", first, "f" if first == "k" else "k", "v"))


def selected(source: Node, where: str | None = None, **computed: str) -> Select:
    """A filter, a map, or both."""
    columns = columns_of(source)
    select = tuple((column.name, computed.get(column.name, column.name)) for column in columns)
    return Select(source, select, columns, where)


def rekeyed_stream(source: Node) -> Select:
    """A stream by its foreign key."""
    columns = columns_of(source, other_of(source))
    key = tuple(column.name for column in columns[:2])
    return Select(source, tuple((column.name, column.name) for column in columns), columns, rekeyed=key)


def grouped(source: Node, **texts: str) -> Aggregate:
    """The rows in groups of their foreign key."""
    by = ("world", other_of(source))
    return Aggregate(source, by, tuple((name, name) for name in by) + tuple(texts.items()), columns_of(source, by[1]))


def folded(source: Node, **texts: str) -> Aggregate:
    """The same, stored, and folded."""
    plan = grouped(source, **texts)
    fold = plan.foldable
    assert isinstance(fold, Fold), fold
    return replace(plan, fold=fold)


def counted(source: Node) -> dict[str, str]:
    """Aggregates that fold."""
    return {key_of(source): f"max({key_of(source)})", "v": "sum(v) + count(v)"}


def newest(source: Node) -> dict[str, str]:
    """The other columns of the newest row of a group."""
    order = f"struct(_timestamp, _topic, _partition, _offset, world, {key_of(source)})"
    return {name: f"max_by({name}, {order})" for name in (key_of(source), "v")}


def collected(source: Node) -> dict[str, str]:
    """Aggregates that do not fold."""
    return {key_of(source): f"min({key_of(source)})", "v": "cast(percentile(v, 0) AS bigint)"}


def joined(left: Node, right: Node, how: How, on: str) -> Join:
    """The left row, and the sum of both sides' values."""
    key = key_of(left)
    other = other_of(left)
    select = (
        ("world", "left.world"),
        (key, f"left.{key}"),
        (other, f"left.{other}"),
        ("v", "coalesce(left.v, 0) + coalesce(right.v, 10)"),
    )
    return Join(left, right, how, select, columns_of(left), ("world", on))


UNARY: dict[str, Callable[[Node], Node]] = {
    "filter": lambda source: selected(source, "v > 0", v="12 div v"),
    "filter by key": lambda source: selected(source, f"{key_of(source)} <> 2"),
    "map": lambda source: selected(source, **{other_of(source): "(v + 1) % 4", "v": "v + 1"}),
    "select_key": lambda source: grouped(source, **newest(source)),
    "aggregate": lambda source: grouped(source, **collected(source)),
}
BINARY: dict[str, Callable[[Node, Node], Node]] = {
    f"{how} by {kind}": partial(
        lambda how, kind, left, right: joined(
            left, right, how, key_of(left) if kind == "primary key" else other_of(left)
        ),
        how,
        kind,
    )
    for how in ("inner", "left", "outer")
    for kind in ("primary key", "foreign key")
    if (how, kind) != ("outer", "foreign key")
}
STREAM: dict[str, Callable[[Node], Node]] = {
    "filter": UNARY["filter"],
    "map": UNARY["map"],
    "select_key": rekeyed_stream,
}
FROM_STREAM: dict[str, Callable[[Node], Node]] = {
    "to_table": Latest,
    "versioned": partial(Latest, history=1),
    "aggregate": lambda source: grouped(source, **collected(source)),
}
ROOTS: dict[str, Callable[[Node], Node]] = {
    "fold": lambda source: folded(source, **counted(source)),
    "fold of extremes": lambda source: folded(source, **{key_of(source): f"min({key_of(source)})", "v": "max(v)"}),
}


def leaf(rng: random.Random) -> Node:
    """A stored table."""
    return rng.choice(TABLES)


def stream(rng: random.Random, depth: int) -> Node:
    """A stream: a landing's, or operators over it."""
    if depth == 0 or rng.random() < 0.3:
        return rng.choice(STREAMS)
    source = stream(rng, depth - 1)
    if rng.random() < 0.3:
        other = stream(rng, depth - 1)
        if (source.key, source.columns) == (other.key, other.columns):
            return Union(source, other)
    return STREAM[rng.choice(list(STREAM))](source)


def view(rng: random.Random, depth: int) -> Node:
    """A table: a stored one, or operators over others, or over a stream."""
    if depth == 0:
        return leaf(rng)
    kind = rng.choice([*UNARY, *BINARY, *FROM_STREAM])
    return over(rng, kind, depth)


def over(rng: random.Random, kind: str, depth: int) -> Node:
    """An operator over random inputs."""
    if kind in BINARY:
        return BINARY[kind](view(rng, depth - 1), view(rng, rng.randrange(depth)))
    if kind in UNARY:
        return UNARY[kind](view(rng, depth - 1))
    return FROM_STREAM[kind](stream(rng, depth - 1))


def program(rng: random.Random, depth: int = 3) -> Node:
    """A stored plan; sometimes an aggregate that folds."""
    if rng.random() < 0.25:
        source = stream(rng, depth - 1) if rng.random() < 0.3 else view(rng, depth - 1)
        return ROOTS[rng.choice(list(ROOTS))](source)
    return view(rng, depth)


def nestings() -> dict[str, Node]:
    """Every operator over every operator: each in each place where it can stand."""
    a, b, c = TABLES
    inner: dict[str, Node] = {"scan": a}
    inner |= {name: make(a) for name, make in UNARY.items()}
    inner |= {name: make(a, b) for name, make in BINARY.items()}
    streams: dict[str, Node] = {"stream": STREAMS[0], "merge": Union(STREAMS[0], STREAMS[1])}
    streams |= {f"stream's {name}": make(STREAMS[0]) for name, make in STREAM.items()}
    of_streams = {
        f"{name} of {of}": make(source) for name, make in FROM_STREAM.items() for of, source in streams.items()
    }
    inner |= {name: node for name, node in of_streams.items() if name.endswith("of stream")}
    found = dict(of_streams)
    for of, node in inner.items():
        found |= {f"{name} of {of}": make(node) for name, make in (UNARY | ROOTS).items()}
        found |= {f"{name}, {of} left": make(node, c) for name, make in BINARY.items()}
        found |= {f"{name}, {of} right": make(c, node) for name, make in BINARY.items()}
    found |= {f"{name} of {of}": make(source) for name, make in ROOTS.items() for of, source in streams.items()}
    found |= {
        f"{name} of a merge of {of}": Latest(Union(node, node))
        for of, node in streams.items()
        for name in ("to_table",)
    }
    assert all(not node.is_stream for node in found.values())
    return found


def _known(rows: list[Row], name: str) -> list[Any]:
    return [row[name] for row in rows if row[name] is not None]


def _newest(key: str, name: str, rows: list[Row]) -> Any:
    return max(rows, key=lambda row: (*reference.newness(row), row["world"], row[key]))[name]


def _plus(row: Row, _: Row) -> int | None:
    return None if row["v"] is None else row["v"] + 1


MEANING: reference.Meaning = {
    **{name: partial(lambda name, row, _: row[name], name) for name in ("world", "k", "f", "v")},
    **{f"left.{name}": partial(lambda name, left, _: left[name], name) for name in ("world", "k", "f", "v")},
    **{f"max({name})": partial(lambda name, rows: max(_known(rows, name), default=None), name) for name in "kfv"},
    **{f"min({name})": partial(lambda name, rows: min(_known(rows, name), default=None), name) for name in "kfv"},
    **{
        newest(node)[name]: partial(_newest, key_of(node), name)
        for node in (TABLES[0], grouped(TABLES[0]))
        for name in (key_of(node), "v")
    },
    "sum(v) + count(v)": lambda rows: sum(_known(rows, "v")) + len(_known(rows, "v")) if _known(rows, "v") else None,
    "cast(percentile(v, 0) AS bigint)": lambda rows: min(_known(rows, "v"), default=None),
    "v > 0": lambda row, _: None if row["v"] is None else row["v"] > 0,
    "k <> 2": lambda row, _: None if row["k"] is None else row["k"] != 2,
    "f <> 2": lambda row, _: None if row["f"] is None else row["f"] != 2,
    "12 div v": lambda row, _: None if row["v"] is None else 12 // row["v"],
    "(v + 1) % 4": lambda row, _: None if row["v"] is None else (row["v"] + 1) % 4,
    "v + 1": _plus,
    "coalesce(left.v, 0) + coalesce(right.v, 10)": lambda left, right: (
        (0 if left["v"] is None else left["v"]) + (10 if right["v"] is None else right["v"])
    ),
}
