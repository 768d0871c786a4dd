"""The facts of a stream that Dagster alone knows: its run in progress, its newest failure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dagster_exactly_once.runs.history import StreamHistory
from dagster_exactly_once.runs.runs import Run
from dagster_exactly_once.runs.spec import StreamSpec
from dagster_exactly_once.runs.tags import TAG_PID
from exactly_once.diagnosis import Diagnosis, SinkFacts, Thresholds
from exactly_once.diagnosis.facts import StreamFacts, Worker
from exactly_once.diagnosis.registry import SYMPTOMS
from exactly_once.inspection.findings import Inspection, Owner
from exactly_once.inspection.processes import Frozen, Process, alive, belongs_to
from exactly_once.protocol.records import Claim


def stream_facts(
    stream: StreamSpec, history: StreamHistory, owner: Owner | None, claimed_here: bool, **input_facts: Any
) -> StreamFacts:
    """Return the facts of a stream.

    Parameters
    ----------
    claimed_here : bool
        Whether a run of this instance made the owner's claim.
    **input_facts
        The other fields of :class:`StreamFacts`, which the runs do not tell.
    """
    why = history.stream_failure
    return StreamFacts(
        worker=worker_of(history, owner),
        failed=why if why is not None and not why.unwanted else None,
        claimed_here=claimed_here,
        has_run=history.stream is not None,
        managed=stream.managed,
        **input_facts,
    )


def worker_of(history: StreamHistory, owner: Owner | None) -> Worker | None:
    """Return the run of the stream that is in progress: the one that has claimed the sink, where several are."""
    run = run_at_work(history, owner)
    if run is None:
        return None
    return Worker(
        f"run {run.name}",
        works=run.alive,
        owns=_owns(run, owner, history),
        begun=_begun(run, owner),
        age_s=max(0.0, history.now - (run.started or run.created)),
        waits=run.status if run.waits else "",
        frozen=run.frozen,
    )


def run_at_work(history: StreamHistory, owner: Owner | None) -> Run | None:
    """Return the run of :func:`worker_of`."""
    started = [r for r in history.streams if r.in_progress and not r.waits]
    claimed = (r for r in started if owner is not None and r.alive is not False and works_for(owner.claim, r))
    waiting = (r for r in history.streams if r.waits)
    return next(claimed, started[0] if started else next(waiting, None))


def works_for(claim: Claim, run: Run) -> bool | None:
    """Return whether a run made a claim: by the claim's operator, else by the process that the run is, or the parent
    of; None when unknown.
    """
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
