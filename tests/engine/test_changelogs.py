"""What reads the changes of a table begins with its rows where the changes are gone, and remembers that it did."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from assets.metadata import of_step
from dagster_project.render import result_line
from spark.engine.audit import Audited
from spark.engine.compact import compact
from spark.engine.errors import ChangesExpired, ExpressionFailed
from spark.engine.rebuild import rebuild
from spark.engine.step import step
from spark.topology import Consumed, StreamsBuilder, Topology
from tests.support import lake
from tests.support.lake import Record, send

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from resources.kafka import Kafka
    from spark.engine.ports import Ports


def topology(topic: str, most: str | None = None) -> Topology:
    """A table, and, if that is asked for, aggregates of its changes: one that folds, and one that reads them again."""
    builder = StreamsBuilder(f"changelogs-{topic}")
    prices = builder.table(topic, Consumed.json(key="sku string", value="price int"))
    if most is not None:
        changes = prices.to_stream().group_by("sku")
        changes.count("changes").materialize("counted")
        changes.aggregate(highest=most, lowest="min(price)").materialize("bounds")
        prices.to_stream().filter("price > 0").materialize("told")
    return builder.build()


def arrived(ports: Ports, kafka: Kafka, topic: str, made: Topology, *records: Record, at: tuple[str, ...] = ()) -> None:
    """Records land and are stepped, into all tables or some."""
    send(kafka, topic, *records)
    lake.land_all(ports, made)
    lake.step_all(ports, made, *at)


def test_changes_that_are_gone_are_stood_for_by_the_rows(
    ports: Ports, kafka: Kafka, topic: Callable[..., str], session: SparkSession
) -> None:
    name = topic("prices")
    arrive = partial(arrived, ports, kafka, name)
    alone = topology(name)
    path = lake.path(ports, alone, name)
    arrive(alone, Record("a", {"price": 9}), Record("b", {"price": 1}))
    arrive(alone, Record("a", {"price": 5}))
    lake.forget(session, path)

    followed = topology(name, "max(price)")
    version = lake.state(ports, alone, name).data_version
    lake.step_all(ports, followed)
    for table in ("counted", "bounds", "told"):
        assert lake.state(ports, followed, table).position.begun == {name: version}
    assert lake.rows(ports, followed, "counted") == {"a": {"changes": 1}, "b": {"changes": 1}}
    assert lake.rows(ports, followed, "bounds")["a"] == {"highest": 5, "lowest": 5}, "9 is not told any more"

    arrive(followed, Record("a", {"price": 3}), Record("b", None))
    arrive(followed, Record("a", {"price": 4}))
    assert lake.rows(ports, followed, "counted")["a"] == {"changes": 3}
    assert lake.rows(ports, followed, "bounds")["a"] == {"highest": 5, "lowest": 3}
    compact(ports.engine, ports.lakehouse, followed, name)
    audited = lake.audited(ports, followed, "counted", "bounds", "told")
    assert {isinstance(one, Audited) and one.holds for one in audited} == {True}
    for table in ("counted", "bounds", "told"):
        done = rebuild(ports, followed, followed.table(table), "again")
        assert (done.inserted, done.updated, done.deleted) == (0, 0, 0)


@pytest.mark.thorough
def test_what_cannot_be_computed_again_is_refused_and_begins_anew_when_that_is_asked_for(
    ports: Ports, kafka: Kafka, topic: Callable[..., str], session: SparkSession
) -> None:
    name = topic("prices")
    arrive, followed = partial(arrived, ports, kafka, name), topology(name, "max(price)")
    path = lake.path(ports, followed, name)
    arrive(followed, Record("a", {"price": 5}), Record("b", {"price": 1}))
    arrive(followed, Record("a", {"price": 3}), Record("b", None))
    arrive(followed, Record("a", {"price": 4}))
    lake.forget(session, path)  # somebody else, by hand
    before = lake.rows(ports, followed, "bounds")
    version = DeltaTable(lake.path(ports, followed, "bounds")).version()
    failing, other = (
        topology(name, "max(cast(raise_error('no') AS int))"),
        topology(name, "max(cast(price + 1 AS int))"),
    )
    for made in (followed, failing, other):
        with pytest.raises(
            ChangesExpired, match=rf"bounds cannot be computed again(.|\n)*{made.name}.bounds --from-rows"
        ):
            rebuild(ports, made, made.table("bounds"), "again")
    assert DeltaTable(lake.path(ports, followed, "bounds")).version() == version
    assert lake.rows(ports, followed, "bounds") == before
    arrive(followed, Record("a", {"price": 2}), at=(name, "bounds"))
    assert lake.rows(ports, followed, "bounds")["a"] == {"highest": 5, "lowest": 2}, "it goes on"

    # What was asked for and failed has lost nothing that was not asked for.
    with pytest.raises(ExpressionFailed):
        rebuild(ports, failing, failing.table("bounds"), "failing", from_rows=True)
    for verb in (step, rebuild):
        with pytest.raises(ChangesExpired, match="--from-rows"):
            verb(ports, failing, failing.table("bounds"), "again")
    with pytest.raises(ChangesExpired, match="--from-rows"):
        rebuild(ports, other, other.table("bounds"), "again")
    done = rebuild(ports, other, other.table("bounds"), "other", from_rows=True)
    version = lake.state(ports, other, name).data_version
    assert done.begun == {name: version}
    assert f"begins with the rows of {name} at version {version}: older changes were gone" in result_line(done)
    assert of_step(done)["begun"].value == {name: version}
    assert lake.rows(ports, other, "bounds")["a"] == {"highest": 3, "lowest": 2}
    arrive(other, Record("a", {"price": 7}), at=(name, "bounds"))
    assert lake.rows(ports, other, "bounds")["a"] == {"highest": 8, "lowest": 2}
