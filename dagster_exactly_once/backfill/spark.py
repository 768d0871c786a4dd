"""The backfill's work in Spark: find the records of the days, write those of one day."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from dagster_exactly_once.backfill.days import DAY_MS, Day, DayRecords, next_day, start_ms
from dagster_exactly_once.streaming.query import addressed
from dagster_exactly_once.streaming.source import read_input
from dagster_exactly_once.streaming.spans import Spans
from exactly_once.kafka.connection import Connection

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def find_days(
    spark: SparkSession, connection: Connection, topic: str, days: Sequence[str], spans: Spans
) -> list[DayRecords]:
    """Find the records of ``days`` in ``spans``: one pass over the input, whatever the number of days."""
    from pyspark.sql import functions as F

    between = _between(read_input(spark, connection, topic, spans), days[0], days[-1])
    rows = (
        between.groupBy(F.expr(f"unix_millis(timestamp) div {DAY_MS}").alias("day"), "partition")
        .agg(F.min("offset").alias("first"), F.max("offset").alias("last"), F.count("*").alias("records"))
        .collect()
    )
    wanted = {start_ms(day) // DAY_MS: day for day in days}
    return [DayRecords(wanted[r.day], r.partition, r["first"], r["last"], r.records) for r in rows if r.day in wanted]


def write_day(
    spark: SparkSession,
    connection: Connection,
    topic: str,
    outputs: tuple[str, ...],
    day: Day,
    transform: Callable[[DataFrame], DataFrame],
    options: Mapping[str, str],
) -> None:
    """Write the records of ``day`` exactly once, however often this is tried, with the stream's own transformation.

    Parameters
    ----------
    topic, outputs : str, tuple of str
        The input, and the topics that the stream writes.
    options : mapping
        Of the sink: ``sink.id`` and ``write.id`` among them.
    """
    source = _between(read_input(spark, connection, topic, day.spans), day.key, day.key)
    records = addressed(transform(source), outputs)
    records.write.format("kafka_exactly_once").mode("append").options(**options).options(**connection.spark()).save()


def _between(source: DataFrame, first: str, last: str) -> DataFrame:
    """Return the records of the days from ``first`` to ``last``, both included."""
    from pyspark.sql import functions as F

    stamp = F.unix_millis("timestamp")
    return source.where((stamp >= start_ms(first)) & (stamp < start_ms(next_day(last))))
