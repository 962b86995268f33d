"""Sessions for tests of many small queries: rows this few are there before code for them would be compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from resources.engine import Engine

SETTINGS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "1",
}


def quick_session(engine: Engine) -> SparkSession:
    """A session that interprets expressions; the caller stops it."""
    session = engine.session()
    for setting, value in SETTINGS.items():
        session.conf.set(setting, value)
    return session
