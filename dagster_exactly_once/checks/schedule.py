"""Evaluate the checks once an hour, every ten minutes while something is wrong, and ``verified`` by night."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import dagster as dg

from dagster_exactly_once.checks.evaluate import evaluation_in
from dagster_exactly_once.checks.verified import VERIFIED
from dagster_exactly_once.declare.stream import Stream
from dagster_exactly_once.names import CHECKS_EVERY_S, CHECKS_JOB
from dagster_exactly_once.private import UnresolvedAssetJobDefinition
from dagster_exactly_once.runs.history import Histories
from dagster_exactly_once.runs.location import location_of_tick
from dagster_exactly_once.runs.tags import TAG_STREAM
from dagster_exactly_once.sensors.observation import HEALTH

#: The schedule of a stream without ``verify_cron``, once a person has switched it on.
NIGHTLY = "0 3 * * *"

#: The check of checkpoint and commit log.
AGREES = "checkpoint_equals_commit_log"

#: The age in seconds below which no evaluation is repeated: the sensor has just requested it, or a tick was a little
#: late.
RECENT_S = 300.0
#: The age in seconds at which the check ``health`` says nothing of now: its sensor is off, which evaluates it at each
#: tick.
UNWATCHED_S = 1800.0
#: The states in which nobody works: what is wrong then stays so until a run begins.
AT_REST = ("HEALTH-STOPPED", "HEALTH-FAILED")


def checks_job(checks: Sequence[dg.AssetChecksDefinition]) -> UnresolvedAssetJobDefinition:
    """Make the job that evaluates the checks of all streams but ``verified``."""
    return _job(CHECKS_JOB, checks, "the checks of all streams but verified")


def verify_job(stream: Stream, check: dg.AssetChecksDefinition) -> UnresolvedAssetJobDefinition:
    """Make the job that evaluates the check ``verified`` alone."""
    return _job(f"{stream.name}_verify", [check], f"the check {VERIFIED} of {stream.name}")


def _job(name: str, checks: Sequence[dg.AssetChecksDefinition], which: str) -> UnresolvedAssetJobDefinition:
    return dg.define_asset_job(
        name,
        selection=dg.AssetSelection.checks(*checks),
        executor_def=dg.in_process_executor,
        description=f"Evaluates {which}; materializes nothing and does not start Spark.",
    )


def verify_schedule(stream: Stream, job: UnresolvedAssetJobDefinition) -> dg.ScheduleDefinition:
    """Make the schedule of the job: on if the stream declares when, else off until a person turns it on."""
    declared = stream.checks.verify_cron if stream.checks is not None else None
    status = dg.DefaultScheduleStatus.RUNNING if declared else dg.DefaultScheduleStatus.STOPPED
    return dg.ScheduleDefinition(
        job=job,
        cron_schedule=declared or NIGHTLY,
        default_status=status,
        description=f"Evaluates the check {VERIFIED} of {stream.name}. Off until a person turns it on, unless the "
        "stream declares Checks(verify_cron=...).",
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
            "Evaluates the checks of all streams but verified; takes a few seconds and does not start Spark. Most "
            "ticks request nothing: a stream has its turn once an hour, or as Checks(every_s=...) says; at each tick "
            "while its health is in trouble, or one of its checks has failed or could not read; and after a run of "
            "it, its backfill or its resend."
        ),
    )
    def checks_every_ten_minutes(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        return due(context.instance, streams, keys, location_of_tick(context))

    return checks_every_ten_minutes


def due(
    instance: dg.DagsterInstance,
    streams: Sequence[Stream],
    keys: dict[str, list[dg.AssetCheckKey]],
    location: str = "",
) -> dg.RunRequest | dg.SkipReason:
    """Request the checks of the streams that have run in the code location, or that run elsewhere: those of another one
    stay grey.
    """
    summaries = Histories(instance, location).summaries([s.spec for s in streams])
    begun = [s for s in streams if not s.managed or summaries[s.sink_id].streams]
    if not begun:
        return dg.SkipReason("No stream has run yet: there is nothing to check.")
    now = time.time()
    last = {s: _evaluated(instance, s, keys[s.sink_id], now) for s in begun}
    if not any(must_evaluate(evaluated, now) for evaluated in last.values()):
        return dg.SkipReason("The checks were evaluated within their interval, and nothing is wrong.")
    # streams whose turn is near join: else each would have a run of its own in every hour
    wanted = [s for s in begun if must_evaluate(last[s], now, nearly=True)]
    return dg.RunRequest(asset_check_keys=[key for s in wanted for key in keys[s.sink_id]])


class Evaluated(NamedTuple):
    """The newest evaluations of a stream's checks.

    ``at`` is the oldest of them, in seconds since the epoch; None when a check was never evaluated. ``every_s`` is the
    interval of a stream that is well; ``soon``: something is wrong, or may have changed, so the next tick evaluates
    them.
    """

    at: float | None
    every_s: float = CHECKS_EVERY_S
    soon: bool = False


def must_evaluate(last: Evaluated, now: float, nearly: bool = False) -> bool:
    """Return whether a tick evaluates the checks of a stream; ``nearly``: or soon would. Pure."""
    if last.at is None:
        return True
    age_s = now - last.at
    return age_s >= RECENT_S and (last.soon or age_s >= (last.every_s / 2 if nearly else last.every_s - RECENT_S))


def _evaluated(instance: dg.DagsterInstance, stream: Stream, keys: Sequence[dg.AssetCheckKey], now: float) -> Evaluated:
    health = dg.AssetCheckKey(stream.outputs[0].key, HEALTH)
    found = instance.event_log_storage.get_latest_asset_check_execution_by_key([*keys, health])
    if any(key not in found for key in keys):
        return Evaluated(None)
    at = min(found[key].create_timestamp for key in keys)
    watched = health in found and now - found[health].create_timestamp < UNWATCHED_S
    said = {key: evaluation for key, record in found.items() if (evaluation := evaluation_in(record))}
    at_rest = health in said and _code(said[health]) in AT_REST
    wrong = not watched or any(is_wrong(evaluation) for evaluation in said.values())
    names = [stream.name, *(spec.name for spec in stream.side_specs)]
    ran = dg.RunsFilter(tags={TAG_STREAM: names}, updated_after=datetime.fromtimestamp(at, UTC))
    soon = (wrong and not at_rest) or bool(instance.get_runs(ran, limit=1))
    return Evaluated(at, stream.checks.every_s if stream.checks else CHECKS_EVERY_S, soon)


def is_wrong(said: dg.AssetCheckEvaluation) -> bool:
    """Return whether a check failed, could not read, or shows a state that needs somebody. The other warnings, such as
    of rejected records, stay until a person acts.
    """
    grave = said.severity is dg.AssetCheckSeverity.ERROR or _code(said).startswith("HEALTH-")
    return not said.passed and (grave or "evaluated" in said.metadata)


def _code(said: dg.AssetCheckEvaluation) -> str:
    return str(said.metadata["code"].value) if "code" in said.metadata else ""
