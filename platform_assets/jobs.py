"""The jobs over the assets. All of them run in one process: it spares a process, and an interrupt has one hop less to
go.
"""

import dagster as dg

from platform_assets.constants import FEED_JOB, FLIGHT_DELAYS, FLIGHT_DELAYS_REJECTED, FLIGHTS, STREAM_JOB

#: A re-execution must run every step; and what the liveness of a stream means is not for Dagster's retries to judge.
_STREAM_TAGS = {"dagster/max_retries": "0", "streaming/job": STREAM_JOB}

flights_feed = dg.define_asset_job(
    FEED_JOB,
    selection=[FLIGHTS],
    executor_def=dg.in_process_executor,
    description="Feeds the departures that are not in the topic yet, in transactions.",
)

flight_delays_stream = dg.define_asset_job(
    STREAM_JOB,
    selection=[FLIGHT_DELAYS, FLIGHT_DELAYS_REJECTED],
    executor_def=dg.in_process_executor,
    tags=_STREAM_TAGS,
    description=(
        "Reads flights, writes flight_delays and flight_delays_rejected exactly once. Terminate ends it gracefully; "
        "the next "
        "start goes on where it stopped."
    ),
)
