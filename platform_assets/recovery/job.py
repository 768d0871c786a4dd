"""The job ``recovery``."""

import dagster as dg

from platform_assets.constants import RECOVERY_JOB, SINK_ID
from platform_assets.recovery.steps import complete, inspect, restart, sweep, verify
from sensors.stream import TAG_RECOVERS


@dg.job(
    name=RECOVERY_JOB,
    executor_def=dg.in_process_executor,
    tags={TAG_RECOVERS: SINK_ID, "dagster/max_retries": "0"},
    description=(
        "Brings a sink to rest: inspects it, commits decided batches, aborts undecided transactions, verifies that no "
        "reader waits, and requests a restart of the stream if one is wanted. Checks again before each step; safe to "
        "run twice, even at the same time. Leaves a live stream alone, unless take_over is set."
    ),
)
def recovery() -> None:
    _, work = inspect()
    restart(verify(sweep(complete(work))))
