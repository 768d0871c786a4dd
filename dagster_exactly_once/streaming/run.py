"""One run of a declared stream as a Dagster op."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import dagster as dg

from dagster_exactly_once.declare.config import Mode, StreamConfig
from dagster_exactly_once.declare.start import EARLIEST, start_time_ms
from dagster_exactly_once.declare.stream import Stream
from dagster_exactly_once.recovery.work import consented
from dagster_exactly_once.resources.checkpoints import CheckpointReader, Offsets
from dagster_exactly_once.resources.kafka import KafkaTransactionalProducerFactory
from dagster_exactly_once.resources.spark import BorrowedSession, SparkSessionResource
from dagster_exactly_once.resources.transactions import TransactionAdmin
from dagster_exactly_once.runs.failures import FailurePlace, classified, transform_failed
from dagster_exactly_once.runs.operator import alive_of, is_foreign, operator_of
from dagster_exactly_once.runs.own_exception import raised_by
from dagster_exactly_once.runs.tags import TAG_ROTATED
from dagster_exactly_once.streaming import beginning
from dagster_exactly_once.streaming.managed import ManagedStream
from dagster_exactly_once.streaming.observer import StreamObserver
from dagster_exactly_once.streaming.outputs import create_outputs
from dagster_exactly_once.streaming.query import QueryPlan, sink_options, start_query
from dagster_exactly_once.streaming.reports import ROW_COUNT, Reports, numbers, of_tables, say
from dagster_exactly_once.streaming.rotation import Rotation
from dagster_exactly_once.streaming.single_writer import SingleWriter
from dagster_exactly_once.streaming.supervisor import Supervisor
from exactly_once.checkpoint import check_whole
from exactly_once.commitlog.commit_log import read_log
from exactly_once.coordinator import start
from exactly_once.errors import ExactlyOnceError, UnknownTopic
from exactly_once.inspection.sink import owner_of
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.protocol.log_state import LogState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

#: For reading the input's ends before anything starts.
READ_BUDGET_S = 20.0


class SharedRun(ExactlyOnceError):
    """A run was asked to run a stream and something after or beside it."""

    code = "EO-SHARED-RUN"
    default_safe = "Nothing was started"


@dataclass(frozen=True)
class Tools:
    """The resources of a stream's op."""

    spark: SparkSessionResource | BorrowedSession
    kafka: KafkaTransactionalProducerFactory
    transactions: TransactionAdmin
    checkpoints: CheckpointReader


def run_stream(
    context: dg.AssetExecutionContext, config: StreamConfig, tools: Tools, stream: Stream
) -> Iterator[dg.MaterializeResult]:
    """Run the stream until it is stopped or has caught up; see :class:`ManagedStream`."""
    plan = _plan(config, stream, operator_of(context.instance, context.run.run_id))
    writer = SingleWriter(context, stream.spec, plan.sink_id)
    with classified():
        _check_alone(context, config, stream)
        writer.begin()
        reports = Reports(context, stream)
        managed = _prepared(context, config, tools, stream, plan, writer, reports)
        last = managed.run()
    if managed.rotated:
        context.instance.add_run_tags(context.run.run_id, {TAG_ROTATED: context.run.run_id})
        reports.tell(last)
        return
    reports.complete(last)
    say(context, stream, last)
    for key, metadata in {**numbers(stream, last), **of_tables(context, stream, last)}.items():
        if (rows := metadata.pop(ROW_COUNT, None)) is not None:
            context.log_event(dg.AssetObservation(key, metadata={ROW_COUNT: rows}))
        columns = reports.columns.get(key, {})
        yield dg.MaterializeResult(asset_key=key, metadata={**metadata, **managed.totals(), **columns})


def _plan(config: StreamConfig, stream: Stream, operator: str) -> QueryPlan:
    return QueryPlan(
        name=stream.name,
        sources=stream.sources,
        outputs=stream.row_topics,
        sink_id=config.sink_id or stream.sink_id,
        checkpoint=config.checkpoint,
        max_offsets_per_trigger=config.max_offsets_per_trigger,
        trigger_interval_s=config.trigger_interval_s if config.mode is Mode.until_stopped else None,
        options={
            **stream.sink_options(config.checked_sink_options()),
            **config.once.options(),
            "sink.operator": operator,
        },
        state_partitions=stream.state_partitions,
        participants=stream.others(),
        rejected=stream.rejected_topic,
        trace_headers=stream.trace_headers,
    )


def _check_alone(context: dg.AssetExecutionContext, config: StreamConfig, stream: Stream) -> None:
    """Refuse a run whose other steps would never begin, since this one does not end."""
    selected = context.run.asset_selection or frozenset()
    others = sorted(k.to_user_string() for k in selected - {spec.key for spec in stream.assets})
    if others and config.mode is Mode.until_stopped:
        raise SharedRun(
            f"this run contains a stream that does not end by itself ({stream.name}), together with "
            f"{', '.join(others)}",
            f"Launch the job {stream.spec.job} alone, or set its mode to caught_up",
        )


def _prepared(
    context: dg.AssetExecutionContext,
    config: StreamConfig,
    tools: Tools,
    stream: Stream,
    plan: QueryPlan,
    writer: SingleWriter,
    reports: Reports,
) -> ManagedStream:
    """Check what can be checked before Spark starts, and find what earlier runs have reported."""
    spark, kafka, checkpoints = tools.spark, tools.kafka, tools.checkpoints
    connection = kafka.connection()
    start_time_ms(config.start_from or EARLIEST)
    _check_sources(connection, stream)
    log = read_log(connection, plan.sink_id, READ_BUDGET_S)
    _check_operator(context.instance, log, plan.sink_id, config.once.fence)
    create_outputs(kafka, stream)
    checkpoint = plan.checkpoint or checkpoints.location(kafka.cluster_id(), plan.sink_id)
    check_whole(checkpoint, plan.sink_id)  # Spark's own error names no way out
    plan = replace(plan, checkpoint=checkpoint)
    if not writer.waits:  # else what it looks at still changes; the query looks again when the rows are known
        start.check(sink_options(connection, plan))
    begun = checkpoints.first_offsets(checkpoint)
    found = checkpoints.read(checkpoint)
    beginning.check_begun(begun, stream, found)
    plan = replace(plan, sources=beginning.as_said(plan.sources, config.start_from, begun))
    if stream.continues or stream.beside:
        options = sink_options(connection, plan)
        sources, said = beginning.after_older(plan.sources, stream, options, bool(begun))
        plan = replace(plan, sources=sources)
        if said:
            context.log.info(said)
    _announce(context, config, plan, begun)

    def begin(session: SparkSession) -> StreamingQuery:
        named = _by_name(context, connection, checkpoints, plan)
        return start_query(session, connection, named, lambda inputs: _records(stream, inputs, config))

    return ManagedStream(
        context=context,
        supervisor=Supervisor(spark.session, reports.linked(begin), ready=writer.ready),
        observer=StreamObserver(connection, plan.sink_id, stream.source_topics, plan.checkpoint, checkpoints),
        transactions=tools.transactions,
        sink_id=plan.sink_id,
        kill=spark.kill,
        report=reports.tell,
        report_interval_s=config.report_interval_s,
        rotation=Rotation(context, config.rotate_after_h * 3600) if config.rotate_after_h else None,
        operator=plan.options["sink.operator"],
        participants=plan.participants,
        job=stream.spec.job,
    )


def _by_name(
    context: dg.AssetExecutionContext,
    connection: Connection,
    checkpoints: CheckpointReader,
    plan: QueryPlan,
) -> QueryPlan:
    """Return the plan with the names of its sources, as the checkpoint has them when the query starts."""
    found = checkpoints.read(plan.checkpoint)
    if not found.names_sources:
        return plan
    last = read_log(connection, plan.sink_id, READ_BUDGET_S).last_decision(found.query_id or "")
    ended = last.ended or {} if last is not None else {}
    sources, names = beginning.named(plan.sources, plan.checkpoint, ended)
    for back in (t for t in sources.values() if t not in plan.sources.values()):
        context.log.info(f"The stream reads {back.name} again, from where it ended: {back.options['startingOffsets']}.")
    return replace(plan, sources=sources, names=names)


def _records(stream: Stream, inputs: Mapping[str, DataFrame], config: StreamConfig) -> DataFrame:
    """Have the user's function make the records.

    Raises
    ------
    TransformFailed
        When it raises an exception of its own.
    """
    try:
        return stream.records(inputs, config)
    except (ExactlyOnceError, dg.DagsterError):
        raise
    except Exception as error:
        raise transform_failed(raised_by(error), FailurePlace(stream.spec.job)) from error


def _check_sources(connection: Connection, stream: Stream) -> None:
    """Refuse to start without the input: a stream never creates its sources."""
    with Admin(connection, READ_BUDGET_S) as admin:
        for topic in stream.source_topics:
            try:
                admin.topic_partitions([topic])
            except UnknownTopic as error:
                raise UnknownTopic(
                    f"the stream {stream.name} reads the topic {topic}, which does not exist",
                    f"Create the topic {topic}, or correct source= in the stream's declaration",
                    "Nothing was started",
                ) from error


def _check_operator(instance: dg.DagsterInstance, log: LogState, sink_id: str, consequence: str) -> None:
    """Refuse to take the sink from a driver that another Dagster instance, or somebody else, operates."""
    owner = owner_of(log, alive_of(instance))
    if owner is not None and owner.works is not False and is_foreign(instance, owner.claim):
        consented(sink_id, owner, consequence, "once.fence")


def _announce(context: dg.AssetExecutionContext, config: StreamConfig, plan: QueryPlan, begun: Offsets) -> None:
    context.log.info(f"Sink {plan.sink_id}, checkpoint {plan.checkpoint}, mode {config.mode.value}.")
    if begun and config.start_from:
        context.log.info(f"start_from={config.start_from} has no effect: the stream continues from its checkpoint.")
    elif not begun:
        several = len(plan.sources) > 1
        starts = (
            f"{at} of {t.name}" if several else at
            for t in plan.sources.values()
            for at in [t.options.get("startingOffsets", t.start_from)]
        )
        context.log.info(f"There is no checkpoint yet: the stream begins at {', '.join(starts)}.")
    for option, word in config.once.options().items():
        context.log.warning(f"A person consented for this start: {option}={word}.")
