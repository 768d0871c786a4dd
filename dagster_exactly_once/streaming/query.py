"""The streaming query of a declared stream: the topics that it makes, how it reads, and how it writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import exactly_once
from dagster_exactly_once.declare.inputs import KafkaTopic, start_time_ms
from dagster_exactly_once.declare.stream import Stream
from dagster_exactly_once.resources.kafka import KafkaTransactionalProducerFactory
from dagster_exactly_once.resources.spark import FILE_MANAGER, kafka_source_options, use_state_store
from dagster_exactly_once.streaming.source import first_since, offsets_json, source_name
from exactly_once.errors import InvalidSchema
from exactly_once.kafka.connection import Connection
from exactly_once.participant import Participant
from exactly_once.protocol.row_schema import HEADERS
from exactly_once.spark.session import check_connector, file_manager

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter


#: The setting with which Spark takes the names of sources, and with version 2 of its offset log keeps offsets by name.
EVOLUTION = "spark.sql.streaming.queryEvolution.enableSourceEvolution"

#: The setting for how many reports of progress Spark keeps, one more than there are.
KEPT = "spark.sql.streaming.numRecentProgressUpdates"

#: The fewest reports to keep, Spark's default: with less, those between two polls of the supervisor may be gone. With 1
#: all are.
LEAST_KEPT = 100


@dataclass(frozen=True)
class QueryPlan:
    """The settings of a run of a stream's query.

    Attributes
    ----------
    sources : mapping
        The stream's input topics, with where they begin in this run.
    max_offsets_per_trigger : int
        An upper limit for one batch, which the sources share equally.
    trigger_interval_s : float or None
        None: until it has processed the input present now.
    options : mapping
        More options of the sink.
    participants : tuple of Participant
        Outputs beside Kafka, which get every batch under the same decision.
    names : mapping
        Topic -> the name of its source, where the session lets sources come and go. Default: the topic's.
    """

    stream: Stream
    sources: Mapping[str, KafkaTopic]
    sink_id: str
    checkpoint: str
    max_offsets_per_trigger: int
    trigger_interval_s: float | None
    options: Mapping[str, str]
    participants: tuple[Participant[Any], ...] = ()
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
    check_connector(spark)
    if int(spark.conf.get(KEPT, str(LEAST_KEPT)) or LEAST_KEPT) < LEAST_KEPT:
        spark.conf.set(KEPT, str(LEAST_KEPT))
    partitions = plan.stream.state_partitions
    if partitions is not None:
        use_state_store(spark, partitions)
    inputs = {name: _read(spark, connection, plan, topic) for name, topic in plan.sources.items()}
    records = transform(inputs)
    if partitions is None or spark.version.startswith("3."):  # which has no format 2 of state
        protect_state(spark, records)
    writer = (
        _written(rows_of(plan.stream, records, plan.participants), connection, plan)
        .queryName(plan.stream.name)
        .outputMode("append")
    )
    if plan.trigger_interval_s is None:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{round(plan.trigger_interval_s * 1000)} milliseconds").start()


def rows_of(stream: Stream, records: DataFrame, participants: Sequence[Participant[Any]] = ()) -> DataFrame:
    """Return the records that the stream's function has made as rows of the sink, with their traces and topics."""
    if stream.trace_headers:
        records = traced(records)
    # participants would get the topic as a column of theirs; with rejected records, they need it
    if not participants or stream.rejected is not None:
        return addressed(records, stream.row_topics, stream.rejected_topic)
    return records


def _written(records: DataFrame, connection: Connection, plan: QueryPlan) -> DataStreamWriter:
    """Return the writer of the sink, and of the outputs beside it, after a look at all that it can refuse."""
    options = sink_options(connection, plan)
    if not plan.participants:
        exactly_once.check(records, options)
        return records.writeStream.format("kafka_exactly_once").options(**options)
    if len(plan.stream.row_topics) == 1 and "topic" not in records.columns:
        [options["topic"]] = plan.stream.row_topics
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
    has rejected the topic ``rejected``, the last of ``outputs``. Raises InvalidSchema for those without ``tried``.
    """
    from pyspark.sql import functions as F

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
    begins, since_ms = topic.start_from, start_time_ms(topic.start_from)
    if since_ms is not None:
        begins = offsets_json(topic.name, first_since(spark, connection, topic.name, since_ms))
    reader = spark.readStream.format("kafka")
    if str(spark.conf.get(EVOLUTION, "false")).lower() == "true":
        reader = reader.name(plan.names.get(topic.name) or source_name(topic.name))
    reader = (
        reader.options(**kafka_source_options(connection, topic.name, plan.share))
        .option("startingOffsets", begins)
        .option("includeHeaders", str(plan.stream.with_headers).lower())
        .options(**topic.options)
    )
    if plan.trigger_interval_s is None:  # else it ends with the rest that is smaller than minOffsetsPerTrigger
        reader = reader.option("maxTriggerDelay", "0s")
    return reader.load()


def traced(records: DataFrame) -> DataFrame:
    """Give the records the trace of their input: that of the column ``tried``, or else what they have in ``headers``. A
    trace that the function has set stays. Raises InvalidSchema for neither column: the function has dropped the trace.
    """
    from pyspark.sql import functions as F

    from exactly_once.spark.columns import TRACEPARENT
    from exactly_once.spark.split import TRIED

    if TRIED in records.columns:
        none = F.array().cast(HEADERS)
        trace = F.coalesce(exactly_once.trace_headers(f"{TRIED}.headers"), none)
        if "headers" not in records.columns:
            return records.withColumn("headers", trace)
        own = F.coalesce("headers", none)
        has_one = F.exists(own, lambda header: header["key"] == TRACEPARENT)
        return records.withColumn("headers", F.when(has_one, own).otherwise(F.concat(own, trace)))
    if "headers" in records.columns:
        return records
    raise InvalidSchema(
        f"trace_headers=True, and the rows have no column 'headers' among {', '.join(records.columns)}",
        "Have the function select headers too, or exactly_once.trace_headers() for the trace alone; where a row is "
        "made of several records, leave trace_headers out",
    )


#: Spark's default, which replaces files of state too.
SAFE_FILE_MANAGER = file_manager("FileContextBased")

#: Operators that remember rows of earlier batches; the others that do have "State" in their name.
_REMEMBERING = frozenset(
    {"Aggregate", "Deduplicate", "DeduplicateWithinWatermark", "Distinct", "GlobalLimit", "LocalLimit"}
)

#: Operators that remember rows when both inputs are streams.
_JOINING = frozenset({"Join", "Intersect", "Except"})


def protect_state(spark: SparkSession, records: DataFrame) -> None:
    """Give the queries that ``spark`` starts from now on Spark's own file manager, if ``records`` need state.

    The file manager for local disks does not replace a file of state. When Spark plans a batch again with another
    input, as after a loss of power, it would keep the state of the first plan, and lose records or write them twice.
    """
    if keeps_state(records):
        spark.conf.set(FILE_MANAGER, SAFE_FILE_MANAGER)


def keeps_state(records: DataFrame) -> bool:
    """Return whether a streaming query that makes ``records`` keeps state between its batches."""
    return any(_remembers(node) for node in _nodes(records._jdf.queryExecution().analyzed()))


def _remembers(node: Any) -> bool:
    name = node.nodeName()
    if name in _JOINING:
        return all(child.isStreaming() for child in _children(node))
    return node.isStreaming() and (name in _REMEMBERING or "State" in name)


def _nodes(node: Any) -> Iterator[Any]:
    yield node
    for child in _children(node):
        yield from _nodes(child)


def _children(node: Any) -> list[Any]:
    found = node.children()
    return [found.apply(n) for n in range(found.size())]


#: The largest dead letter in bytes: eight times the brokers' default, for the rows that are too large for the outputs,
#: and what managed clusters allow at most.
LARGEST_DEAD_LETTER = 8 * 1024 * 1024


def create_outputs(kafka: KafkaTransactionalProducerFactory, stream: Stream) -> None:
    """Create the topics that do not exist, if the stream declares in how many partitions."""
    if stream.output_partitions is None:
        return
    kafka.create_topics(dict.fromkeys(stream.row_topics, stream.output_partitions))
    if stream.dead_topic is not None:
        wished = {"max.message.bytes": str(LARGEST_DEAD_LETTER)}
        kafka.create_topics({stream.dead_topic: stream.output_partitions}, wished=wished)
