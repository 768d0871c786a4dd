"""The streaming query of a declared stream: how it reads, and how it writes, in one transaction per part."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dagster_exactly_once.declare.inputs import KafkaTopic
from dagster_exactly_once.declare.start import start_time_ms
from dagster_exactly_once.resources.spark import kafka_source_options, use_state_store
from dagster_exactly_once.streaming.source import first_since, offsets_json, source_name
from dagster_exactly_once.streaming.state import protect_state
from dagster_exactly_once.streaming.traces import traced
from exactly_once.kafka.connection import Connection
from exactly_once.participant import Participant

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter


#: With it, Spark takes the names of sources, and with version 2 of its offset log it keeps offsets by name.
EVOLUTION = "spark.sql.streaming.queryEvolution.enableSourceEvolution"

#: The setting for how many reports of progress Spark keeps, one more than there are.
KEPT = "spark.sql.streaming.numRecentProgressUpdates"

#: Spark's default; with less, what a query reports between two polls of its supervisor may be gone. With 1 all is.
LEAST_KEPT = 100


@dataclass(frozen=True)
class QueryPlan:
    """The settings of a query's run.

    Attributes
    ----------
    sources : mapping
        The input topics, by the names that the transformation gives their rows.
    max_offsets_per_trigger : int
        An upper limit for one batch, which the sources share equally.
    trigger_interval_s : float or None
        None: until it has processed the input present now.
    options : mapping
        More options of the sink.
    state_partitions : int or None
        None: a query without state, or with Spark's default state store.
    participants : tuple of Participant
        Outputs beside Kafka, which get every batch under the same decision.
    rejected : str or None
        The last of ``outputs``, if it is for rejected records.
    trace_headers : bool
        Continue the traces of the input.
    names : mapping
        Topic -> the name of its source, where the session lets sources come and go. Default: the topic's.
    """

    name: str
    sources: Mapping[str, KafkaTopic]
    outputs: tuple[str, ...]
    sink_id: str
    checkpoint: str
    max_offsets_per_trigger: int
    trigger_interval_s: float | None
    options: Mapping[str, str]
    state_partitions: int | None = None
    participants: tuple[Participant[Any], ...] = ()
    rejected: str | None = None
    trace_headers: bool = False
    names: Mapping[str, str] = field(default_factory=dict)

    @property
    def share(self) -> int:
        """The number of offsets that each source may bring to one batch: Spark limits each of them on its own."""
        return max(1, self.max_offsets_per_trigger // len(self.sources))


def start_query(
    spark: SparkSession,
    connection: Connection,
    plan: QueryPlan,
    transform: Callable[[Mapping[str, DataFrame]], DataFrame],
) -> StreamingQuery:
    """Start the query. ``spark`` must know ``format("kafka_exactly_once")`` and work in UTC; with ``state_partitions``,
    its later stateful queries get this one's state store.

    Raises
    ------
    ExactlyOnceError
        What can be refused before a query starts (:func:`exactly_once.check`).
    """
    from exactly_once.spark.session import check_connector

    check_connector(spark)
    if int(spark.conf.get(KEPT, str(LEAST_KEPT)) or LEAST_KEPT) < LEAST_KEPT:
        spark.conf.set(KEPT, str(LEAST_KEPT))
    if plan.state_partitions is not None:
        use_state_store(spark, plan.state_partitions)
    inputs = {name: _read(spark, connection, plan, topic) for name, topic in plan.sources.items()}
    records = transform(inputs)
    if plan.state_partitions is None or spark.version.startswith("3."):  # which has no format 2 of state
        protect_state(spark, records)
    writer = _written(_records(records, plan), connection, plan).queryName(plan.name).outputMode("append")
    if plan.trigger_interval_s is None:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{round(plan.trigger_interval_s * 1000)} milliseconds").start()


def _records(records: DataFrame, plan: QueryPlan) -> DataFrame:
    if plan.trace_headers:
        records = traced(records)
    # participants would get the topic as a column of theirs; with rejected records, they need it
    if not plan.participants or plan.rejected is not None:
        return addressed(records, plan.outputs, plan.rejected)
    return records


def _written(records: DataFrame, connection: Connection, plan: QueryPlan) -> DataStreamWriter:
    """Return the writer of the sink, and of the outputs beside it, after a look at all that it can refuse."""
    import exactly_once

    options = sink_options(connection, plan)
    if not plan.participants:
        exactly_once.check(records, options)
        return records.writeStream.format("kafka_exactly_once").options(**options)
    if len(plan.outputs) == 1 and "topic" not in records.columns:
        options["topic"] = plan.outputs[0]
    exactly_once.check(records, options, *plan.participants)
    write = exactly_once.foreach_batch(options, *plan.participants)
    return records.writeStream.foreachBatch(write).option("checkpointLocation", plan.checkpoint)


def sink_options(connection: Connection, plan: QueryPlan) -> dict[str, str]:
    """Return the options of the sink; without ``topic``, which the rows name."""
    return {
        **plan.options,
        **connection.spark(),
        "sink.id": plan.sink_id,
        "checkpointLocation": plan.checkpoint,
    }


def addressed(records: DataFrame, outputs: tuple[str, ...], rejected: str | None = None) -> DataFrame:
    """Give the records of a stream with one output its topic, unless they name a topic themselves; and those that it
    has rejected the topic ``rejected``, the last of ``outputs``.

    Raises
    ------
    InvalidSchema
        The stream declares a topic for rejected records, and its function returns rows without the column ``tried``.
    """
    from pyspark.sql import functions as F

    import exactly_once

    if rejected is not None:
        named = len(outputs) > 2 or "topic" in records.columns
        return exactly_once.split(records, None if named else outputs[0], rejected=rejected)
    if len(outputs) > 1 or "topic" in records.columns:
        return records
    return records.withColumn("topic", F.lit(outputs[0]))


def _read(spark: SparkSession, connection: Connection, plan: QueryPlan, topic: KafkaTopic) -> DataFrame:
    """Return the rows of one source, from where the query begins when it has no checkpoint. Where the session lets
    sources come and go, it has a name.
    """
    reader = spark.readStream.format("kafka")
    if str(spark.conf.get(EVOLUTION, "false")).lower() == "true":
        reader = reader.name(plan.names.get(topic.name) or source_name(topic.name))
    with_headers = plan.trace_headers or plan.rejected is not None
    return (
        reader.options(**kafka_source_options(connection, topic.name, plan.share))
        .option("startingOffsets", _starting_offsets(spark, connection, topic))
        .option("includeHeaders", str(with_headers).lower())
        .options(**topic.options)
        .load()
    )


def _starting_offsets(spark: SparkSession, connection: Connection, topic: KafkaTopic) -> str:
    """Return Spark's option of that name."""
    timestamp_ms = start_time_ms(topic.start_from)
    if timestamp_ms is None:
        return topic.start_from
    return offsets_json(topic.name, first_since(spark, connection, topic.name, timestamp_ms))
