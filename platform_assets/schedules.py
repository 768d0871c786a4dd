"""The schedules: the checks, and the backfill of missing days."""

import dagster as dg
from dagster._core.storage.tags import ASSET_PARTITION_RANGE_END_TAG, ASSET_PARTITION_RANGE_START_TAG

from exactly_once.errors import ExactlyOnceError
from exactly_once.kafka.admin import Admin
from platform_assets.assets.flight_delays_by_day import DAYS, backfill_share
from platform_assets.backfill.days import oldest_missing, start_ms
from platform_assets.constants import BACKFILL_JOB, FLIGHT_DELAYS_BY_DAY, FLIGHTS
from platform_assets.flights.spans import worth_reading
from platform_assets.jobs import flight_delays_backfill, flight_delays_checks
from resources.checkpoints import CheckpointReader
from resources.kafka import KafkaTransactionalProducerFactory
from resources.run_process import process_of, report_dead

#: Days of one run: a month keeps it to minutes, and to one start of Spark.
MOST_DAYS = 31

#: A range that failed this often in a row needs a person.
MOST_FAILURES = 3

#: A tick must not delay the daemon.
TICK_BUDGET_S = 10.0

_UNFINISHED = [
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]

checks_every_ten_minutes = dg.ScheduleDefinition(
    name="checks_every_ten_minutes",
    job=flight_delays_checks,
    cron_schedule="*/10 * * * *",
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="Evaluates the checks of flight_delays; takes a few seconds and does not start Spark.",
)


@dg.schedule(
    name="fill_missing_days",
    job=flight_delays_backfill,
    cron_schedule="*/10 * * * *",
    default_status=dg.DefaultScheduleStatus.STOPPED,
    description=(
        f"Requests the oldest missing days of {FLIGHT_DELAYS_BY_DAY}, at most {MOST_DAYS} in one run, while no other "
        "backfill is in progress. Off until a person turns it on."
    ),
)
def fill_missing_days(
    context: dg.ScheduleEvaluationContext, kafka: KafkaTransactionalProducerFactory, checkpoints: CheckpointReader
) -> dg.RunRequest | dg.SkipReason:
    return missing_days(context.instance, kafka, checkpoints)


def missing_days(
    instance: dg.DagsterInstance, kafka: KafkaTransactionalProducerFactory, checkpoints: CheckpointReader
) -> dg.RunRequest | dg.SkipReason:
    """Return the request for the oldest missing days, or why there is none."""
    running = _in_progress(instance)
    if running is not None:
        return dg.SkipReason(f"Run {running.run_id} is filling days.")
    key = dg.AssetKey(FLIGHT_DELAYS_BY_DAY)
    days = oldest_missing(DAYS.get_partition_keys(), instance.get_materialized_partitions(key), MOST_DAYS)
    if not days:
        return dg.SkipReason("No day is missing.")
    tags = {ASSET_PARTITION_RANGE_START_TAG: days[0], ASSET_PARTITION_RANGE_END_TAG: days[-1]}
    failed = _failures_in_a_row(instance, tags)
    if failed >= MOST_FAILURES:
        return dg.SkipReason(
            f"The days {days[0]} to {days[-1]} failed {failed} times in a row. Look at the last run, and once its "
            "cause is fixed launch the backfill of one of these days by hand."
        )
    try:
        nothing = _nothing_before_the_stream(kafka, checkpoints, days[0])
    except ExactlyOnceError as error:
        return dg.SkipReason(str(error))
    if nothing:
        return dg.SkipReason(f"The live stream owns all input since {days[0]}: there is nothing to fill.")
    return dg.RunRequest(tags=tags)


def _nothing_before_the_stream(
    kafka: KafkaTransactionalProducerFactory, checkpoints: CheckpointReader, day: str
) -> bool:
    """Return whether the backfill's share can hold no record since ``day``, nor one of a later day."""
    share = backfill_share(kafka, checkpoints, "")
    with Admin(kafka.connection(), TICK_BUDGET_S) as admin:
        since = admin.offsets_since(FLIGHTS, start_ms(day))
    return all(span.empty for span in worth_reading(share, since).values())


def _in_progress(instance: dg.DagsterInstance) -> dg.DagsterRun | None:
    """Return a backfill run in progress, launched by this schedule or by a person.

    Also reports a run whose process was killed, which would hold the pool forever.
    """
    key = dg.AssetKey(FLIGHT_DELAYS_BY_DAY)
    for run in instance.get_runs(dg.RunsFilter(statuses=_UNFINISHED)):
        if run.job_name != BACKFILL_JOB and key not in (run.asset_selection or ()):
            continue
        if process_of(run).alive is False and report_dead(instance, run.run_id):
            continue
        return run
    return None


def _failures_in_a_row(instance: dg.DagsterInstance, tags: dict[str, str]) -> int:
    runs = instance.get_runs(dg.RunsFilter(job_name=BACKFILL_JOB, tags=tags), limit=MOST_FAILURES)
    failures = 0
    for run in runs:  # newest first
        if run.status is not dg.DagsterRunStatus.FAILURE:
            break
        failures += 1
    return failures
