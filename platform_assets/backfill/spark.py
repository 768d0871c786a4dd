"""The backfill's work in Spark: find the records of the days, write those of one day."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from exactly_once.kafka.connection import Connection
from platform_assets.backfill.days import DAY_MS, Day, Found, next_day, start_ms
from platform_assets.constants import BACKFILL_SINK_ID
from platform_assets.flights.departures import airline_names, airport_names
from platform_assets.flights.source import read_input
from platform_assets.flights.spans import Spans
from platform_assets.flights.transform import flight_delays, lookup

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def find_days(spark: SparkSession, connection: Connection, days: Sequence[str], spans: Spans) -> list[Found]:
    """Find the records of ``days`` in ``spans``: one pass over the input, whatever the number of days."""
    from pyspark.sql import functions as F

    between = _between(read_input(spark, connection, spans), days[0], days[-1])
    rows = (
        between.groupBy(F.expr(f"unix_millis(timestamp) div {DAY_MS}").alias("day"), "partition")
        .agg(F.min("offset").alias("first"), F.max("offset").alias("last"), F.count("*").alias("records"))
        .collect()
    )
    wanted = {start_ms(day) // DAY_MS: day for day in days}
    return [Found(wanted[r.day], r.partition, r["first"], r["last"], r.records) for r in rows if r.day in wanted]


def write_day(spark: SparkSession, connection: Connection, day: Day) -> None:
    """Write the records of ``day`` exactly once, however often this is tried, with the stream's own transformation."""
    source = _between(read_input(spark, connection, day.spans), day.key, day.key)
    records = flight_delays(source, lookup(spark, airline_names()), lookup(spark, airport_names()))
    (
        records.write.format("kafka_exactly_once")
        .mode("append")
        .options(**connection.spark())
        .option("sink.id", BACKFILL_SINK_ID)
        .option("write.id", day.write_id)
        .save()
    )


def _between(source: DataFrame, first: str, last: str) -> DataFrame:
    """Return the records of the days from ``first`` to ``last``, both included."""
    from pyspark.sql import functions as F

    stamp = F.unix_millis("timestamp")
    return source.where((stamp >= start_ms(first)) & (stamp < start_ms(next_day(last))))
