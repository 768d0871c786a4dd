"""Decides whether a sensor may request a recovery now, and builds the request."""

from __future__ import annotations

from dataclasses import dataclass

import dagster as dg

from dagster_exactly_once.names import RECOVERY_JOB, RECOVERY_OP
from dagster_exactly_once.runs.facts import frozen
from dagster_exactly_once.runs.history import StreamHistory
from dagster_exactly_once.runs.runs import Run
from dagster_exactly_once.runs.spec import StreamSpec
from dagster_exactly_once.runs.tags import (
    TAG_ATTEMPT,
    TAG_CAUSE,
    TAG_NOT_BEFORE,
    TAG_RECOVERS,
    TAG_RESTART,
    TAG_RESTART_OF,
)
from dagster_exactly_once.sensors.circuit import open_circuit
from dagster_exactly_once.sensors.restart import Restart
from dagster_exactly_once.sensors.settings import WatchPolicy
from exactly_once.diagnosis import Diagnosis, Thresholds, state_of
from exactly_once.diagnosis.registry import SYMPTOMS
from exactly_once.inspection.findings import Owner

#: For this long, only the sensor exactly_once_run_failure acts on a failed run; after that the others do, should it be
#: switched off.
HANDOVER_S = 60.0

REQUESTED = "This sensor requested a recovery"


@dataclass(frozen=True)
class RecoveryNeed:
    """A recovery that a sensor needs.

    Attributes
    ----------
    incident : str
        The name of the incident, the same at every tick that sees it.
    cause : str
        The reason, in one sentence for people.
    restart_of : Run or None
        The failed run of the stream to restart; None: only bring the sink to rest.
    restart : Restart or None
        When, and its number in a row, of ``limit`` at most (0: any number).
    """

    incident: str
    cause: str
    restart_of: Run | None = None
    restart: Restart | None = None
    limit: int = 0


def need_of(why: Diagnosis, limits: Thresholds, now: float) -> RecoveryNeed | None:
    """Return the recovery that ends what a diagnosis says, once that has lasted for as long as its threshold; None if
    none does, or not yet. What began at another moment is another incident.
    """
    symptom = SYMPTOMS[why.code]
    if not symptom.recovers or not symptom.threshold or why.since is None:
        return None
    if now - why.since <= getattr(limits, symptom.threshold):
        return None
    which = why.evidence.get("run") or f"{why.since:.3f}"
    return RecoveryNeed(f"{state_of(why.code).replace(' ', '-')}/{which}", f"{why.code}: {why.text}")


def refusal(history: StreamHistory, need: RecoveryNeed, policy: WatchPolicy, owner_works: bool | None) -> str | None:
    """Say why no recovery may be launched now; None when one may.

    Parameters
    ----------
    owner_works : bool or None
        Whether the process of the sink's owner lives and writes; None when unknown. It matters for drivers that are not
        Dagster runs.
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
        return "the sink's owner is alive but is not a Dagster run; it will end its own transactions"
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
        age_s = history.now - (stream.ended or stream.created)
        if age_s < HANDOVER_S:
            theirs = "the sensor exactly_once_run_failure requests its recovery"
            return f"run {stream.name} failed {age_s:.0f} s ago, and {theirs}"
    return open_circuit(
        policy,
        [r.created for r in history.recoveries if not r.by_person and r.restart_of is None],
        history.lifetimes(),
        history.now,
    )


def ask(
    stream: StreamSpec, history: StreamHistory, need: RecoveryNeed, policy: WatchPolicy, owner: Owner | None
) -> tuple[dg.RunRequest | None, str]:
    """Request a recovery unless :func:`refusal` has a reason against it; return the request, and what the tick adds to
    its sentence.
    """
    refused = refusal(history, need, policy, owner.works if owner else None)
    if refused is not None and owner is not None and owner.frozen and not any(r.works for r in history.streams):
        refused = f"the {owner.claim.process}, which is not a Dagster run in progress, owns the sink and is frozen"
    if refused is None and owner is not None and owner.works is None:
        refused = (
            f"the {owner.claim.process} holds the sink, and this Dagster instance cannot tell whether that driver is "
            f"alive. If the driver is gone, launch the job {RECOVERY_JOB} with take_over and fence"
        )
    if refused is not None:
        return None, f" {withheld(refused)}"
    return recovery_request(stream, history, need), f" {REQUESTED}."


def withheld(refused: str) -> str:
    """Make the sentence of a tick from a reason of :func:`refusal`."""
    return f"This sensor requests no recovery now, because {refused.rstrip('. ')}."


def recovery_request(stream: StreamSpec, history: StreamHistory, need: RecoveryNeed) -> dg.RunRequest:
    """Make the request. Its key names the sink, the incident and the recovery before it, so a later incident and one of
    another stream get through, and the same one at the next tick does not.
    """
    before = history.recovery.run_id if history.recovery else "none"
    tags = {TAG_CAUSE: need.cause, TAG_RECOVERS: stream.sink_id}
    if need.restart_of is not None and need.restart is not None:
        at, attempt = need.restart
        tags |= {
            TAG_RESTART_OF: need.restart_of.run_id,
            TAG_ATTEMPT: str(attempt),
            TAG_NOT_BEFORE: f"{at:.3f}",
            TAG_RESTART: f"{attempt} of {need.limit}" if need.limit else f"{attempt}",
        }
    config = {"stream": stream.name, "reason": need.cause, "restart": need.restart_of is not None}
    return dg.RunRequest(
        run_key=f"{stream.sink_id}/{need.incident}/after {before}",
        job_name=RECOVERY_JOB,
        run_config={"ops": {RECOVERY_OP: {"config": config}}},
        tags=tags,
    )
