"""The schedule that fills missing days."""

import dagster as dg

from dagster_exactly_once.backfill.asset import backfill_share, days_of, input_of
from dagster_exactly_once.backfill.days import oldest_missing, start_ms
from dagster_exactly_once.declare.stream import Stream
from dagster_exactly_once.private import (
    ASSET_PARTITION_RANGE_END_TAG,
    ASSET_PARTITION_RANGE_START_TAG,
    UnresolvedAssetJobDefinition,
)
from dagster_exactly_once.resources.checkpoints import CheckpointReader
from dagster_exactly_once.resources.kafka import KafkaTransactionalProducerFactory
from dagster_exactly_once.runs.process import UNFINISHED, process_of, report_dead
from dagster_exactly_once.streaming.spans import worth_reading
from exactly_once.errors import ExactlyOnceError
from exactly_once.kafka.admin import Admin

#: Days of one run: a month keeps it to minutes, and to one start of Spark.
MOST_DAYS = 31

#: A range that failed this often in a row needs a person.
MOST_FAILURES = 3

#: A tick must not delay the daemon.
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
        return missing_days(stream, context.instance, kafka, checkpoints)

    return fill


def missing_days(
    stream: Stream,
    instance: dg.DagsterInstance,
    kafka: KafkaTransactionalProducerFactory,
    checkpoints: CheckpointReader,
) -> dg.RunRequest | dg.SkipReason:
    """Return the request for the oldest missing days, or why there is none."""
    running = _in_progress(stream, instance)
    if running is not None:
        return dg.SkipReason(f"Run {running.run_id} is filling days.")
    key = dg.AssetKey(stream.by_day)
    days = oldest_missing(days_of(stream).get_partition_keys(), instance.get_materialized_partitions(key), MOST_DAYS)
    if not days:
        return dg.SkipReason("No day is missing.")
    tags = {ASSET_PARTITION_RANGE_START_TAG: days[0], ASSET_PARTITION_RANGE_END_TAG: days[-1]}
    failed = _failures_in_a_row(stream, instance, tags)
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
    with Admin(kafka.connection(), TICK_BUDGET_S) as admin:
        since = admin.offsets_since(input_of(stream), start_ms(day))
    return all(span.empty for span in worth_reading(share, since).values())


def _in_progress(stream: Stream, instance: dg.DagsterInstance) -> dg.DagsterRun | None:
    """Return a backfill run in progress, launched by this schedule or by a person.

    Also reports a run whose process was killed, which would hold the pool forever.
    """
    key = dg.AssetKey(stream.by_day)
    for run in instance.get_runs(dg.RunsFilter(statuses=UNFINISHED)):
        if run.job_name != stream.backfill_spec.job and key not in (run.asset_selection or ()):
            continue
        if process_of(run).alive is False and report_dead(instance, run.run_id):
            continue
        return run
    return None


def _failures_in_a_row(stream: Stream, instance: dg.DagsterInstance, tags: dict[str, str]) -> int:
    runs = instance.get_runs(dg.RunsFilter(job_name=stream.backfill_spec.job, tags=tags), limit=MOST_FAILURES)
    failures = 0
    for run in runs:  # newest first
        if run.status is not dg.DagsterRunStatus.FAILURE:
            break
        failures += 1
    return failures
