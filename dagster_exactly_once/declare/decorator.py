"""The declaration of a stream: one function from DataFrame to DataFrame, and what Dagster should know about it.

@exactly_once_stream(source="orders", outputs=["orders_clean"])
def clean_orders(events):
    ...

defs = exactly_once_definitions(clean_orders)
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import dagster as dg

from dagster_exactly_once.declare.columns import ColumnLineage, ColumnSchema
from dagster_exactly_once.declare.complete import Complete
from dagster_exactly_once.declare.config import ELSEWHERE
from dagster_exactly_once.declare.errors import BadDeclaration
from dagster_exactly_once.declare.inputs import Source, Transform, check_parameters, config_of, sources_of
from dagster_exactly_once.declare.outputs import Outputs, check_keys, lineage_of, outputs_of
from dagster_exactly_once.declare.rejected import DeadLetters, Rejected, side_topic_of
from dagster_exactly_once.declare.sink_options import check_dead_letters, sink_options
from dagster_exactly_once.declare.stream import Backfill, Checks, Participants, Stream
from dagster_exactly_once.declare.translator import StreamTranslator
from dagster_exactly_once.private import is_valid_cron_schedule
from exactly_once.options import SinkOptions
from exactly_once.protocol.names import check_sink_id

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: A name that Dagster accepts for a job or an op.
_NAME = re.compile(r"[A-Za-z0-9_]+")


def exactly_once_stream(
    *,
    source: Source,
    outputs: Outputs,
    name: str | None = None,
    sink_id: str | None = None,
    column_schema: ColumnSchema | Mapping[str, ColumnSchema] | None = None,
    column_lineage: ColumnLineage | Mapping[str, ColumnLineage] | None = None,
    options: Mapping[str, str] | None = None,
    participants: Participants | None = None,
    rejected: Rejected | dg.AssetSpec | str | None = None,
    dead_letters: DeadLetters | dg.AssetSpec | str | None = None,
    checks: Checks | None = Checks(),
    backfill: Backfill | None = None,
    complete: Complete | None = None,
    output_partitions: int | None = None,
    state_partitions: int | None = None,
    trace_headers: bool = False,
    continues: str = "",
    beside: str = "",
    group_name: str | None = None,
    owners: Sequence[str] | None = None,
    tags: Mapping[str, str] | None = None,
    translator: StreamTranslator | None = None,
) -> Callable[[Transform], Stream]:
    """Declare a stream over one function, ``transform(events)`` or ``transform(events, config)``.

    ``events`` has the columns of Spark's Kafka source. With several sources, the function has a parameter for each of
    them instead: ``transform(orders, refunds)`` or ``transform(orders, refunds, config)``. The result has ``value``
    and, as needed, ``topic`` (with several outputs), ``key``, ``headers``, ``partition`` and ``timestamp``. ``config``,
    annotated with a subclass of :class:`StreamConfig` at module level, is what a person gave in the launchpad. The
    docstring describes the outputs.

    Parameters
    ----------
    source : KafkaTopic, str, or a sequence or mapping of them
        The input topic; a name alone begins at ``earliest``. Several: a sequence, and each parameter of the function is
        called what its topic is; or a mapping from parameter to topic.
    outputs : AssetSpec, str, Table, or a sequence of them
        The topic to write, or several, each an asset; a string is its key, like ``orders_clean`` or
        ``shop/orders_clean``. The topic is the last part of the key, unless the metadata ``exactly_once/topic`` names
        another one. A ``Table("lake/orders", lambda: DeltaParticipant(...))`` is an asset too, beside the topics.
    name : str, optional
        Names the job ``<name>_stream``, the op ``stream_<name>`` and the asset ``<name>_transactions``; the function's
        own name by default.
    sink_id : str, optional
        The identity of the sink on the Kafka cluster: it owns the commit log and the transactional ids. Never change it
        for a stream that has run. The name with dashes by default.
    column_schema : str, StructType, TableSchema, or a mapping from topic to one of them, optional
        The columns of what ``value`` holds, shown on the output's asset; nothing checks the records against it. A
        string is DDL, like ``customer STRING NOT NULL, cents INT``.
    column_lineage : mapping or TableColumnLineage, optional
        The columns of the input that each column of the output is made from, like ``{"cents": ["price", "amount"]}``;
        of several inputs ``{"cents": {"orders": "price", "refunds": "price"}}``, by parameter. With several outputs, a
        mapping from topic to this.
    options : mapping, optional
        More options of ``format("kafka_exactly_once")``, such as ``kafka.compression.type``; not ``topic``.
    participants : callable, optional
        Returns the outputs other than Kafka, such as ``lambda: [FileParticipant("archive", "/data/orders")]``: every
        batch is written to all of them and to Kafka under one decision, by :func:`exactly_once.foreach_batch`. Each
        gets all rows with all columns. Runs and recoveries call it; names of participants stay the same.
    rejected : Rejected, AssetSpec or str, optional
        The topic of the records that the function rejects, an asset beside the outputs, with a check and the job
        ``<name>_resend``. The function returns the rows of :func:`exactly_once.attempt`, with the column ``tried``.
    dead_letters : DeadLetters, AssetSpec or str, optional
        The topic of the rows that Kafka cannot take, an asset with a check too, whose records the same job sends again.
    checks : Checks, optional
        None: no asset checks.
    backfill : Backfill, optional
        Adds the asset ``<name>_by_day``, the job ``<name>_backfill`` and a schedule; for a stream with one source.
    complete : Complete, optional
        Adds the asset ``<name>_complete``: a window of event time is materialized when the watermark of the query has
        passed it and its last batch is committed. Build on it what needs complete data.
    output_partitions : int, optional
        Create output topics that do not exist, with this many partitions; None: they must exist.
    state_partitions : int, optional
        For a query with state: keep it in RocksDB, in this many partitions. Its first start fixes the number.
    trace_headers : bool
        Continue the trace of each input record in the headers ``traceparent`` and ``tracestate`` of its output record.
        ``events`` then has the column ``headers``; the function returns it, or ``tried`` of
        :func:`exactly_once.attempt`, which has it.
    continues : str, optional
        The sink id of an older version, whose place this stream takes: without a checkpoint it begins after the last
        decided batch of that sink. Adds the job ``exactly_once_successor``, which retires that sink first.
    beside : str, optional
        The sink id of an older version, which this stream reads along with, into topics of its own: without a
        checkpoint it begins after the last decided batch of that sink. Adds the check ``same_as_blue``, which compares
        the two; both need ``Checks(origin=...)``. To take over, write ``continues`` in place of it.
    group_name, owners, tags
        For all of the stream's assets that do not say otherwise.
    translator : StreamTranslator, optional
        Says which asset each topic is: key, group, owners, tags, metadata.

    Returns
    -------
    callable
        The decorator: it takes the function and returns the :class:`Stream`.

    Raises
    ------
    BadDeclaration
        When the code loads, for an argument that cannot work; the message names it and says what to write.
    InvalidOption
        Likewise for ``sink_id``, ``continues`` or ``beside`` that is no id of a sink, and for ``options`` that the sink
        refuses.
    """

    def declare(transform: Transform) -> Stream:
        its_name = name or transform.__name__
        sources = sources_of(source, its_name)
        check_parameters(its_name, sources)
        if backfill is not None and len(sources) > 1:
            raise BadDeclaration(
                f"{its_name}: a backfill fills days of one input, and source names {len(sources)}: a day of one topic "
                "may belong to any day of another. Leave backfill out, or declare a stream for each topic"
            )
        described = inspect.getdoc(transform) or f"Written by the stream {its_name}."
        its_rejected = side_topic_of(Rejected, rejected, its_name)
        its_dead = side_topic_of(DeadLetters, dead_letters, its_name)
        side_topics = [its for its in (its_rejected, its_dead) if its is not None]
        topics, tables = outputs_of(outputs, its_name, described, group_name, owners, tags, column_schema, side_topics)
        if backfill is not None and (participants is not None or tables):
            raise BadDeclaration(
                f"{its_name}: a backfill writes to Kafka alone, and {'outputs' if tables else 'participants'} names "
                "other outputs. Leave one of the two out"
            )
        config, config_parameter = config_of(transform, its_name, sources)
        return _checked(
            Stream(
                transform=transform,
                name=its_name,
                sources=sources,
                declared=topics,
                tables=tables,
                sink_id=sink_id or its_name.replace("_", "-"),
                config=config,
                config_parameter=config_parameter,
                options=sink_options(options or {}, its_dead, topics, checks.in_records if checks else "", its_name),
                trace_headers=trace_headers,
                participants=participants,
                rejected=its_rejected,
                dead_letters=its_dead,
                checks=checks,
                backfill=backfill,
                complete=complete,
                output_partitions=output_partitions,
                state_partitions=state_partitions,
                continues=continues,
                beside=beside,
                lineage=lineage_of(column_lineage, topics[: len(topics) - len(side_topics)], its_name),
                group_name=group_name,
                description=described,
                translator=translator or StreamTranslator(),
            )
        )

    return declare


def observed_stream(
    name: str,
    *,
    source: Source,
    outputs: Outputs,
    sink_id: str | None = None,
    column_schema: ColumnSchema | Mapping[str, ColumnSchema] | None = None,
    column_lineage: ColumnLineage | Mapping[str, ColumnLineage] | None = None,
    participants: Participants | None = None,
    rejected: Rejected | dg.AssetSpec | str | None = None,
    dead_letters: DeadLetters | dg.AssetSpec | str | None = None,
    checks: Checks | None = Checks(),
    group_name: str | None = None,
    owners: Sequence[str] | None = None,
    tags: Mapping[str, str] | None = None,
    translator: StreamTranslator | None = None,
    description: str = "",
) -> Stream:
    """Declare a stream that runs elsewhere: spark-submit, a Spark operator, EMR, Databricks.

    It writes through ``format("kafka_exactly_once")``. Dagster shows its assets and its health, checks it and recovers
    its sink, and never launches it.

    Its sink is known by the commit log, its checkpoint by the claim of its driver; both must be readable from here. The
    arguments are those of :func:`exactly_once_stream`.

    Raises
    ------
    BadDeclaration, InvalidOption
        As :func:`exactly_once_stream`.
    """

    def elsewhere(**inputs: DataFrame) -> DataFrame:
        raise BadDeclaration(f"{name} runs elsewhere: this code location cannot start it")

    described = description or f"Written by the stream {name}, which runs elsewhere."
    its_rejected, its_dead = side_topic_of(Rejected, rejected, name), side_topic_of(DeadLetters, dead_letters, name)
    side_topics = [its for its in (its_rejected, its_dead) if its is not None]
    topics, tables = outputs_of(outputs, name, described, group_name, owners, tags, column_schema, side_topics)
    return _checked(
        Stream(
            transform=elsewhere,
            name=name,
            sources=sources_of(source, name),
            declared=topics,
            tables=tables,
            sink_id=sink_id or name.replace("_", "-"),
            participants=participants,
            rejected=its_rejected,
            dead_letters=its_dead,
            checks=checks,
            group_name=group_name,
            description=described,
            translator=translator or StreamTranslator(),
            managed=False,
            lineage=lineage_of(column_lineage, topics[: len(topics) - len(side_topics)], name),
        )
    )


def _checked(stream: Stream) -> Stream:
    """Refuse when the code location loads what could not work when the stream starts."""
    name = stream.name
    if not _NAME.fullmatch(name):
        raise BadDeclaration(f"name={name!r}: Dagster takes letters, digits and underscores. Set name=")
    check_sink_id(stream.sink_id)
    # the sink's own options, which the resources and the run bring
    ours = {"kafka.bootstrap.servers": "declared:9092", "sink.id": stream.sink_id, "checkpointLocation": "declared"}
    if taken := [k for k in stream.options if k.lower() in ELSEWHERE]:
        where = ELSEWHERE[taken[0].lower()]
        raise BadDeclaration(
            f"{name}: options names {taken[0]}, which comes from {where}. Remove {taken[0]} from options"
        )
    if stream.state_partitions is not None and type(stream.state_partitions) is not int:
        raise BadDeclaration(f"{name}: state_partitions={stream.state_partitions!r} is no number. Write one like 4")
    check_dead_letters(stream)
    SinkOptions.parse({**stream.sink_options(), **ours})
    _check_older(stream)
    cron = stream.checks.verify_cron if stream.checks else None
    if cron is not None and not is_valid_cron_schedule(cron):
        raise BadDeclaration(f"{name}: Checks(verify_cron={cron!r}) is not a cron schedule. Write it like '0 * * * *'")
    if both := sorted(set(stream.source_topics) & set(stream.topics)):
        raise BadDeclaration(f"{name}: the topic {both[0]} is in source and in outputs. Write to another topic")
    check_keys([*stream.source_keys, *(spec.key for spec in stream.assets)], name)
    return stream


def _check_older(stream: Stream) -> None:
    """Refuse what cannot be said of an older version."""
    name, old = stream.name, stream.continues or stream.beside
    if not old:
        return
    argument = "continues" if stream.continues else "beside"
    if stream.continues and stream.beside:
        raise BadDeclaration(
            f"{name}: continues and beside exclude each other. Write beside={stream.beside!r} while the stream reads "
            f"along, and continues={stream.beside!r} when it takes over"
        )
    if check_sink_id(old) == stream.sink_id:
        raise BadDeclaration(f"{name}: {argument} names the stream's own sink {stream.sink_id}. Give it a new sink_id")
    if stream.backfill is not None:
        raise BadDeclaration(
            f"{name}: a backfill would write the input from before the stream's first start, which the sink {old} has "
            f"written. Leave one of backfill and {argument} out"
        )
    if stream.beside and not stream.one_to_one:
        raise BadDeclaration(
            f"{name}: beside compares the two streams by the input record that each output record names. Declare "
            "Checks(origin=...)"
        )
