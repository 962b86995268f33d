"""Where the lake, the engine and Kafka are, from the environment.

TIDETABLE_LAKE            a folder, or an object store's URL; `.lake` in the working directory without it
TIDETABLE_KAFKA           bootstrap servers, or the path of a file of librdkafka properties (`name=value` lines) for
                          a cluster with security settings; without it the lake's own broker, started at first use
SPARK_REMOTE              an engine of yours, `sc://host:port`; without it the lake's own, started at first use
TIDETABLE_ENGINE_MEMORY   memory of the lake's own engine, `4g` without it
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from confluent_kafka import KafkaException

from resources.embedded_kafka import EmbeddedKafka
from resources.engine import Engine
from resources.kafka import Kafka
from resources.lakehouse import Lakehouse
from resources.tidetable import Tidetable
from spark.engine.doors import Doors

REMOTE = re.compile(r"sc://[^/:;@\s]+(:\d{1,5})?(/(;[^\s]*)?)?")

SCHEMES = ("s3a", "s3", "gs", "abfs", "abfss", "az", "hdfs", "file")
"""Of lakes that are no plain folder. Under any other, Delta's reader without Spark finds no table, and says no more."""


class SettingsError(Exception):
    """A setting that cannot be meant.

    Correct the environment variable, or the line of the properties file, that the message names. This
    module says what each may hold.
    """


@dataclass(frozen=True)
class Settings:
    """The application's settings; None: what comes without one."""

    lake: str = ".lake"
    kafka: str | None = None
    spark_remote: str | None = field(default=None, repr=False)  # it may hold a token
    engine_memory: str | None = None

    @staticmethod
    def from_environment(environment: Mapping[str, str] = os.environ) -> Settings:
        """The settings that environment variables hold; an empty one is no setting."""
        return Settings(
            lake=environment.get("TIDETABLE_LAKE") or Settings.lake,
            kafka=environment.get("TIDETABLE_KAFKA") or None,
            spark_remote=environment.get("SPARK_REMOTE") or None,
            engine_memory=environment.get("TIDETABLE_ENGINE_MEMORY") or None,
        )

    def tidetable(self) -> Tidetable:
        """Everything outside, nothing of it opened or started.

        Raises:
            SettingsError: a setting cannot be meant.
        """
        scheme, url, _ = self.lake.partition("://")
        if url and scheme not in SCHEMES:
            raise SettingsError(
                f"TIDETABLE_LAKE={self.lake}: {scheme}:// is no scheme that both Spark and this process can read; "
                f"write a folder, or one of {', '.join(f'{known}://' for known in SCHEMES)}"
            )
        if "%" in self.lake:
            raise SettingsError(
                f"TIDETABLE_LAKE={self.lake}: a path with % means two places, to Spark and to this process"
            )
        return Tidetable(self._engine(), Lakehouse(self.lake), self._kafka())

    def doors(self) -> Doors:
        """Open doors; the lake's own broker is started."""
        return self.tidetable().doors()

    @property
    def folder(self) -> Path | None:
        """The lake, if it is a folder of this machine."""
        return None if "://" in self.lake else Path(self.lake).expanduser().resolve()

    def _engine(self) -> Engine:
        if self.folder is None and self.spark_remote is None:
            raise SettingsError(
                f"TIDETABLE_LAKE={self.lake} is no folder, so it has no engine of its own: set SPARK_REMOTE=sc://host:port"
            )
        if self.spark_remote is not None and not REMOTE.fullmatch(self.spark_remote):
            # Not shown: its parameters may hold a token.
            raise SettingsError(
                "SPARK_REMOTE is no URL of Spark Connect: write sc://host:port, or sc://host:port/;token=..."
            )
        engine = Engine(self.folder, self.spark_remote, lakehouse=Lakehouse(self.lake))
        return engine if self.engine_memory is None else replace(engine, memory=self.engine_memory)

    def _kafka(self) -> Kafka | EmbeddedKafka:
        if self.kafka is None:
            if self.folder is None:
                raise SettingsError(
                    f"TIDETABLE_LAKE={self.lake} is no folder, so it has no broker of its own: "
                    "set TIDETABLE_KAFKA to bootstrap servers, or to a file of librdkafka properties"
                )
            return EmbeddedKafka(self.folder)
        path = Path(self.kafka).expanduser()
        if path.is_file():
            kafka = Kafka(properties(path))
            try:
                kafka.admin()
            except KafkaException as error:  # librdkafka names the property
                raise SettingsError(f"{path}: {error.args[0].str()}") from None
            return kafka
        if "/" in self.kafka or self.kafka.endswith(".properties"):
            raise SettingsError(f"TIDETABLE_KAFKA={self.kafka}: there is no such file")
        return Kafka({"bootstrap.servers": self.kafka})


def properties(path: Path) -> dict[str, str]:
    """The `name=value` lines of a file; a line that begins with # is a comment."""
    lines = [line.strip() for line in path.read_text().splitlines()]
    found = {}
    for number, line in enumerate(lines, start=1):
        name, equals, value = line.partition("=")
        if line.startswith("#") or line == "":
            continue
        if equals == "":
            raise SettingsError(f"{path}, line {number}: write name=value, as in bootstrap.servers=host:9092")
        found[name.strip()] = value.strip()
    if "bootstrap.servers" not in found:
        raise SettingsError(f"{path} has no bootstrap.servers: add bootstrap.servers=host:9092")
    return found
