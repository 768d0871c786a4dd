"""One run of a declared stream as a Dagster op."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import dagster as dg

from dagster_exactly_once.declare.config import Mode, StreamConfig
from dagster_exactly_once.declare.inputs import EARLIEST, start_time_ms
from dagster_exactly_once.declare.stream import Stream
from dagster_exactly_once.recovery.owners import consented
from dagster_exactly_once.resources.checkpoints import READ_BUDGET_S, CheckpointReader, Offsets
from dagster_exactly_once.resources.kafka import KafkaTransactionalProducerFactory
from dagster_exactly_once.resources.spark import BorrowedSession, SparkSessionResource
from dagster_exactly_once.resources.transactions import TransactionAdmin
from dagster_exactly_once.runs.failures import classified, users_own
from dagster_exactly_once.runs.location import location_of, name_of
from dagster_exactly_once.runs.operator import alive_of, is_foreign, operator_of
from dagster_exactly_once.runs.tags import TAG_ROTATED
from dagster_exactly_once.streaming import source
from dagster_exactly_once.streaming.managed import ManagedStream
from dagster_exactly_once.streaming.observer import StreamObserver
from dagster_exactly_once.streaming.query import QueryPlan, create_outputs, sink_options, start_query
from dagster_exactly_once.streaming.renamed import check_not_renamed
from dagster_exactly_once.streaming.reports import Reports
from dagster_exactly_once.streaming.single_writer import Rotation, SingleWriter
from dagster_exactly_once.streaming.supervisor import Supervisor
from exactly_once.checkpoint import check_whole
from exactly_once.commitlog.commit_log import read_log
from exactly_once.coordinator import start
from exactly_once.errors import ExactlyOnceError, UnknownTopic
from exactly_once.inspection.sink import owner_of
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.protocol.log_state import LogState
from exactly_once.spark.location import check_place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


class SharedRun(ExactlyOnceError):
    """A run was asked to run a stream and something after or beside it."""

    code = "EO-SHARED-RUN"
    default_safe = "Nothing was started"


@dataclass(frozen=True)
class StreamRun:
    """One run of a stream's op, and the resources that it takes."""

    context: dg.AssetExecutionContext
    config: StreamConfig
    stream: Stream
    spark: SparkSessionResource | BorrowedSession
    kafka: KafkaTransactionalProducerFactory
    transactions: TransactionAdmin
    checkpoints: CheckpointReader

    def run(self) -> Iterator[dg.MaterializeResult]:
        """Run the stream until it is stopped or has caught up; see :class:`ManagedStream`."""
        context, stream = self.context, self.stream
        with classified():
            plan = self._plan()
            queue = stream.queue(name_of(location_of(context.run)))
            writer = SingleWriter(context, stream.spec, plan.sink_id, queue)
            self._check_alone()
            writer.begin()
            reports = Reports(context, stream)
            managed = self._prepared(plan, writer, reports)
            last = managed.run()
        if managed.rotated:
            context.instance.add_run_tags(context.run.run_id, {TAG_ROTATED: context.run.run_id})
            reports.tell(last)
            return
        yield from reports.last(last, managed.totals())

    def _plan(self) -> QueryPlan:
        config, stream = self.config, self.stream
        return QueryPlan(
            stream=stream,
            sources=stream.sources,
            sink_id=config.sink_id or stream.sink_id,
            checkpoint=config.checkpoint,
            max_offsets_per_trigger=config.max_offsets_per_trigger,
            trigger_interval_s=config.trigger_interval_s if config.mode is Mode.until_stopped else None,
            options={
                **stream.sink_options(config.checked_sink_options()),
                **config.once.options(),
                "sink.operator": operator_of(self.context.instance, self.context.run.run_id),
            },
            participants=stream.others(),
        )

    def _check_alone(self) -> None:
        """Refuse a run whose other steps would never begin, since this one does not end."""
        selected = self.context.run.asset_selection or frozenset()
        others = sorted(k.to_user_string() for k in selected - {spec.key for spec in self.stream.assets})
        if others and self.config.mode is Mode.until_stopped:
            raise SharedRun(
                f"this run contains a stream that does not end by itself ({self.stream.name}), together with "
                f"{', '.join(others)}",
                f"Launch the job {self.stream.spec.job} alone, or set its mode to caught_up",
            )

    def _prepared(self, plan: QueryPlan, writer: SingleWriter, reports: Reports) -> ManagedStream:
        """Check what can be checked before Spark starts, and find what earlier runs have reported."""
        context, config, stream, checkpoints = self.context, self.config, self.stream, self.checkpoints
        connection = self.kafka.connection()
        start_time_ms(config.start_from or EARLIEST)
        self._check_sources(connection)
        self._check_operator(read_log(connection, plan.sink_id, READ_BUDGET_S), plan.sink_id)
        create_outputs(self.kafka, stream)
        checkpoint = plan.checkpoint or checkpoints.location(self.kafka.cluster_id(), plan.sink_id)
        check_whole(checkpoint, plan.sink_id)  # Spark's own error names no way out
        plan = replace(plan, checkpoint=checkpoint)
        if not writer.waits:  # else what it looks at still changes; the query looks again when the rows are known
            start.check(sink_options(connection, plan))
        begun = checkpoints.first_offsets(checkpoint)
        source.check_begun(begun, stream, checkpoints.read(checkpoint))
        if not (begun or config.start_from or stream.continues or stream.beside):
            self._check_not_renamed(connection, plan.sink_id)
        plan = replace(plan, sources=source.as_said(plan.sources, config.start_from, begun))
        if stream.continues or stream.beside:
            sources, said = source.after_older(plan.sources, stream, sink_options(connection, plan), bool(begun))
            plan = replace(plan, sources=sources)
            if said:
                context.log.info(said)
        self._announce(plan, begun)

        observer = StreamObserver(connection, plan.sink_id, stream.source_topics, plan.checkpoint, checkpoints)

        def begin(session: SparkSession) -> StreamingQuery:
            check_place(session, plan.checkpoint)
            named = self._by_name(connection, plan)
            return start_query(session, connection, named, lambda inputs: self._records(inputs, observer))

        return ManagedStream(
            context=context,
            supervisor=Supervisor(self.spark.session, reports.linked(begin), ready=writer.ready),
            observer=observer,
            transactions=self.transactions,
            sink_id=plan.sink_id,
            kill=self.spark.kill,
            report=reports.tell,
            report_interval_s=config.report_interval_s,
            rotation=Rotation(context, config.rotate_after_h * 3600) if config.rotate_after_h else None,
            operator=plan.options["sink.operator"],
            participants=plan.participants,
            job=stream.spec.job,
        )

    def _by_name(self, connection: Connection, plan: QueryPlan) -> QueryPlan:
        """Return the plan with the names of its sources, as the checkpoint has them when the query starts."""
        found = self.checkpoints.read(plan.checkpoint)
        if not found.names_sources:
            return plan
        last = read_log(connection, plan.sink_id, READ_BUDGET_S).last_decision(found.query_id or "")
        ended = last.ended or {} if last is not None else {}
        sources, names = source.named(plan.sources, plan.checkpoint, ended)
        for back in (t for t in sources.values() if t not in plan.sources.values()):
            begins = back.options["startingOffsets"]
            self.context.log.info(f"The stream reads {back.name} again, from where it ended: {begins}.")
        return replace(plan, sources=sources, names=names)

    def _records(self, inputs: Mapping[str, DataFrame], observer: StreamObserver) -> DataFrame:
        job = self.stream.spec.job
        return users_own(lambda: self.stream.records(inputs, self.config), lambda: observer.place(job))

    def _check_sources(self, connection: Connection) -> None:
        """Refuse to start without the input: a stream never creates its sources."""
        with Admin(connection, READ_BUDGET_S) as admin:
            for topic in self.stream.source_topics:
                try:
                    admin.topic_partitions([topic])
                except UnknownTopic as error:
                    raise UnknownTopic(
                        f"the stream {self.stream.name} reads the topic {topic}, which does not exist",
                        f"Create the topic {topic}, or correct source= in the stream's declaration",
                        "Nothing was started",
                    ) from error

    def _check_operator(self, log: LogState, sink_id: str) -> None:
        """Refuse to take the sink from a driver that another code location or instance, or somebody else operates."""
        instance, here = self.context.instance, location_of(self.context.run)
        owner = owner_of(log, alive_of(instance))
        if owner is not None and owner.works is not False and is_foreign(instance, owner.claim, here):
            consented(sink_id, owner, self.config.once.fence, "once.fence")

    def _check_not_renamed(self, connection: Connection, sink_id: str) -> None:
        """Refuse a stream that has another name than before, and would write everything again."""
        try:
            jobs = self.context.repository_def
        except Exception:  # Dagster's CheckError: execute_in_process has no code location
            return
        instance, run, spec = self.context.instance, self.context.run, self.stream.spec
        check_not_renamed(
            instance, run, spec, sink_id, jobs.has_job, lambda old: read_log(connection, old, READ_BUDGET_S)
        )

    def _announce(self, plan: QueryPlan, begun: Offsets) -> None:
        config, log = self.config, self.context.log
        log.info(f"Sink {plan.sink_id}, checkpoint {plan.checkpoint}, mode {config.mode.value}.")
        if begun and config.start_from:
            log.info(f"start_from={config.start_from} has no effect: the stream continues from its checkpoint.")
        elif not begun:
            several = len(plan.sources) > 1
            starts = (
                f"{at} of {t.name}" if several else at
                for t in plan.sources.values()
                for at in [t.options.get("startingOffsets", t.start_from)]
            )
            log.info(f"There is no checkpoint yet: the stream begins at {', '.join(starts)}.")
        for option, confirmation in config.once.options().items():
            log.warning(f"A person consented for this start: {option}={confirmation}.")
