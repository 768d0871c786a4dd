"""The job ``exactly_once_recovery``: brings a sink to rest."""

import dagster as dg

from dagster_exactly_once.names import RECOVERY_JOB
from dagster_exactly_once.recovery.steps import complete, inspect_op, restart, sweep, verify
from dagster_exactly_once.recovery.work import SinkRegistry


def recovery_job(registry: SinkRegistry) -> dg.JobDefinition:
    """Make the job that brings any sink to rest; it can request a restart of the registry's streams."""
    inspect = inspect_op(registry)

    @dg.job(
        name=RECOVERY_JOB,
        executor_def=dg.in_process_executor,
        tags={"dagster/max_retries": "0"},
        description=(
            "Recovers a sink: inspects it, commits decided batches, aborts undecided transactions, verifies that no "
            "reader waits, and requests a restart of the stream if one is wanted. Checks again before each step; "
            "safe to run twice, even at the same time. Leaves a live stream alone, unless take_over is set."
        ),
    )
    def recovery() -> None:
        _, work = inspect()
        restart(verify(sweep(complete(work))))

    return recovery
