"""A stream's outputs filled for days before it began, one exactly-once write for each day, and the schedule of it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Any

import dagster as dg
from pydantic import Field, create_model

from dagster_exactly_once.backfill.days import (
    Day,
    before_stream,
    days_found,
    in_ranges,
    oldest_missing,
    start_ms,
    write_id,
)
from dagster_exactly_once.backfill.writes import SideWrites, SparkWorker
from dagster_exactly_once.declare.config import BackfillConfig, StreamConfig
from dagster_exactly_once.declare.stream import Stream
from dagster_exactly_once.private import (
    ASSET_PARTITION_RANGE_END_TAG,
    ASSET_PARTITION_RANGE_START_TAG,
    UnresolvedAssetJobDefinition,
    loading_location,
)
from dagster_exactly_once.resources.checkpoints import READ_BUDGET_S, CheckpointReader, checkpoint_of
from dagster_exactly_once.resources.kafka import KafkaTransactionalProducerFactory
from dagster_exactly_once.resources.spark import BorrowedSession, SparkSessionResource, opener
from dagster_exactly_once.resources.transactions import TransactionAdmin
from dagster_exactly_once.runs.failures import classified, users_own
from dagster_exactly_once.runs.location import is_of, location_of_tick
from dagster_exactly_once.runs.pieces import Pieces
from dagster_exactly_once.runs.process import UNFINISHED, lacking, process_of, report_dead, tag_run
from dagster_exactly_once.runs.tags import NOT_RETRIED, TAG_STREAM
from dagster_exactly_once.streaming.query import create_outputs, rows_of
from dagster_exactly_once.streaming.source import Spans, worth_reading
from dagster_exactly_once.tables import next_day
from exactly_once.commitlog.commit_log import read_log
from exactly_once.errors import CheckpointUnusable, ExactlyOnceError
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.protocol.records import Decision


def days_of(stream: Stream) -> dg.DailyPartitionsDefinition:
    """Return the days that the stream's backfill covers."""
    assert stream.backfill is not None
    end = next_day(stream.backfill.end) if stream.backfill.end else None
    return dg.DailyPartitionsDefinition(start_date=stream.backfill.start, end_date=end)


def backfill_asset(stream: Stream) -> dg.AssetsDefinition:
    """Make the asset of the days; its key is ``<name>_by_day``."""
    spec = dg.AssetSpec(
        stream.by_day,
        deps=stream.source_keys,
        group_name=stream.outputs[0].group_name,
        owners=stream.outputs[0].owners,
        tags=stream.outputs[0].tags,
        kinds={"kafka", "spark"},
        partitions_def=days_of(stream),
        skippable=True,  # the op reports each day when it is done, not all of them at its end
        description=(
            f"The records of a UTC day in {', '.join(stream.topics)}, up to where the stream {stream.name} first "
            "started; the stream writes the rest. Each day is written exactly once, however many attempts it takes. A "
            "range of days is one run."
        ),
    )
    # the backfill's own fields, and those of the stream that its transformation reads
    described = Field(default=stream.config(), description="What the stream's transformation reads.")
    config_class = create_model(f"{stream.name}_backfill", __base__=BackfillConfig, stream=(stream.config, described))

    @dg.multi_asset(
        specs=[spec],
        name=stream.backfill_spec.op,
        pool=stream.pool(loading_location()),
        backfill_policy=dg.BackfillPolicy.single_run(),
    )
    def backfill(
        context: dg.AssetExecutionContext,
        config: config_class,  # type: ignore[valid-type]
        spark: dg.ResourceParam[Any],
        kafka: KafkaTransactionalProducerFactory,
        transactions: TransactionAdmin,
        checkpoints: CheckpointReader,
    ) -> Iterator[dg.MaterializeResult]:
        sink_id, days = stream.backfill_spec.sink_id, days_at_work(stream)
        with classified():
            writes = SideWrites(context, "The backfill", sink_id, kafka.connection(), transactions, days)
        work = _Backfill(context, stream, config.stream, kafka, opener(spark), writes)  # type: ignore[attr-defined]
        work.run(checkpoints, config.checkpoint)  # type: ignore[attr-defined]
        yield from ()  # Dagster would take a function that only returns to have made all of its days

    return backfill


def days_at_work(stream: Stream) -> Pieces:
    """Return the days of a run, of which it knows none yet."""
    job = stream.backfill_spec.job
    return Pieces("day", in_ranges, lambda days: f"launch the job {job} again for the days {in_ranges(days)}")


def input_of(stream: Stream) -> str:
    """Return the input topic: a declaration with a backfill names one."""
    [topic] = stream.source_topics
    return topic


def backfill_share(
    stream: Stream, kafka: KafkaTransactionalProducerFactory, checkpoints: CheckpointReader, checkpoint: str
) -> Spans:
    """Return the backfill's share of the input, given the stream's checkpoint ("": the one that it last used).

    Raises NoBoundary, CheckpointUnusable, BrokerUnreachable or UnknownTopic.
    """
    connection, topic = kafka.connection(), input_of(stream)
    location = checkpoint or checkpoint_of(connection, stream.sink_id, kafka, checkpoints)
    began = checkpoints.first_offsets(location).get(topic, {})
    if not began and read_log(connection, stream.sink_id, READ_BUDGET_S).owner is not None:
        raise CheckpointUnusable(
            f"the stream has run, but its checkpoint {location} is missing, so where the stream began is unknown",
            "Run the backfill where the checkpoint can be read, or restore the checkpoint",
        )
    with Admin(connection, READ_BUDGET_S) as admin:
        return before_stream(began, admin.watermarks(topic))


def _since(connection: Connection, stream: Stream, share: Spans, day: str, budget_s: float) -> Spans:
    with Admin(connection, budget_s) as admin:
        return worth_reading(share, admin.offsets_since(input_of(stream), start_ms(day)))


@dataclass(frozen=True)
class _Backfill:
    """One run: writes the days of the run that are not written yet; :mod:`.days` defines the shares.

    1. Skip the days in the commit log; if it has all of them, do not start Spark.
    2. Find the records of the other days in the backfill's share of the input, in one pass.
    3. Write day by day, and report each day when it is committed.
    """

    context: dg.AssetExecutionContext
    stream: Stream
    config: StreamConfig
    kafka: KafkaTransactionalProducerFactory
    spark: SparkSessionResource | BorrowedSession
    writes: SideWrites

    def run(self, checkpoints: CheckpointReader, checkpoint: str) -> None:
        context = self.context
        tags = {TAG_STREAM: self.stream.backfill_spec.name, **lacking(context.run, NOT_RETRIED)}
        tag_run(context.instance, context.run.run_id, self.writes.sink_id, tags)
        with self.writes.at_rest():
            share = backfill_share(self.stream, self.kafka, checkpoints, checkpoint)
            create_outputs(self.kafka, self.stream)
            self._fill(share)

    def _fill(self, share: Spans) -> None:
        keys, pieces = sorted(self.context.partition_keys), self.writes.pieces
        pieces.left = [*keys]
        log = read_log(self.writes.connection, self.writes.sink_id, READ_BUDGET_S)
        before = {key: decision for key in keys if (decision := log.write(self._write_id(key))) is not None}
        for key, decision in before.items():
            pieces.begin(key, pieces.doing, {})
            pieces.end()
            self._report(key, decision.records, f"{key} was written before, {decision.records:,} records.", decision)
        todo = [key for key in keys if key not in before]
        if not todo:
            return
        spans = _since(self.writes.connection, self.stream, share, todo[0], READ_BUDGET_S)
        if all(span.empty for span in spans.values()):
            for key in todo:
                self._report(key, 0, f"{key}: the live stream owns all input from that day on; nothing to write.")
            return
        self._write(todo, spans, share)

    def _write(self, todo: Sequence[str], spans: Spans, share: Spans) -> None:
        from dagster_exactly_once.backfill import spark as in_spark

        topic, pieces = input_of(self.stream), self.writes.pieces
        offsets = sum(span.end - span.start for span in spans.values())
        self.writes.log(f"Spark starts, and looks for the days {in_ranges(todo)} in {offsets:,} offsets of {topic}")
        with SparkWorker(self.spark.session, self.spark.kill) as worker:
            found = worker.call(lambda session: in_spark.find_days(session, self.writes.connection, topic, todo, spans))
            for day in days_found(todo, found, share):
                starts = {topic: {p: span.start for p, span in day.spans.items() if not span.empty}}
                doing = f"Day {day.key}: the run writes {day.records:,} records"
                self.writes.begin(day.key, doing, starts, self._write_id(day.key))
                if day.records:
                    self.writes.log(doing)
                    worker.call(lambda session, day=day: self._write_day(session, day))  # type: ignore[misc]
                    said = f"{day.key}: wrote {day.records:,} records."
                    records = day.records if self.stream.one_to_one else None
                    self._report(day.key, day.records, said, self.writes.proven(self._write_id(day.key), records))
                else:
                    said = f"{day.key}: no record of that day lies before the live stream's start; nothing to write."
                    self._report(day.key, 0, said)
                pieces.end()

    def _write_day(self, session: Any, day: Day) -> None:
        from dagster_exactly_once.backfill.spark import records_of

        stream, topic = self.stream, input_of(self.stream)
        events = records_of(session, self.writes.connection, topic, day, stream.with_headers)
        records = users_own(
            lambda: rows_of(stream, stream.records({topic: events}, self.config)), lambda: self.writes.pieces.place
        )
        self.writes.save(records, self._write_id(day.key), stream.sink_options(self.config.checked_sink_options()))

    def _write_id(self, day: str) -> str:
        return write_id(self.stream.by_day, day)

    def _report(self, day: str, records: int, said: str, decision: Decision | None = None) -> None:
        self.context.log.info(said)
        metadata: dict[str, int | str] = {"records_written": records, "said": said}
        if decision is not None:
            metadata |= {
                "records_written": decision.records,
                "transactions": decision.part_count,
                "write_id": decision.write_id,
            }
        self.context.log_event(dg.AssetMaterialization(self.stream.by_day, partition=day, metadata=metadata))


#: The most days of one run: a month keeps it to minutes, and to one start of Spark.
MOST_DAYS = 31

#: The failures in a row after which a range needs a person.
MOST_FAILURES = 3

#: Seconds of one tick: it must not delay the daemon.
TICK_BUDGET_S = 10.0


def fill_missing_days(stream: Stream, job: UnresolvedAssetJobDefinition) -> dg.ScheduleDefinition:
    """Make the schedule over :func:`missing_days`; off until a person turns it on."""

    @dg.schedule(
        name=f"{stream.name}_fill_missing_days",
        job=job,
        cron_schedule="*/10 * * * *",
        default_status=dg.DefaultScheduleStatus.STOPPED,
        description=(
            f"Requests the oldest missing days of {stream.by_day}, at most {MOST_DAYS} in one run, while no other "
            "backfill is in progress. Off until a person turns it on."
        ),
    )
    def fill(
        context: dg.ScheduleEvaluationContext, kafka: KafkaTransactionalProducerFactory, checkpoints: CheckpointReader
    ) -> dg.RunRequest | dg.SkipReason:
        return missing_days(stream, context.instance, kafka, checkpoints, location_of_tick(context))

    return fill


def missing_days(
    stream: Stream,
    instance: dg.DagsterInstance,
    kafka: KafkaTransactionalProducerFactory,
    checkpoints: CheckpointReader,
    location: str = "",
) -> dg.RunRequest | dg.SkipReason:
    """Return the request for the oldest missing days, or why there is none; ``location`` is that of the schedule."""
    running = _in_progress(stream, instance, location)
    if running is not None:
        return dg.SkipReason(f"Run {running.run_id} is filling days.")
    key = dg.AssetKey(stream.by_day)
    days = oldest_missing(days_of(stream).get_partition_keys(), instance.get_materialized_partitions(key), MOST_DAYS)
    if not days:
        return dg.SkipReason("No day is missing.")
    tags = {ASSET_PARTITION_RANGE_START_TAG: days[0], ASSET_PARTITION_RANGE_END_TAG: days[-1]}
    failed = _failures_in_a_row(stream, instance, tags, location)
    if failed >= MOST_FAILURES:
        return dg.SkipReason(
            f"The days {days[0]} to {days[-1]} failed {failed} times in a row. Read the log of the last run, fix the "
            "cause, then launch the backfill of one of these days by hand."
        )
    try:
        nothing = _nothing_before_the_stream(stream, kafka, checkpoints, days[0])
    except ExactlyOnceError as error:
        return dg.SkipReason(str(error))
    if nothing:
        return dg.SkipReason(f"The live stream owns all input since {days[0]}: there is nothing to fill.")
    return dg.RunRequest(tags=tags)


def _nothing_before_the_stream(
    stream: Stream, kafka: KafkaTransactionalProducerFactory, checkpoints: CheckpointReader, day: str
) -> bool:
    """Return whether the backfill's share can hold no record since ``day``, nor one of a later day."""
    share = backfill_share(stream, kafka, checkpoints, "")
    return all(span.empty for span in _since(kafka.connection(), stream, share, day, TICK_BUDGET_S).values())


def _in_progress(stream: Stream, instance: dg.DagsterInstance, location: str) -> dg.DagsterRun | None:
    """Return a backfill run of the location in progress, launched by this schedule or by a person.

    Also reports a run whose process was killed, which would hold the pool forever.
    """
    key, job = dg.AssetKey(stream.by_day), stream.backfill_spec.job
    runs = instance.get_runs(dg.RunsFilter(statuses=UNFINISHED))
    its = (run for run in runs if run.job_name == job or key in (run.asset_selection or ()))
    ours = (run for run in its if is_of(run, location))
    return next((r for r in ours if process_of(r).alive is not False or not report_dead(instance, r.run_id)), None)


def _failures_in_a_row(stream: Stream, instance: dg.DagsterInstance, tags: dict[str, str], location: str) -> int:
    runs = instance.get_runs(dg.RunsFilter(job_name=stream.backfill_spec.job, tags=tags))  # newest first
    ours = islice((run for run in runs if is_of(run, location)), MOST_FAILURES)
    return sum(1 for _ in takewhile(lambda run: run.status is dg.DagsterRunStatus.FAILURE, ours))
