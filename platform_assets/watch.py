"""What the sensors watch: the stream by name, and one sensor of each kind for it."""

from dataclasses import replace

import dagster as dg

from platform_assets.constants import (
    BACKFILL_JOB,
    BACKFILL_SINK_ID,
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

#: The backfill's sink is watched for what a dead run left open; nobody restarts a backfill.
BACKFILL = replace(STREAM, job=BACKFILL_JOB, sink_id=BACKFILL_SINK_ID)

TRANSACTIONS_ASSET = dg.AssetSpec(
    TRANSACTIONS,
    deps=[FLIGHT_DELAYS, FLIGHT_DELAYS_REJECTED],
    group_name=GROUP,
    kinds={"kafka"},
    description=(
        "The transactions of the stream's sink. Observed by the sensor checkpoint_progress (plots; tables of open "
        "transactions with their age against their timeout, and of recent ones) and by every recovery: who had it "
        "launched, when, why, before and after."
    ),
)

SENSORS = [
    checkpoint_progress_sensor(STREAM),
    stale_transactions_sensor(STREAM),
    stale_transactions_sensor(BACKFILL, name="stale_backfill_transactions"),
    run_failure_sensor(STREAM),
    liveness_sensor(STREAM),
]

POLICIES = {
    "restart_policy": RestartPolicy.from_environment("EXACTLY_ONCE_RESTART_"),
    "watch_policy": WatchPolicy.from_environment("EXACTLY_ONCE_WATCH_"),
}
