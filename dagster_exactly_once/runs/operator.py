"""The operator of a sink: the Dagster instance and the run that its driver works for, as its claim says; and the facts
of a stream that only this instance knows: its run in progress, its newest failure.

A run's status is the truth about the runs of one's own instance, on whatever host they are. About a run of another
instance, or of no instance, this one knows only what the host's process table shows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import dagster as dg

from dagster_exactly_once.private import instance_id
from dagster_exactly_once.runs.history import StreamHistory
from dagster_exactly_once.runs.location import is_of
from dagster_exactly_once.runs.process import outlives, process_of
from dagster_exactly_once.runs.runs import Run
from dagster_exactly_once.runs.spec import StreamSpec
from dagster_exactly_once.runs.tags import TAG_PID
from exactly_once.inspection.findings import Inspection, Owner
from exactly_once.inspection.processes import Frozen, Process, alive, belongs_to
from exactly_once.protocol.records import Claim
from exactly_once.tools.diagnosis import Diagnosis, SinkFacts, Thresholds
from exactly_once.tools.diagnosis.facts import StreamFacts, Worker
from exactly_once.tools.diagnosis.registry import SYMPTOMS
from exactly_once.tools.operation.recover import LEAVING_S

_DAGSTER = "dagster"


def operator_of(instance: dg.DagsterInstance, run_id: str) -> str:
    """Return what a run of ``instance`` writes into its claims; all hosts of an instance share the id in it."""
    return f"{_DAGSTER}/{instance_id(instance)}/{run_id}"


def alive_of(instance: dg.DagsterInstance) -> Callable[[Claim], bool | None]:
    """Return what says whether the driver of a claim lives, by the status of its run, whatever location launched it; of
    a run that was ended from outside, by its process, as long as that works here.

    It returns None for claims that no run of ``instance`` made, and for runs that were deleted.
    """

    def alive(claim: Claim) -> bool | None:
        run = instance.get_run_by_id(_run_of(instance, claim)) if is_ours(instance, claim) else None
        if run is None:
            return None
        return outlives(instance, run) if run.is_finished else process_of(run).alive is not False

    return alive


def is_ours(instance: dg.DagsterInstance, claim: Claim, location: str = "") -> bool:
    """Return whether a run of ``instance`` made a claim, and no other code location than ``location`` launched it."""
    run_id = _run_of(instance, claim)
    run = instance.get_run_by_id(run_id) if location and run_id != claim.operator else None
    return run_id != claim.operator and (run is None or is_of(run, location))


def is_foreign(instance: dg.DagsterInstance, claim: Claim, location: str = "") -> bool:
    """Return whether somebody else said that the claim is theirs."""
    return bool(claim.operator) and not is_ours(instance, claim, location)


def _run_of(instance: dg.DagsterInstance, claim: Claim) -> str:
    """Return the id of the run of ``instance`` that made a claim; the claim's whole operator when none did."""
    return claim.operator.removeprefix(operator_of(instance, ""))


def stream_facts(
    instance: dg.DagsterInstance, stream: StreamSpec, history: StreamHistory, owner: Owner | None, **input_facts: Any
) -> StreamFacts:
    """Return the facts of a stream; ``input_facts`` are the fields that the runs do not tell."""
    why, run = history.stream_failure, run_at_work(history, owner)
    worker = worker_of(run, history, owner) if run is not None else None
    if run is not None and worker is not None and not worker.waits and not worker.begun:
        worker = replace(worker, age_s=max(worker.age_s, history.now - launched(instance, run, history.now)))
    alone = worker is None and owner is not None and owner.works
    return StreamFacts(
        worker=worker,
        failed=why if why is not None and not why.unwanted else None,
        claimed_here=owner is not None and is_ours(instance, owner.claim, history.location),
        orphaned=_orphaned(instance, owner.claim) if alone and owner is not None else "",
        has_run=history.stream is not None,
        managed=stream.managed,
        **input_facts,
    )


def _orphaned(instance: dg.DagsterInstance, claim: Claim) -> str:
    """Return what became of the run of a driver that works; "" of no run of ``instance``, or one that ends now."""
    if not is_ours(instance, claim):
        return ""
    run_id = _run_of(instance, claim)
    record = instance.get_run_record_by_id(run_id)
    if record is None:
        return f"run {run_id[:8]} was deleted from this Dagster instance"
    run = record.dagster_run
    ended = run.is_finished and time.time() - (record.end_time or 0.0) > LEAVING_S
    return f"run {run_id[:8]} is {run.status.value}" if ended else ""


def worker_of(run: Run, history: StreamHistory, owner: Owner | None) -> Worker:
    """Return a run of the stream that is in progress as the diagnosis takes it."""
    return Worker(
        f"run {run.name}",
        works=run.alive,
        owns=_owns(run, owner, history),
        begun=_begun(run, owner),
        age_s=max(0.0, history.now - (run.created if run.waits else run.started or history.now)),
        waits=run.status if run.waits else "",
        frozen=run.frozen,
    )


def launched(instance: dg.DagsterInstance, run: Run, now: float) -> float:
    """Return when the process of a run was launched: behind the queue, and before its first event; ``now`` where
    Dagster does not tell. A start that is counted from two moments seems to begin anew.
    """
    starting = dg.DagsterEventType.PIPELINE_STARTING
    events = instance.get_records_for_run(run.run_id, of_type=starting).records
    return min((event.timestamp for event in events), default=now)


def run_at_work(history: StreamHistory, owner: Owner | None) -> Run | None:
    """Return the run of the stream that is in progress: the one that has claimed the sink, where several are."""
    started = [r for r in history.streams if r.in_progress and not r.waits]
    claimed = (r for r in started if owner is not None and r.alive is not False and works_for(owner.claim, r))
    waiting = (r for r in history.streams if r.waits)
    return next(claimed, started[0] if started else next(waiting, None))


def works_for(claim: Claim, run: Run) -> bool | None:
    """Return whether a run made a claim, by the claim's operator, or by the run's process; None: unknown."""
    if claim.operator:
        return claim.operator.rpartition("/")[2] == run.run_id
    pid = run.tags.get(TAG_PID, "").partition("@")[0]
    return belongs_to(claim.pid, int(pid)) if pid.isdigit() and alive(Process.of(claim)) is not None else None


def frozen(name: str, processes: Sequence[Frozen], sink_id: str | None = None) -> Diagnosis:
    """Return the diagnosis of a run whose ``processes`` are frozen; without the sink's id, its remedy says ``SINK``."""
    facts = SinkFacts(Inspection(sink_id or "SINK"), stream=StreamFacts(Worker(name, frozen=tuple(processes))))
    return next(SYMPTOMS["HEALTH-FROZEN"].find(facts, Thresholds()))


def _begun(run: Run, owner: Owner | None) -> bool:
    """Return whether a run has claimed the sink, which it does when its first batch begins; or somebody else since."""
    if owner is None or run.waits:
        return False
    claim = owner.claim
    newer = run.started is not None and claim.claimed_ms / 1000 >= run.started
    return (newer and claim.purpose != "recovery") or bool(claim.operator and works_for(claim, run))


def _owns(run: Run, owner: Owner | None, history: StreamHistory) -> bool | None:
    if owner is None or run.started is None or owner.claim.claimed_ms / 1000 < run.started:
        return None
    if owner.alive is None or run.alive is None:
        return None
    recovering = any(r.in_progress for r in history.recoveries) or history.now - run.started <= Thresholds().starting_s
    if owner.claim.purpose == "recovery" and recovering:
        return None  # the run may have been started beside it, and claim the sink after it
    return owner.alive and works_for(owner.claim, run)
