"""Streaming queries over ``flights``: how each of them reads, and how it writes, in one transaction per part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from exactly_once.kafka.connection import Connection
from platform_assets.constants import FLIGHT_DELAYS, FLIGHT_DELAYS_REJECTED, FLIGHTS
from platform_assets.flights.departures import airline_names, airport_names
from platform_assets.flights.source import first_since, offsets_json
from platform_assets.flights.start import EARLIEST, start_time_ms
from platform_assets.flights.transform import flight_delays, lookup
from platform_assets.streaming.windows import OBSERVATION, REJECTED
from resources.spark import kafka_source_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True)
class QueryPlan:
    """The settings of a query's run.

    ``trigger_interval_s`` None: until it has processed the input present now. ``start_from``: where a query without a
    checkpoint begins, see :func:`platform_assets.flights.start.start_time_ms`.
    """

    sink_id: str
    checkpoint: str
    max_offsets_per_trigger: int
    trigger_interval_s: float | None
    start_from: str = EARLIEST


def start_query(spark: SparkSession, connection: Connection, plan: QueryPlan) -> StreamingQuery:
    """Start ``flight_delays``. ``spark`` must know ``format("kafka_exactly_once")`` and work in UTC."""
    from pyspark.sql import functions as F

    source = read_flights(spark, connection, plan)
    records = flight_delays(source, lookup(spark, airline_names()), lookup(spark, airport_names()))
    rejected = F.count(F.when(F.col("topic") == FLIGHT_DELAYS_REJECTED, 1))
    return start_writing(records.observe(OBSERVATION, rejected.alias(REJECTED)), FLIGHT_DELAYS, connection, plan)


def read_flights(spark: SparkSession, connection: Connection, plan: QueryPlan) -> DataFrame:
    """Read the input as a stream, with the columns of Spark's Kafka source."""
    return (
        spark.readStream.format("kafka")
        .options(**kafka_source_options(connection, FLIGHTS, plan.max_offsets_per_trigger))
        .option("startingOffsets", _starting_offsets(spark, connection, plan.start_from))
        .load()
    )


def start_writing(records: DataFrame, name: str, connection: Connection, plan: QueryPlan) -> StreamingQuery:
    """Start the query ``name``, which writes ``records`` (topic, key, value, headers) in append mode."""
    writer = (
        records.writeStream.queryName(name)
        .format("kafka_exactly_once")
        .outputMode("append")
        .options(**connection.spark())
        .option("sink.id", plan.sink_id)
        .option("checkpointLocation", plan.checkpoint)
    )
    if plan.trigger_interval_s is None:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{round(plan.trigger_interval_s * 1000)} milliseconds").start()


def _starting_offsets(spark: SparkSession, connection: Connection, start_from: str) -> str:
    """Return Spark's option of that name."""
    timestamp_ms = start_time_ms(start_from)
    return start_from if timestamp_ms is None else offsets_json(first_since(spark, connection, timestamp_ms))
