"""Whether an engine can run the Python that decodes Protobuf: checked once per engine and process, when a topic lands.

Spark starts Python workers on the engine's hosts. They need the client's minor version of Python, and the packages that
the decoder imports. Spark's own error for this would come from the middle of a landing.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Final

from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from spark.engine.errors import EngineWithoutPython, cause, engine_died
from spark.engine.executors import passed, tasks
from spark.serdes.protobuf import Messages
from spark.serdes.schemas import NO_SCHEMAS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark.engine.ports import Ports
    from spark.topology.topology import Source

RAISED: Final = re.compile(r"^\s*([\w.]*(?:Error|Exception): .+)$", re.MULTILINE)
"""The line of a traceback that says what was raised."""

_ABLE: Final = "workers"
"""The name of the check."""


def check_workers(ports: Ports, session: SparkSession, source: Source) -> None:
    """Check that the engine decodes a message of a topic, if it is in Protobuf; once per engine and process.

    Raises:
        EngineWithoutPython: it does not.
    """
    consumed = source.consumed
    if consumed.message is None or (_ABLE, ports.engine) in passed:
        return
    empty = tasks(session).select(F.lit(b"").alias("_value"))
    try:
        Messages(consumed.message).decode(empty, "value", consumed.value + consumed.again, NO_SCHEMAS).count()
    except PySparkException as error:
        if engine_died(error):
            raise
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise EngineWithoutPython(
            f"topic {source.topic} is in Protobuf, which Python workers of the engine decode, and they fail: "
            f"{_why(error)}. Give every host of the engine Python {version} with pyspark, pyarrow and protobuf, and "
            "name it by PYSPARK_PYTHON in the environment of the engine; the lake's own engine has it when it is "
            "started again: tidetable down, tidetable up"
        ) from error
    passed.add((_ABLE, ports.engine))


def _why(error: PySparkException) -> str:
    """The error of a Python worker, in one line; or what the engine says of a worker that did not start."""
    raised = [line for line in RAISED.findall(str(error)) if not line.startswith(("org.", "java."))]
    return str(raised[-1]) if raised else cause(error)
