"""The transactions of a sink as an observation of their asset: numbers that Dagster plots, and tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg

from dagster_exactly_once.names import ALL_STREAMS
from dagster_exactly_once.runs.runs import Run
from dagster_exactly_once.runs.spec import StreamSpec
from dagster_exactly_once.sensors.health import described
from dagster_exactly_once.sensors.sink_state import SinkState
from dagster_exactly_once.tables import ROWS, open_table, table, when
from exactly_once.diagnosis import Diagnosis, SinkFacts, Thresholds
from exactly_once.diagnosis.registry import SYMPTOMS
from exactly_once.inspection.findings import RecentDecision
from exactly_once.inspection.words import owner_sentence

# Few and narrow columns: a table that is wider than the page pushes the ends of the sentences beside it out of sight.
_RECENT = ("batch", "records", "decided_at", "prepare_ms", "decide_ms", "complete_ms", "by")


def transactions(asset: str, sink_state: SinkState, state: Diagnosis, more: str) -> dg.AssetObservation:
    """Return the observation of one tick. Names and types of the numbers never change: each is a plot."""
    found = sink_state.inspection
    metadata: dict[str, Any] = {
        **described(state),
        "owner": owner_sentence(found),
        "checkpoint": checkpoint_sentence(sink_state),
        "lag_offsets": sink_state.lag,
        "lag_measured": dg.MetadataValue.timestamp(sink_state.measured),
        "open_transactions": len(found.open),
        "oldest_transaction_age_s": round(found.oldest_s, 1),
        "lso_lag": sink_state.waiting,
        "decided_not_proven": len(found.decided),
        "lost_parts_written_again": found.log.tally.rewritten,
        "open": open_table(found),
        "recent": table(_RECENT, [_recent_row(r) for r in found.recent[: -ROWS - 1 : -1]]),
    }
    return dg.AssetObservation(asset, description=f"{state.text}{more}", metadata=metadata)


def input_lags(stream: StreamSpec, lags: Sequence[int], measured: float) -> list[dg.AssetObservation]:
    """Observe each input topic with the stream's lag on it, and when that was measured; each stream that reads the
    topic has a plot of its own.
    """
    when_asked = dg.MetadataValue.timestamp(measured)
    return [
        dg.AssetObservation(
            dg.AssetKey.from_user_string(key),
            metadata={f"lag_offsets_{stream.name}": behind, f"lag_measured_{stream.name}": when_asked},
        )
        for key, behind in zip(stream.source_keys, lags, strict=False)
    ]


@dataclass(frozen=True)
class StreamRow:
    """One stream in the table of all.

    Attributes
    ----------
    sink_state : SinkState or None
        None of one that could not be looked at.
    run : Run or None
        The newest run of the stream.
    message : str
        What this tick says of it.
    calm : bool
        Whether a person may skip it.
    """

    stream: StreamSpec
    state: str
    sink_state: SinkState | None
    run: Run | None
    message: str
    calm: bool

    @property
    def cells(self) -> tuple[str, ...]:
        """Its cells, without the sentence: Dagster shows tables in a narrow column, and the row would fill the page."""
        found = self.sink_state.inspection if self.sink_state else None
        read = self.sink_state is not None and self.sink_state.lags
        lag = f"{self.sink_state.lag:,}" if self.sink_state and read else ""
        count = str(len(found.open)) if found and found.owner else ""
        oldest = f"{found.oldest_s:.0f} s" if found and found.open else ""
        run = f"{self.run.name} {self.run.status}" if self.run else ""
        return self.stream.name, self.state, lag, count, oldest, run, self.stream.sink_id


def all_streams(rows: Sequence[StreamRow], now: float) -> dg.AssetObservation:
    """Return the observation of all streams of the code location in one table, those that need somebody first.

    Below the table: when their lag was measured, a link to the newest run of each, and of those that need somebody the
    sentence and a link to the transactions. (Dagster shows no link in a cell.)
    """
    columns = ("stream", "state", "lag", "open", "oldest", "run", "sink")
    ordered = sorted(rows, key=lambda row: row.calm)
    states = Counter(row.state for row in ordered)
    said = ", ".join(f"{count} {state}" for state, count in states.items())
    metadata: dict[str, Any] = {
        "streams": table(columns, [row.cells for row in ordered]),
        "looked_at": dg.MetadataValue.timestamp(now),
    }
    for row in ordered:
        if not row.calm:
            metadata[f"{row.stream.name}: says"] = row.message
        if row.run is not None:
            metadata[f"{row.stream.name}: run"] = dg.MetadataValue.dagster_run(row.run.run_id)
        if not row.calm:
            metadata[f"{row.stream.name}: asset"] = dg.MetadataValue.asset(
                dg.AssetKey.from_user_string(row.stream.asset)
            )
    moment = f"Checked at {when(round(now * 1000))} UTC"
    return dg.AssetObservation(ALL_STREAMS, description=f"{said}. {moment}.", metadata=metadata)


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
        when(r.decided_ms),
        *("" if ms < 0 else str(ms) for ms in durations),
        by,
    )
