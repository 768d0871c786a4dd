"""The jobs over the assets. All of them run in one process: it spares a process, and an interrupt has one hop less to
go.
"""

import dagster as dg

from platform_assets.checks.definitions import CHECKS
from platform_assets.constants import (
    BACKFILL_JOB,
    CHECKS_JOB,
    FEED_JOB,
    FLIGHT_DELAYS,
    FLIGHT_DELAYS_BY_DAY,
    FLIGHT_DELAYS_REJECTED,
    FLIGHTS,
    STREAM_JOB,
)

#: A re-execution must run every step; and what the liveness of a stream means is not for Dagster's retries to judge.
_STREAM_TAGS = {"dagster/max_retries": "0", "streaming/job": STREAM_JOB}

flights_feed = dg.define_asset_job(
    FEED_JOB,
    selection=dg.AssetSelection.assets(FLIGHTS).without_checks(),
    executor_def=dg.in_process_executor,
    description="Feeds the departures that are not in the topic yet, in transactions.",
)

flight_delays_stream = dg.define_asset_job(
    STREAM_JOB,
    # the checks have a job of their own: the end of a stream is no moment to compare 100,000 records
    selection=dg.AssetSelection.assets(FLIGHT_DELAYS, FLIGHT_DELAYS_REJECTED).without_checks(),
    executor_def=dg.in_process_executor,
    tags=_STREAM_TAGS,
    description=(
        "Reads flights, writes flight_delays and flight_delays_rejected exactly once. Terminate ends it gracefully; "
        "the next "
        "start goes on where it stopped."
    ),
)

flight_delays_backfill = dg.define_asset_job(
    BACKFILL_JOB,
    selection=dg.AssetSelection.assets(FLIGHT_DELAYS_BY_DAY).without_checks(),
    executor_def=dg.in_process_executor,
    description="Writes days of flight_delays that lie before the live stream's first start, each exactly once.",
)

flight_delays_checks = dg.define_asset_job(
    CHECKS_JOB,
    selection=dg.AssetSelection.checks(*CHECKS),
    executor_def=dg.in_process_executor,
    description="Evaluates the checks of flight_delays, and materializes nothing. It starts no Spark.",
)
