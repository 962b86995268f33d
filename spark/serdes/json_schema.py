"""JSON with a schema of a registry, as Confluent's serializers of JSON Schema write it: a byte 0, an id, and JSON.

The schema only validates what is written, and the declared columns say what is read, so no registry is asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from spark.serdes import json
from spark.serdes.framing import HEADER, content_of, is_framed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from spark.serdes.part import Part
    from spark.serdes.schemas import Schemas
    from spark.topology.columns import Column


def decode(records: DataFrame, part: Part, columns: tuple[Column, ...], schemas: Schemas) -> DataFrame:
    """Decode a part of records: see `Decoder.decode`."""
    name, framed, row, error = f"_{part}", f"_{part}_framed", f"_{part}_row", f"_{part}_error"
    raw = F.col(framed)
    has_frame = is_framed(raw, HEADER + 1)
    bare = records.withColumn(framed, F.col(name)).withColumn(name, F.when(has_frame, content_of(raw)))
    decoded = json.decode(bare, part, columns, schemas).withColumn(name, raw)
    without = F.lit(
        f"the {part} has no framing of a registry: it must begin with a byte 0 and a schema id of four bytes"
    )
    return decoded.select(
        *records.columns, row, F.when(raw.isNotNull() & ~has_frame, without).otherwise(F.col(error)).alias(error)
    )
