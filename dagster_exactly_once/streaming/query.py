"""The streaming query of a declared stream: how it reads, and how it writes, in one transaction per part."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster_exactly_once.resources.spark import kafka_source_options, use_state_store
from dagster_exactly_once.streaming.source import first_since, offsets_json
from dagster_exactly_once.streaming.start import start_time_ms
from dagster_exactly_once.streaming.windows import OUTPUTS_OBSERVATION
from exactly_once.kafka.connection import Connection

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True)
class QueryPlan:
    """The settings of a query's run.

    Attributes
    ----------
    source_options, options : mapping
        More options of Spark's Kafka source, and of the sink.
    trigger_interval_s : float or None
        None: until it has processed the input present now.
    start_from : str
        Where a query without a checkpoint begins, see :func:`dagster_exactly_once.streaming.start.start_time_ms`.
    state_partitions : int or None
        None: a query without state.
    """

    name: str
    topic: str
    outputs: tuple[str, ...]
    sink_id: str
    checkpoint: str
    max_offsets_per_trigger: int
    trigger_interval_s: float | None
    start_from: str
    source_options: Mapping[str, str]
    options: Mapping[str, str]
    state_partitions: int | None = None


def start_query(
    spark: SparkSession, connection: Connection, plan: QueryPlan, transform: Callable[[DataFrame], DataFrame]
) -> StreamingQuery:
    """Start the query. ``spark`` must know ``format("kafka_exactly_once")`` and work in UTC; with ``state_partitions``,
    its later stateful queries get this one's state store.
    """
    if plan.state_partitions is not None:
        use_state_store(spark, plan.state_partitions)
    source = (
        spark.readStream.format("kafka")
        .options(**kafka_source_options(connection, plan.topic, plan.max_offsets_per_trigger))
        .option("startingOffsets", _starting_offsets(spark, connection, plan))
        .options(**plan.source_options)
        .load()
    )
    records = addressed(transform(source), plan.outputs)
    writer = (
        _counted(records, plan.outputs)
        .writeStream.queryName(plan.name)
        .format("kafka_exactly_once")
        .outputMode("append")
        .options(**plan.options)
        .options(**connection.spark())
        .option("sink.id", plan.sink_id)
        .option("checkpointLocation", plan.checkpoint)
    )
    if plan.trigger_interval_s is None:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{round(plan.trigger_interval_s * 1000)} milliseconds").start()


def addressed(records: DataFrame, outputs: tuple[str, ...]) -> DataFrame:
    """Give the records of a stream with one output its topic, unless they name a topic themselves."""
    from pyspark.sql import functions as F

    if len(outputs) > 1 or "topic" in records.columns:
        return records
    return records.withColumn("topic", F.lit(outputs[0]))


def _counted(records: DataFrame, outputs: tuple[str, ...]) -> DataFrame:
    """Count the records for each output but the first: the commit log has their sum."""
    from pyspark.sql import functions as F

    counts = [F.count(F.when(F.col("topic") == name, 1)).alias(f"output_{n}") for n, name in enumerate(outputs[1:], 2)]
    return records.observe(OUTPUTS_OBSERVATION, *counts) if counts else records


def _starting_offsets(spark: SparkSession, connection: Connection, plan: QueryPlan) -> str:
    """Return Spark's option of that name."""
    timestamp_ms = start_time_ms(plan.start_from)
    if timestamp_ms is None:
        return plan.start_from
    return offsets_json(plan.topic, first_since(spark, connection, plan.topic, timestamp_ms))
