"""The streams that the sensors watch, and one sensor of each kind for each of them."""

from dataclasses import replace

import dagster as dg

from platform_assets.constants import (
    BACKFILL_JOB,
    BACKFILL_SINK_ID,
    DELAY_BY_HOUR,
    DELAY_BY_HOUR_JOB,
    DELAY_BY_HOUR_SINK_ID,
    DELAY_BY_HOUR_TRANSACTIONS,
    FLIGHT_DELAYS,
    FLIGHT_DELAYS_REJECTED,
    FLIGHTS,
    GROUP,
    RECOVERY_JOB,
    RECOVERY_OP,
    SINK_ID,
    STREAM_JOB,
    TRANSACTIONS,
)
from sensors.checkpoint_progress import checkpoint_progress_sensor
from sensors.liveness import liveness_sensor
from sensors.run_failure import run_failure_sensor
from sensors.settings import RestartPolicy, WatchPolicy
from sensors.stale_transactions import stale_transactions_sensor
from sensors.stream import StreamSpec

STREAM = StreamSpec(
    STREAM_JOB,
    RECOVERY_JOB,
    RECOVERY_OP,
    SINK_ID,
    FLIGHTS,
    (FLIGHT_DELAYS, FLIGHT_DELAYS_REJECTED),
    TRANSACTIONS,
)

#: The second stream; one recovery job serves both.
BY_HOUR = replace(
    STREAM,
    job=DELAY_BY_HOUR_JOB,
    sink_id=DELAY_BY_HOUR_SINK_ID,
    outputs=(DELAY_BY_HOUR,),
    asset=DELAY_BY_HOUR_TRANSACTIONS,
)

#: A sensor watches the backfill's sink for open transactions of dead runs; no sensor restarts a backfill.
BACKFILL = replace(STREAM, job=BACKFILL_JOB, sink_id=BACKFILL_SINK_ID)

#: The streams whose restart a recovery can request.
STREAMS = (STREAM, BY_HOUR)


def stream_of(sink_id: str) -> StreamSpec | None:
    """Return the stream that writes through a sink; None for a sink without a stream."""
    return next((stream for stream in STREAMS if stream.sink_id == sink_id), None)


def _transactions_asset(stream: StreamSpec, sensor: str) -> dg.AssetSpec:
    return dg.AssetSpec(
        stream.asset,
        deps=list(stream.outputs),
        group_name=GROUP,
        kinds={"kafka"},
        description=(
            f"The transactions of the sink {stream.sink_id}. Observed by the sensor {sensor} (plots; tables of open "
            "transactions with their age against their timeout, and of recent ones) and by every recovery: who "
            "launched it, when and why, and the sink before and after."
        ),
    )


TRANSACTIONS_ASSETS = [
    _transactions_asset(STREAM, "checkpoint_progress"),
    _transactions_asset(BY_HOUR, "delay_by_hour_progress"),
]

SENSORS = [
    checkpoint_progress_sensor(STREAM),
    stale_transactions_sensor(STREAM),
    stale_transactions_sensor(BACKFILL, name="stale_backfill_transactions"),
    run_failure_sensor(STREAM),
    liveness_sensor(STREAM),
    checkpoint_progress_sensor(BY_HOUR, name="delay_by_hour_progress"),
    stale_transactions_sensor(BY_HOUR, name="delay_by_hour_stale_transactions"),
    run_failure_sensor(BY_HOUR, name="delay_by_hour_run_failure"),
    liveness_sensor(BY_HOUR, name="delay_by_hour_liveness", own_only=True),
]

POLICIES = {
    "restart_policy": RestartPolicy.from_environment("EXACTLY_ONCE_RESTART_"),
    "watch_policy": WatchPolicy.from_environment("EXACTLY_ONCE_WATCH_"),
}
