"""What tests do to a stream's rows before the sink; loaded by drivers and workers by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def fail_once(df: DataFrame, marker: str, row: str) -> DataFrame:
    """Raise when ``row`` comes by for the first time. Rows before it go to the sink in batches of ten."""

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for start in range(0, batch.num_rows, 10):
                some = batch.slice(start, 10)
                if row in some.column("value").to_pylist() and not Path(marker).exists():
                    Path(marker).touch()
                    raise RuntimeError(f"row {row}")
                yield some

    return df.mapInArrow(rows, df.schema)


def windowed_count(df: DataFrame) -> DataFrame:
    """Count by key in windows of ten seconds. The value's number after the last ``-`` is the event's second."""
    from pyspark.sql import functions as f

    return (
        df.withColumn("time", f.timestamp_seconds(f.regexp_extract("value", "([0-9]+)$", 1).cast("long")))
        .withWatermark("time", "1 second")
        .groupBy("key", f.window("time", "10 seconds"))
        .count()
        .select("key", f.format_string("%s@%d=%d", "key", f.unix_timestamp("window.start"), "count").alias("value"))
    )


def selected(df: DataFrame, columns: list[str]) -> DataFrame:
    """These expressions over ``df``."""
    return df.selectExpr(*columns)


def where(df: DataFrame, condition: str) -> DataFrame:
    """The rows that satisfy ``condition``."""
    return df.where(condition)
