"""The jobs over the assets. Each runs in one process: one process less, and interrupts reach the op directly."""

import dagster as dg

from platform_assets.checks.definitions import CHECKS
from platform_assets.constants import (
    BACKFILL_JOB,
    CHECKS_JOB,
    DELAY_BY_HOUR,
    DELAY_BY_HOUR_JOB,
    FEED_JOB,
    FLIGHT_DELAYS,
    FLIGHT_DELAYS_BY_DAY,
    FLIGHT_DELAYS_REJECTED,
    FLIGHTS,
    STREAM_JOB,
)


def _stream_tags(job: str) -> dict[str, str]:
    """Make a job's tags: a re-execution runs every step, and the restart strategy, not Dagster, decides on retries."""
    return {"dagster/max_retries": "0", "streaming/job": job}


flights_feed = dg.define_asset_job(
    FEED_JOB,
    selection=dg.AssetSelection.assets(FLIGHTS).without_checks(),
    executor_def=dg.in_process_executor,
    description="Feeds the departures that the topic does not hold yet, in transactions.",
)

flight_delays_stream = dg.define_asset_job(
    STREAM_JOB,
    # the checks have their own job: a stream should not compare 100,000 records when it ends
    selection=dg.AssetSelection.assets(FLIGHT_DELAYS, FLIGHT_DELAYS_REJECTED).without_checks(),
    executor_def=dg.in_process_executor,
    tags=_stream_tags(STREAM_JOB),
    description=(
        "Reads flights, writes flight_delays and flight_delays_rejected exactly once. Terminate stops it gracefully; "
        "the next start continues where it stopped."
    ),
)

delay_by_hour_stream = dg.define_asset_job(
    DELAY_BY_HOUR_JOB,
    selection=dg.AssetSelection.assets(DELAY_BY_HOUR).without_checks(),
    executor_def=dg.in_process_executor,
    tags=_stream_tags(DELAY_BY_HOUR_JOB),
    description=(
        "Reads flights, writes delay_by_hour exactly once: each airport's hour when the watermark has passed it. Keeps "
        "its windows in the state store between batches and runs. May run at the same time as flight_delays_stream."
    ),
)

flight_delays_backfill = dg.define_asset_job(
    BACKFILL_JOB,
    selection=dg.AssetSelection.assets(FLIGHT_DELAYS_BY_DAY).without_checks(),
    executor_def=dg.in_process_executor,
    description="Writes days of flight_delays from before the live stream's first start, each exactly once.",
)

flight_delays_checks = dg.define_asset_job(
    CHECKS_JOB,
    selection=dg.AssetSelection.checks(*CHECKS),
    executor_def=dg.in_process_executor,
    description="Evaluates the checks of flight_delays; materializes nothing and does not start Spark.",
)
