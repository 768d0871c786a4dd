"""Changes that tests make to a stream's rows before the sink; drivers and workers load them by name."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

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


def with_sources(df: DataFrame, sources: list[dict[str, Any]], columns: list[str]) -> DataFrame:
    """Return the rows of ``df`` and of these sources, each with the same columns."""
    for source in sources:
        reader = df.sparkSession.readStream.format(source["format"]).name(source["name"])
        df = reader.options(**source["options"]).load().selectExpr(*columns).union(df)
    return df


def selected(df: DataFrame, columns: list[str]) -> DataFrame:
    """Return these expressions over ``df``."""
    return df.selectExpr(*columns)


def split_selected(df: DataFrame, reason: str, columns: list[str], good: str, rejected: str) -> DataFrame:
    """Return the rows of both topics: rejected are those for which ``reason`` is not null, the good ones have these
    expressions.
    """
    from pyspark.sql import functions as f

    import exactly_once

    rows = exactly_once.attempt(df, f.expr(reason))
    return exactly_once.split(rows.selectExpr("tried", *columns), good, rejected=rejected)


def traced(df: DataFrame) -> DataFrame:
    """Return key and value of ``df``, and of its headers those of a trace."""
    import exactly_once

    return df.select("key", "value", exactly_once.trace_headers())


def where(df: DataFrame, condition: str) -> DataFrame:
    """Return the rows that satisfy ``condition``."""
    return df.where(condition)


def reversed_after_the_first_time(df: DataFrame, marker: str) -> DataFrame:
    """Return the rows of each part; once ``marker`` is there, in the opposite order."""

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = pa.Table.from_batches(list(batches)).combine_chunks()
        order = range(found.num_rows)
        yield from found.take(list(reversed(order) if Path(marker).exists() else order)).to_batches()

    return df.mapInArrow(rows, df.schema)


def hang_at(df: DataFrame, name: str) -> DataFrame:
    """Stand still at the row that the file ``name`` holds, if it is there: no row of that part comes through. Says so
    by a file ``<name>.<row>``.
    """

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        wanted = Path(name)
        for batch in batches:
            row = wanted.read_text() if wanted.exists() else None
            if row in batch.column("value").to_pylist():
                wanted.with_name(f"{wanted.name}.{row}").touch()
                while wanted.exists():
                    time.sleep(0.1)
            yield batch

    return df.mapInArrow(rows, df.schema)


def repartitioned(df: DataFrame, parts: int, column: str) -> DataFrame:
    """Spread over so many parts; rows with the same value of ``column`` stay together."""
    return df.repartition(parts, column)
