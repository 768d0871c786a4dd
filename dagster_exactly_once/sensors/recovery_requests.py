"""Decides whether a sensor may request a recovery now, and when a stream restarts (by Dagster's run storage alone)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import dagster as dg

from dagster_exactly_once.names import RECOVERY_JOB, RECOVERY_OP
from dagster_exactly_once.runs.history import StreamHistory
from dagster_exactly_once.runs.operator import frozen
from dagster_exactly_once.runs.runs import Run, recovers_tag
from dagster_exactly_once.runs.spec import StreamSpec
from dagster_exactly_once.runs.tags import (
    TAG_ATTEMPT,
    TAG_CAUSE,
    TAG_NOT_BEFORE,
    TAG_RECOVERS,
    TAG_RESTART,
    TAG_RESTART_OF,
)
from dagster_exactly_once.sensors.settings import RestartPolicy, WatchPolicy
from exactly_once.inspection.findings import Owner
from exactly_once.inspection.words import duration
from exactly_once.tools.diagnosis import Diagnosis, Thresholds, state_of
from exactly_once.tools.diagnosis.registry import SYMPTOMS

#: Seconds after a failure in which only the sensor exactly_once_run_failure acts on the run; after that the others do,
#: should it be switched off.
HANDOVER_S = 60.0

REQUESTED = "This sensor requested a recovery"


class Restart(NamedTuple):
    """Start again, not before ``at``; ``attempt`` counts from 1."""

    at: float
    attempt: int


@dataclass(frozen=True)
class RecoveryNeed:
    """A recovery that a sensor needs, because of a ``cause`` for people; each tick that sees the ``incident`` names it
    so.

    It restarts the failed run ``restart_of``, as ``restart`` says, for the n-th time of ``limit`` (0: any number);
    without one it only brings the sink to rest.
    """

    incident: str
    cause: str
    restart_of: Run | None = None
    restart: Restart | None = None
    limit: int = 0


def next_restart(policy: RestartPolicy, failures: Sequence[Run], now: float) -> Restart | str:
    """Decide when to start again, or why not, after the last of ``failures`` in a row, oldest first.

    ``fixed-delay`` allows so many restarts in a row, with the same pause before each. ``failure-rate`` allows them as
    long as no more failures than its limit fall into one interval. ``exponential-delay`` begins a new count after a run
    that lived for ``reset_after_s``; its pause grows with each failure in a row, and is a share longer or shorter, so
    that streams that failed together do not restart together. No pause begins after ``now``: a clock may be set back.
    """
    last, attempt = failures[-1], len(failures)
    failed = min(last.over, now)
    if policy.strategy == "none":
        return "the restart strategy is 'none'"
    if policy.strategy == "failure-rate":
        recent = sum(f.over > last.over - policy.interval_s for f in failures)
        if recent > policy.max_failures:
            within = f"within {policy.interval_s:g} s, and failure-rate allows {policy.max_failures}"
            return f"runs failed {recent} times {within}"
        return Restart(failed + policy.delay_s, attempt)
    if policy.strategy == "exponential-delay":
        lived = (f.over - (f.started or f.created) for f in reversed(failures))  # a long life resets the count
        attempt = next((n for n, s in enumerate(lived, 1) if s >= policy.reset_after_s), len(failures))
    if attempt > policy.attempts:
        return f"{policy.attempts} restarts in a row did not help ({policy.strategy})"
    if policy.strategy == "fixed-delay":
        return Restart(failed + policy.delay_s, attempt)
    pause = min(policy.max_s, policy.initial_s * policy.multiplier ** min(attempt - 1, 64))  # no overflow
    # from -1 to 1, by the run alone: every tick must find the same pause
    jitter = int.from_bytes(hashlib.sha256(last.run_id.encode()).digest()[:4]) / 2**31 - 1
    return Restart(failed + pause * (1 + policy.jitter * jitter), attempt)


def need_of(why: Diagnosis, limits: Thresholds, now: float) -> RecoveryNeed | None:
    """Return the recovery that ends what a diagnosis says, once that has lasted as long as its threshold; else None."""
    symptom = SYMPTOMS[why.code]
    if not symptom.recovers or not symptom.threshold or why.since is None:
        return None
    if now - why.since <= getattr(limits, symptom.threshold):
        return None
    which = why.evidence.get("run") or f"{why.since:.3f}"
    return RecoveryNeed(f"{state_of(why.code).replace(' ', '-')}/{which}", f"{why.code}: {why.text}")


def refusal(history: StreamHistory, need: RecoveryNeed, policy: WatchPolicy, owner_works: bool | None) -> str | None:
    """Say why no recovery may be launched now; None when one may.

    ``owner_works`` tells whether the process of the sink's owner lives and writes, if it is no Dagster run.
    """
    for run in (*history.recoveries, *history.streams, *history.others):
        if run.waits:
            return f"run {run.name} of {run.job} is {run.status} and will recover the sink when it starts"
        if run.frozen:
            return f"run {run.name} of {run.job} is frozen. {frozen(run.name, run.frozen, run.sink_id).text}"
        if run.works and run.job == RECOVERY_JOB:
            return f"recovery {run.name} is under way"
        if run.works:
            return f"run {run.name} of {run.job} is working on the sink ({run.status})"
    if owner_works:
        return "the sink's owner is alive but is no Dagster run in progress; it will end its own transactions"
    last, stream = history.recovery, history.stream
    since = last is not None and (stream is None or last.created > stream.created)
    if last is not None and since and last.status == "CANCELED":
        return f"a person canceled recovery {last.name}; to recover the sink, launch the job {RECOVERY_JOB}"
    why = history.recovery_failure
    if last is not None and since and why is not None and not why.heals:
        remedy = f". {why.remedy.rstrip('. ')}" if why.remedy else ""
        return f"recovery {last.name} failed with {why.code}, which a retry will not fix{remedy}"
    if need.restart_of is not None:  # the restart strategy has its own limit
        return None
    failed = history.stream_failure
    if stream is not None and failed is not None and failed.heals and not failed.unwanted and not since:
        age_s = history.now - stream.over
        if age_s < HANDOVER_S:
            theirs = "the sensor exactly_once_run_failure requests its recovery"
            return f"run {stream.name} failed {duration(age_s)} ago, and {theirs}"
    return open_circuit(
        policy,
        [r.created for r in history.recoveries if not r.by_person and r.restart_of is None],
        history.lifetimes(),
        history.now,
    )


def open_circuit(
    policy: WatchPolicy, recoveries: Iterable[float], lifetimes: Iterable[tuple[float, float]], now: float
) -> str | None:
    """Say why sensors may request no further recovery; None when they may.

    They may request ``max_recoveries`` within ``window_s``, unless the stream was healthy for ``healthy_s`` in between.
    ``recoveries`` are the times of theirs, ``lifetimes`` start and end of each run of the stream (``now`` of a live
    one).
    """
    healthy_until = max((end for start, end in lifetimes if end - start >= policy.healthy_s), default=float("-inf"))
    since = max(now - policy.window_s, healthy_until)
    recent = sorted(at for at in recoveries if at > since)
    if len(recent) < policy.max_recoveries:
        return None
    closes_s = max(0.0, recent[-policy.max_recoveries] + policy.window_s - now)
    return (
        f"the circuit breaker is open: sensors requested {len(recent)} recoveries within {policy.window_s / 60:g} "
        f"minutes, and none helped. Read the log of the newest recovery, then launch the job {RECOVERY_JOB} by hand "
        "(recoveries that a person launches do not count). Sensors may request a recovery again in "
        f"{closes_s / 60:.0f} min"
    )


def ask(
    stream: StreamSpec, history: StreamHistory, need: RecoveryNeed, policy: WatchPolicy, owner: Owner | None
) -> tuple[list[dg.RunRequest], str]:
    """Request a recovery unless it is refused; return the requests, and what the tick adds to its sentence."""
    refused = refusal(history, need, policy, owner.works if owner else None)
    if refused is not None and owner is not None and owner.frozen and not any(r.works for r in history.streams):
        refused = f"the {owner.claim.process}, which is not a Dagster run in progress, owns the sink and is frozen"
    if refused is None and owner is not None and owner.works is None:
        refused = (
            f"the {owner.claim.process} holds the sink, and this Dagster instance cannot tell whether that driver is "
            f"alive. If the driver is gone, launch the job {RECOVERY_JOB} with take_over and fence"
        )
    if refused is not None:
        return [], f" {withheld(refused)}"
    return [recovery_request(stream, history, need)], f" {REQUESTED}."


def withheld(refused: str) -> str:
    """Make the sentence of a tick from a reason of :func:`refusal`."""
    return f"This sensor requests no recovery now, because {refused.rstrip('. ')}."


def recovery_request(stream: StreamSpec, history: StreamHistory, need: RecoveryNeed) -> dg.RunRequest:
    """Make the request; its key lets a later incident through, and not the same one at the next tick."""
    before = history.recovery.run_id if history.recovery else "none"
    tags = {TAG_CAUSE: need.cause, TAG_RECOVERS: recovers_tag(stream, history.location)}
    if need.restart_of is not None and need.restart is not None:
        at, attempt = need.restart
        tags |= {
            TAG_RESTART_OF: need.restart_of.run_id,
            TAG_ATTEMPT: str(attempt),
            TAG_NOT_BEFORE: f"{at:.3f}",
            TAG_RESTART: f"{attempt} of {need.limit}" if need.limit else f"{attempt}",
        }
    restart = need.restart_of is not None
    config = {"stream": stream.name, "dry_run": False, "reason": need.cause, "restart": restart}
    return dg.RunRequest(
        run_key=f"{stream.sink_id}/{need.incident}/after {before}",
        job_name=RECOVERY_JOB,
        run_config={"ops": {RECOVERY_OP: {"config": config}}},
        tags=tags,
    )
