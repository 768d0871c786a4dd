"""The state of a stream on Dagster's pages: the check ``health``, numbers that Dagster plots, and tables."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import dagster as dg

from dagster_exactly_once.names import ALL_STREAMS
from dagster_exactly_once.runs.runs import Run
from dagster_exactly_once.runs.spec import StreamSpec
from dagster_exactly_once.sensors.sink_state import SinkState
from dagster_exactly_once.sensors.tick import Memory, Tick
from dagster_exactly_once.tables import as_metadata, table
from exactly_once.errors import ExactlyOnceError
from exactly_once.inspection.findings import RecentDecision
from exactly_once.inspection.words import duration, owner_sentence, upper, utc
from exactly_once.tools.diagnosis import Diagnosis, Severity, SinkFacts, Thresholds, health, state_of
from exactly_once.tools.diagnosis.registry import SYMPTOMS
from exactly_once.tools.operation.tables import ROWS, open_transactions

#: The name of the check, on the asset of the stream's first output.
HEALTH = "health"

#: The last decided batch in the check's metadata; the progress of a checkpoint has it under the same name.
LAST_BATCH = "last_decided"

#: States that need nobody, unless they are errors: the stream was never started, or a person has ended its run.
_AT_REST = ("HEALTH-NEVER-USED", "HEALTH-STOPPED")


# Few and narrow columns: a table that is wider than the page pushes the ends of the sentences beside it out of sight.
_STREAMS = ("stream", "state", "lag", "open", "oldest", "run", "sink")
_RECENT = ("batch", "records", "decided_at", "prepare_ms", "decide_ms", "complete_ms", "by")


def calm(state: Diagnosis) -> bool:
    """Return whether a person may skip a stream in this state."""
    return state.severity is Severity.OK or (state.code in _AT_REST and state.severity is Severity.WARN)


def as_check(state: Diagnosis, metadata: Mapping[str, Any], more: str = "") -> dict[str, Any]:
    """Return what a check with this diagnosis shows, with the sentences that follow the diagnosis."""
    grave = state.severity is Severity.ERROR
    return {
        "passed": state.severity is Severity.OK,
        "severity": dg.AssetCheckSeverity.ERROR if grave else dg.AssetCheckSeverity.WARN,
        "description": f"{state.text}{more}",
        "metadata": metadata,
    }


def health_as_check(
    stream: StreamSpec, state: Diagnosis, sink_state: SinkState, run: Run | None, more: str = ""
) -> dict[str, Any]:
    """Return what the check ``health`` shows; ``run`` is the newest one of the stream."""
    metadata = described(state)
    if sink_state.lags and sink_state.measured:  # when the lag in the sentence was
        metadata["lag_measured"] = dg.MetadataValue.timestamp(sink_state.measured)
    if sink_state.progress.last_decided is not None:
        metadata[LAST_BATCH] = dg.MetadataValue.int(sink_state.progress.last_decided)
    if run is not None:
        metadata["run"] = dg.MetadataValue.dagster_run(run.run_id)
    metadata["transactions"] = dg.MetadataValue.asset(dg.AssetKey.from_user_string(stream.asset))
    return as_check(state, metadata, more)


def described(state: Diagnosis) -> dict[str, dg.MetadataValue]:
    """Return the state of a stream as metadata: its name, its code, what ends it, and why the newest run failed."""
    found = {"state": state_of(state.code), "code": state.code, "way_out": state.remedy}
    found["failure"] = state.evidence.get("failure", "")
    return {name: dg.MetadataValue.text(text) for name, text in found.items() if text}


def trouble(facts: SinkFacts, limits: Thresholds) -> Diagnosis | None:
    """Return what a person must know of a stream's state, should it stay; None when nothing.

    By the lag alone whether it lags: between two batches a stream that falls behind may look as if it caught up. A
    failed run has a notice of its own.
    """
    assert facts.stream is not None
    state = health(replace(facts, stream=replace(facts.stream, last_lag=None)), limits)
    silent = calm(state) or state.code.startswith(("HEALTH-FAILED", "HEALTH-CHECKPOINT-"))
    return None if silent else state


def transactions(
    asset: str, sink_state: SinkState, facts: SinkFacts, state: Diagnosis, more: str
) -> dg.AssetObservation:
    """Return the observation of one tick. Names and types of the numbers never change: each is a plot."""
    inspection, worker = sink_state.inspection, facts.worker
    begins = f"{upper(worker.name)} claims the sink with its first batch. The last claim: " if worker else ""
    metadata: dict[str, Any] = {
        **described(state),
        "owner": f"{begins if worker and not worker.begun else ''}{owner_sentence(inspection)}",
        "checkpoint": checkpoint_sentence(sink_state),
        "lag_offsets": sink_state.lag,
        "lag_measured": dg.MetadataValue.timestamp(sink_state.measured),
        "open_transactions": len(inspection.open),
        "oldest_transaction_age_s": round(inspection.oldest_s, 1),
        "lso_lag": sum(b.waiting for b in inspection.blocked),  # markers included
        "decided_not_proven": len(inspection.decided),
        "lost_parts_written_again": inspection.log.tally.rewritten,
        **as_metadata({"open": open_transactions(inspection)}),
        "recent": table(_RECENT, [_recent_row(r) for r in inspection.recent[: -ROWS - 1 : -1]]),
    }
    return dg.AssetObservation(asset, description=f"{state.text}{more}", metadata=metadata)


def input_lags(stream: StreamSpec, lags: Sequence[int], measured: float) -> list[dg.AssetObservation]:
    """Observe each input topic with the stream's lag on it; each stream that reads the topic has a plot of its own."""
    when_asked = dg.MetadataValue.timestamp(measured)
    return [
        dg.AssetObservation(
            dg.AssetKey.from_user_string(key),
            metadata={f"lag_offsets_{stream.name}": behind, f"lag_measured_{stream.name}": when_asked},
        )
        for key, behind in zip(stream.source_keys, lags, strict=False)
    ]


def all_streams(
    tick: Tick, streams: Sequence[StreamSpec], found: Mapping[str, SinkState | ExactlyOnceError]
) -> dg.AssetObservation:
    """Return the observation of all streams of the code location in one table, those that need somebody first.

    Below the table: when their lag was measured, a link to the newest run of each, and of those that need somebody the
    sentence and a link to the transactions. (Dagster shows no link in a cell.)
    """
    rows, below = [], dict[str, Any]()
    read = {sink_id: state for sink_id, state in found.items() if isinstance(state, SinkState)}
    calm = {s.sink_id for s in streams if s.sink_id in read and tick.memory[s.sink_id].get("calm")}
    for stream in sorted(streams, key=lambda s: s.sink_id in calm):
        run = tick.summaries[stream.sink_id].stream
        rows.append(_row(stream, tick.memory[stream.sink_id], read.get(stream.sink_id), run))
        if stream.sink_id not in calm:
            below[f"{stream.name}: says"] = tick.judged[stream.sink_id].message
        if run is not None:
            below[f"{stream.name}: run"] = dg.MetadataValue.dagster_run(run.run_id)
        if stream.sink_id not in calm:
            below[f"{stream.name}: asset"] = dg.MetadataValue.asset(dg.AssetKey.from_user_string(stream.asset))
    now = min((state.measured for state in read.values() if state.measured), default=time.time())
    said = ", ".join(f"{count} {state}" for state, count in Counter(row[1] for row in rows).items())
    metadata = {"streams": table(_STREAMS, rows), "looked_at": dg.MetadataValue.timestamp(now), **below}
    description = f"{said}. Checked at {utc(round(now * 1000))} UTC."
    return dg.AssetObservation(ALL_STREAMS, description=description, metadata=metadata)


def _row(stream: StreamSpec, memory: Memory, sink_state: SinkState | None, run: Run | None) -> tuple[str, ...]:
    """Return a stream's cells, without the sentence, which would fill the page."""
    state = str(memory.get("state", "")) if sink_state is not None else "not checked"
    found = sink_state.inspection if sink_state else None
    return (
        stream.name,
        f"failed ({memory['code']})" if state == "failed" else state,
        f"{sink_state.lag:,}" if sink_state and sink_state.lags else "",
        str(len(found.open)) if found and found.owner else "",
        duration(found.oldest_s) if found and found.open else "",
        f"{run.name} {run.status}" if run else "",
        stream.sink_id,
    )


def checkpoint_sentence(found: SinkState) -> str:
    """Describe the checkpoint, beside the commit log."""
    facts, batch = SinkFacts(found.inspection, checkpoint=found.checkpoint), found.progress.last_planned
    for code in ("HEALTH-CHECKPOINT-TORN", "HEALTH-CHECKPOINT-FOREIGN", "HEALTH-CHECKPOINT-LOST"):
        for wrong in SYMPTOMS[code].find(facts, Thresholds()):
            return f"{wrong.code}: {wrong.sentence}"
    return {
        "settled": f"Spark has committed batch {batch}, and planned no other",
        "in flight": f"batch {batch} is planned and not decided",
        "in doubt": f"batch {batch} is decided, and Spark has not committed it yet",
    }.get(found.progress.state, "no batch is planned yet")


def _recent_row(r: RecentDecision) -> tuple[str, ...]:
    mark, d = r.mark, r.decision
    durations = (mark.prepare_ms, mark.decide_ms, mark.complete_ms) if mark else (-1, -1, -1)
    by = "" if mark is None else "its decider" if mark.token == d.token else "a later owner"
    return (
        str(d.batch_id),
        f"{d.records:,}",
        utc(r.decided_ms),
        *("" if ms < 0 else str(ms) for ms in durations),
        by,
    )
