"""Find the writer of the batch in flight, or how the last writer ended."""

from __future__ import annotations

import dagster as dg

from dagster_exactly_once.checks.judgements import Writer
from dagster_exactly_once.declare.stream import Stream
from dagster_exactly_once.runs.history import StreamHistory, read_history
from dagster_exactly_once.runs.operator import alive_of
from exactly_once.inspection.findings import Owner
from exactly_once.inspection.sink import owner_of
from exactly_once.protocol.log_state import LogState


def writer_of(instance: dg.DagsterInstance, stream: Stream, log: LogState) -> Writer:
    """Return the writer of a stream's batch in flight, by its runs and by the process of the latest claim."""
    return judged(read_history(instance, stream.spec), owner_of(log, alive_of(instance)))


def judged(history: StreamHistory, owner: Owner | None) -> Writer:
    """Return the writer. Pure."""
    run = next((r for r in history.streams if r.works), None)
    if run is not None:
        return Writer(True, f"run {run.name}")
    if owner is not None and owner.works is not False:
        return Writer(owner.works, f"the {owner.claim.process}")
    return Writer(False, *_ended(history))


def _ended(history: StreamHistory) -> tuple[str, bool]:
    """Return how the last run ended and what happens next, and whether it failed."""
    run, why = history.stream, history.stream_failure
    recovering = next((r for r in history.recoveries if r.in_progress), None)
    then = f"recovery {recovering.name} is running" if recovering else "the sensors recover it and start it again"
    if run is None:
        return "its driver is gone; start the stream where it runs", True
    if run.waits:
        return f"run {run.name} waits in the queue, and continues with it", False
    if run.in_progress:
        return f"the process of run {run.name} is gone; {then}", True
    if run.status != "FAILURE":
        how = "was terminated" if run.status == "CANCELED" else "has ended"
        return f"run {run.name} {how}; the next start continues with it", False
    code = f" ({why.code})" if why else ""
    if why is None or why.unwanted or not why.heals:
        way_out = why.way_out.rstrip(". ") if why and why.way_out else f"read its log, then launch {run.job}"
        return f"run {run.name} failed{code}, and no sensor starts the stream again: {way_out}", True
    return f"run {run.name} failed{code}; {then}", True
