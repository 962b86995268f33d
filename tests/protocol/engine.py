"""Spark as far as the protocol sees it: sessions with settings, frames that are computed when they are written.

A statement is the engine's once it was sent: it goes on when its client dies, and may or may not have committed when
the engine dies.
"""

from __future__ import annotations

import json
import re
from functools import cached_property, partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pyspark.errors import PySparkException
from pyspark.sql.types import LongType, StringType, StructField, StructType

from spark.engine.log.commit import APP, METADATA, NUMBER
from tests.protocol.delta import NUMBER_IN, EngineGone, Row, refused
from tests.protocol.turns import Died

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import SparkSession

    from tests.protocol.broker import Broker
    from tests.protocol.delta import Lake, Version

T = TypeVar("T")

COLUMNS = StructType([StructField("k", LongType()), StructField("v", StringType())])
PATH = re.compile(r"delta\.`([^`]+)`")
PROPERTY = re.compile(r"'((?:[^'\\]|\\.)*)' = '((?:[^'\\]|\\.)*)'", re.DOTALL)
ESCAPED = re.compile(r"\\(u0024|.)", re.DOTALL)


class DataLost(PySparkException):
    """Spark's Kafka source missed records that it was to read."""


class Engine:
    """One resident engine; when it dies all its sessions do."""

    width = 2
    has_replace_on = True

    def __init__(self, lake: Lake, broker: Broker) -> None:
        self.lake, self.broker, self.turns = lake, broker, lake.turns
        self.turns.engine_dies = self.die

    def session(self) -> SparkSession:
        """A session of the engine that runs now: a dead one is started again."""
        return cast("SparkSession", Session(self))

    def plan_for(self, session: SparkSession, size: int) -> None:
        """Nothing: there are no queries."""

    def die(self) -> None:
        """End, with all sessions."""
        self.lake.life += 1


class Session:
    """Settings and views of its own."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.life = engine, engine.lake.life
        self.settings: dict[str, str] = {}
        self.views: dict[str, Frame] = {}

    @property
    def conf(self) -> Session:
        """Its settings."""
        return self

    def set(self, name: str, value: str) -> None:
        """Set one."""
        self.settings[name] = value

    def unset(self, name: str) -> None:
        """Forget one."""
        self.settings.pop(name, None)

    def stop(self) -> None:
        """End it."""

    @property
    def read(self) -> Reading:
        """A reader."""
        return Reading(self)

    def range(self, _: int) -> Frame:
        """A frame of no use but its type."""
        return Frame(self, list)

    def table(self, name: str) -> Frame:
        """A view: what is cached is what it is a view of."""
        return self.views[f"{name}_of"]

    def sql(self, statement: str) -> Statement:
        """A statement, to be collected."""
        return Statement(self, statement)

    def sent(self, statement: Callable[[], T]) -> T:
        """Send a statement, and wait for the answer."""
        client = self.engine.turns.client
        if client is not None and client.dead:
            raise Died
        self._answer()
        again = client is not None and client.struck("sent again")
        done = statement()
        if again:
            done = statement()
        self.engine.turns.cross("answered", engine=True)
        if client is not None and client.dead:
            raise Died
        if client is not None and client.struck("answer lost"):
            raise EngineGone(message="connection reset")
        self._answer()
        return done

    def _answer(self) -> None:
        if self.life != self.engine.lake.life:
            raise EngineGone(message="session closed")

    def fence(self) -> dict[str, Any]:
        """What its settings say of the next commit."""
        known = self.settings
        if APP not in known and NUMBER not in known:
            return {"metadata": known.get(METADATA)}
        if APP not in known or NUMBER not in known:
            raise refused("DELTA_INVALID_IDEMPOTENT_WRITES_OPTIONS")
        return {"app": known[APP], "number": int(known[NUMBER]), "metadata": known.get(METADATA)}

    def execute(self, statement: str) -> list[int]:
        """What the engine does of a statement."""
        lake, words = self.engine.lake, statement.split(maxsplit=1)[0]
        if "CACHE" in words:
            return []
        found = PATH.search(statement)
        assert found is not None, statement
        path = found.group(1)
        match words:
            case "MERGE":
                lake.merge(path, self.views["__source"].computed(), **self.fence())
            case "ALTER":
                lake.set_properties(path, properties(statement), self.settings.get(METADATA))
            case "CREATE" if "IF NOT EXISTS" in statement:
                lake.create(path, properties(statement), self.settings.get(METADATA))
            case "CREATE":
                lake.replace(path, properties(statement), self.settings.get(METADATA))
            case "DESCRIBE":
                return [len(lake.log(path).versions)] if lake.log(path).versions else []
            case _:
                raise AssertionError(f"the engine here does not know: {statement}")
        return []


def properties(statement: str) -> dict[str, str]:
    """Table properties out of SQL text."""

    def plain(literal: str) -> str:
        return ESCAPED.sub(lambda match: "$" if match[1] == "u0024" else match[1], literal)

    return {plain(name): plain(value) for name, value in PROPERTY.findall(statement)}


class Statement:
    """Does its work when it is collected."""

    def __init__(self, session: Session, text: str) -> None:
        self.session, self.text = session, text.strip()

    def collect(self) -> list[int]:
        """Have the engine do it."""
        return self.session.sent(lambda: self.session.execute(self.text))


class Frame:
    """Rows that are found when somebody needs them. What shapes columns leaves it as it is."""

    schema = COLUMNS
    dtypes = (("k", "bigint"), ("v", "string"))
    columns = ("k", "v")

    def __init__(self, session: Session, rows: Callable[[], list[Row]]) -> None:
        self.session, self.computed = session, rows
        self.observed = ""
        self.executionInfo: SimpleNamespace | None = None

    def select(self, *_: object) -> Frame:
        """The same rows."""
        return self

    drop = limit = toDF = withColumns = coalesce = alias = select

    def where(self, condition: str) -> Frame:
        """No rows, those that are present, or those at the keys of a condition."""
        match condition:
            case "false":
                return Frame(self.session, list)
            case "_present":
                return Frame(self.session, lambda: [row for row in self.computed() if row[1] is not None])
        keys = {int(key) for key in NUMBER_IN.findall(condition)}
        return Frame(self.session, lambda: [row for row in self.computed() if row[0] in keys])

    def observe(self, name: str, *_: object) -> Frame:
        """The same rows, counted when they are written."""
        self.observed = name
        return self

    def collect(self) -> list[dict[str, Any]]:
        """The keys."""
        return [{"k": key} for key, _ in self.computed()]

    def toLocalIterator(self) -> Iterator[Row]:
        """The rows, asked for at once."""
        return iter(self.session.sent(self.computed))

    def isEmpty(self) -> bool:
        """Whether there are none."""
        return not self.computed()

    def createOrReplaceTempView(self, name: str) -> None:
        """Name it in its session."""
        self.session.views[name] = self

    @cached_property
    def write(self) -> Writer:
        """A writer."""
        return Writer(self)


class Writer:
    """Spark's `DataFrameWriter`: options of its own, which win over the session's."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.options: dict[str, Any] = {}

    def option(self, name: str, value: object) -> Writer:
        """Set one."""
        self.options[name] = value
        return self

    def mode(self, mode: str) -> Writer:
        """Append, or overwrite."""
        return self.option("mode", mode)

    def format(self, name: str) -> Writer:
        """Delta it is."""
        assert name == "delta"
        return self

    def save(self, path: str) -> None:
        """Have the engine write it."""
        lake, options = self.frame.session.engine.lake, self.options
        fence = self.frame.session.fence()
        if "txnAppId" in options:
            fence |= {"app": options["txnAppId"], "number": options["txnVersion"]}
        fence |= {"metadata": options.get("userMetadata", fence["metadata"])}
        write: Callable[..., Version | None]
        if "replaceWhere" in options:
            write = partial(lake.replace_where, where=options["replaceWhere"])
        elif "replaceOn" in options:
            write = partial(lake.replace_on, on=options["replaceOn"])
        else:
            write = lake.overwrite if options["mode"] == "overwrite" else lake.append

        def writing() -> None:
            if write(path, self.frame.computed(), **fence) is not None and self.frame.observed:
                counts = {"records": len(self.frame.computed()), "errors": 0}
                self.frame.executionInfo = SimpleNamespace(flows=[(self.frame.observed, counts)])

        self.frame.session.sent(writing)


class Reading:
    """Spark's `DataFrameReader`, of Delta and of Kafka."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.source = ""
        self.chosen: dict[str, str] = {}

    def format(self, name: str) -> Reading:
        """Delta or Kafka."""
        self.source = name
        return self

    def option(self, name: str, value: object) -> Reading:
        """Set one."""
        return self.options(**{name: str(value)})

    def options(self, **options: str) -> Reading:
        """Set some."""
        self.chosen |= options
        return self

    def load(self, path: str = "") -> Frame:
        """Rows of a version of a table (the newest when they are computed), or records between offsets."""
        engine, chosen = self.session.engine, self.chosen
        if self.source == "kafka":
            return Frame(self.session, lambda: fetched(engine.broker, chosen))
        if "versionAsOf" in chosen:
            return Frame(self.session, lambda: list(engine.lake.at(path, int(chosen["versionAsOf"])).rows))
        return Frame(self.session, lambda: list(engine.lake.log(path).versions[-1].rows))


def fetched(broker: Broker, options: Mapping[str, str]) -> list[Row]:
    """The records between two offsets, as Spark's Kafka source reads them under read_committed."""
    [(topic, since)] = json.loads(options["startingOffsets"]).items()
    [(_, until)] = json.loads(options["endingOffsets"]).items()
    start, end = ({int(n): offset for n, offset in offsets.items()} for offsets in (since, until))
    for number, partition in enumerate(broker.topics[topic]):
        if start.get(number, 0) < min(partition.first, end.get(number, 0)):
            raise DataLost(message=f"partition {number} begins at {partition.first}")
    return broker.between(topic, start, end)
