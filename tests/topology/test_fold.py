"""Which aggregates fold, into what, and why the others do not."""

from __future__ import annotations

import pytest

from spark.topology import Consumed, StreamsBuilder, Topology
from spark.topology.nodes import Aggregate, Select
from spark.topology.sql.fold import Fold

ROW = "sku string, n int, big bigint, price decimal(12,2), wide decimal(30,2), weight double, at timestamp"


def aggregated(expression: str, stream: bool = False) -> Aggregate:
    """The plan of one aggregate, stored."""
    builder = StreamsBuilder("t")
    consumed = Consumed.json(key="id bigint", value=ROW)
    source = builder.stream("rows", consumed) if stream else builder.table("rows", consumed)
    source.group_by("sku").aggregate(found=expression).materialize("found")
    plan = builder.build().table("found").plan
    assert isinstance(plan, Aggregate)
    return plan


@pytest.mark.parametrize(
    ("expression", "folded", "partials"),
    [
        ("count(*)", "_rows", []),
        ("count(n)", "_partial1", ["count(n)"]),
        ("count_if(n > 3)", "_partial1", ["count_if(n > 3)"]),
        ("sum(n)", "CASE WHEN _partial2 > 0 THEN _partial1 END", ["coalesce(sum(n), 0)", "count(n)"]),
        (
            "avg(big)",
            "CASE WHEN _partial2 > 0 THEN cast(_partial1 AS double) / _partial2 END",
            ["coalesce(sum(cast(big AS decimal(19,0))), 0)", "count(big)"],
        ),
        (
            "avg(price)",
            "CASE WHEN _partial2 > 0 THEN cast(_partial1 / _partial2 AS decimal(16,6)) END",
            ["coalesce(sum(price), 0)", "count(price)"],
        ),
        ("max(at) - min(at)", "(_partial1) - (_partial2)", ["max(at)", "min(at)"]),
        ("sum(cast(n * 2 AS bigint)) + count(*)", None, ["coalesce(sum(cast(n * 2 AS bigint)), 0)", None]),
        ("min(weight)", "_partial1", ["min(weight)"]),
        ("concat(sku, max(n))", "concat(sku, (_partial1))", ["max(n)"]),
        ("case when count(*)>1 then max(n)else 0 end", "case when (_rows)>1 then (_partial1)else 0 end", ["max(n)"]),
        ("cast(count(*) AS varchar(3))", "cast((_rows) AS varchar(3))", []),
        ("concat('count(*) of ', max(n))", "concat('count(*) of ', (_partial1))", ["max(n)"]),
    ],
)
def test_an_aggregate_folds_into_partials(expression: str, folded: str | None, partials: list[str | None]) -> None:
    fold = aggregated(expression).fold
    assert fold is not None
    assert folded is None or fold.select == (("found", folded),)
    assert [partial.name for partial in fold.partials][:1] == ["_rows"]
    for partial, text in zip(fold.partials[1:], partials, strict=True):
        assert text is None or partial.text == text


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("sum(weight)", "weight is double; an integer, or a decimal with fewer digits, folds"),
        ("sum(wide)", "wide is decimal(30,2); an integer, or a decimal with fewer digits, folds"),
        ("avg(cast(price AS decimal(26,2)))", "is decimal(26,2)"),
        ("sum(n * 2)", "the type of n * 2 is not known before Spark runs it"),
        ("count(DISTINCT n)", "count(DISTINCT n) needs all rows of its group"),
        ("count(n, big)", "count(n, big) needs all rows of its group"),
        ("max(struct(at, n)).n", "the type of max(struct(at, n)) is not known before Spark runs it"),
        ("stddev(n)", "stddev(n) needs all rows of its group"),
        ("count(*) + percentile(n, 0.5)", "percentile(n, 0.5) needs all rows of its group"),
    ],
)
def test_what_does_not_fold_says_why(expression: str, why: str) -> None:
    plan = aggregated(expression)
    assert plan.fold is None
    told = plan.foldable
    assert isinstance(told, str)
    assert why in told


def test_a_stream_only_grows_so_sums_of_doubles_fold() -> None:
    assert aggregated("sum(weight)", stream=True).fold is not None
    assert (
        aggregated("sum(weight * 2)", stream=True).fold is None
    )  # nor is that of the sum: an overflow would be hidden
    assert aggregated("avg(weight)", stream=True).fold is not None
    assert aggregated("avg(weight * 2)", stream=True).fold is None  # its type is not known


def test_only_what_is_stored_folds() -> None:
    builder = StreamsBuilder("t")
    counted = builder.table("rows", Consumed.json(key="id bigint", value=ROW)).group_by("sku").count()
    counted.filter("count > 1").materialize("several")
    plan = builder.build().table("several").plan
    assert isinstance(plan, Select)
    assert isinstance(plan.source, Aggregate)
    assert plan.source.fold is None
    assert isinstance(plan.source.foldable, Fold)


def test_a_fold_travels_as_plain_data() -> None:
    builder = StreamsBuilder("t")
    builder.table("rows", Consumed.json(key="id bigint", value=ROW)).group_by("sku").count().materialize("counted")
    topology = builder.build()
    assert Topology.from_dict(topology.to_dict()) == topology
    assert topology.fingerprint("counted") == Topology.from_dict(topology.to_dict()).fingerprint("counted")
