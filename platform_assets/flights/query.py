"""The streaming query: ``flights`` in, ``flight_delays`` and ``flight_delays_rejected`` out, in one transaction per
part.
"""

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
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True)
class QueryPlan:
    """How the query runs.

    ``trigger_interval_s`` None: until the input of this moment is done. ``start_from`` is where a query without a
    checkpoint begins, see :func:`platform_assets.flights.start.start_time_ms`.
    """

    sink_id: str
    checkpoint: str
    max_offsets_per_trigger: int
    trigger_interval_s: float | None
    start_from: str = EARLIEST


def start_query(spark: SparkSession, connection: Connection, plan: QueryPlan) -> StreamingQuery:
    """Start it. ``spark`` must know ``format("kafka_exactly_once")`` and work in UTC."""
    from pyspark.sql import functions as F

    source = (
        spark.readStream.format("kafka")
        .options(**kafka_source_options(connection, FLIGHTS, plan.max_offsets_per_trigger))
        .option("startingOffsets", _starting_offsets(spark, connection, plan.start_from))
        .load()
    )
    records = flight_delays(source, lookup(spark, airline_names()), lookup(spark, airport_names()))
    rejected = F.count(F.when(F.col("topic") == FLIGHT_DELAYS_REJECTED, 1))
    writer = (
        records.observe(OBSERVATION, rejected.alias(REJECTED))
        .writeStream.queryName(FLIGHT_DELAYS)
        .format("kafka_exactly_once")
        .options(**connection.spark())
        .option("sink.id", plan.sink_id)
        .option("checkpointLocation", plan.checkpoint)
    )
    if plan.trigger_interval_s is None:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{round(plan.trigger_interval_s * 1000)} milliseconds").start()


def _starting_offsets(spark: SparkSession, connection: Connection, start_from: str) -> str:
    """Spark's option of that name."""
    timestamp_ms = start_time_ms(start_from)
    return start_from if timestamp_ms is None else offsets_json(first_since(spark, connection, timestamp_ms))
