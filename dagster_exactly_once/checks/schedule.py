"""Evaluate the checks every ten minutes, and when a stream begins to work or has failed."""

from __future__ import annotations

from collections.abc import Sequence

import dagster as dg

from dagster_exactly_once.declare.stream import Stream
from dagster_exactly_once.names import CHECKS_JOB
from dagster_exactly_once.private import UnresolvedAssetJobDefinition
from dagster_exactly_once.runs.history import Histories


def checks_job(checks: Sequence[dg.AssetChecksDefinition]) -> UnresolvedAssetJobDefinition:
    """Make the job that evaluates the checks of all streams but ``verified``."""
    return dg.define_asset_job(
        CHECKS_JOB,
        selection=dg.AssetSelection.checks(*checks),
        executor_def=dg.in_process_executor,
        description="Evaluates the checks of all streams but verified; materializes nothing and does not start Spark.",
    )


def checks_schedule(
    streams: Sequence[Stream], keys: dict[str, list[dg.AssetCheckKey]], job: UnresolvedAssetJobDefinition
) -> dg.ScheduleDefinition:
    """Make the schedule; ``keys`` are the checks by the stream's sink id."""

    @dg.schedule(
        name="exactly_once_checks_every_ten_minutes",
        job=job,
        cron_schedule="*/10 * * * *",
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description=(
            "Evaluates the checks of all streams but verified; takes a few seconds and does not start Spark. Leaves "
            "out the streams that have not run yet."
        ),
    )
    def checks_every_ten_minutes(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        return due(context.instance, streams, keys)

    return checks_every_ten_minutes


def due(
    instance: dg.DagsterInstance, streams: Sequence[Stream], keys: dict[str, list[dg.AssetCheckKey]]
) -> dg.RunRequest | dg.SkipReason:
    """Request the checks of the streams that have run, or that run elsewhere: those of another one stay grey."""
    summaries = Histories(instance).summaries([s.spec for s in streams])
    begun = [s for s in streams if not s.managed or summaries[s.sink_id].streams]
    if not begun:
        return dg.SkipReason("No stream has run yet: there is nothing to check.")
    return dg.RunRequest(asset_check_keys=[key for s in begun for key in keys[s.sink_id]])
