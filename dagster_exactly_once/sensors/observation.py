"""The transactions of a sink as an observation of their asset: numbers that Dagster plots, and tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import dagster as dg

from dagster_exactly_once.names import ALL_STREAMS
from dagster_exactly_once.resources.checkpoints import Standing
from dagster_exactly_once.sensors.runs import Run
from dagster_exactly_once.sensors.situation import Situation
from dagster_exactly_once.sensors.stream import StreamSpec
from exactly_once.ops.findings import Inspection, OpenTransaction, RecentDecision

#: The states of streams that a person may skip.
CALM = ("healthy", "idle", "catching up", "starting", "stopped", "never used")

#: Rows of each table; a sink has an open transaction for each part of its batch.
ROWS = 30

# Few and narrow columns: a table that is wider than the page pushes the ends of the sentences beside it out of sight.
_OPEN = ("transactional_id", "state", "verdict", "batch", "age", "partitions")
_RECENT = ("batch", "records", "decided_at", "prepare_ms", "decide_ms", "complete_ms", "by")


def transactions(asset: str, situation: Situation, state: str, sentence: str) -> dg.AssetObservation:
    """The observation of one tick. Names and types of the numbers never change: each is a plot."""
    found = situation.inspection
    metadata: dict[str, Any] = {
        "state": state,
        "owner": owner_sentence(found),
        "checkpoint": standing_sentence(situation.standing),
        "lag_offsets": situation.lag,
        "open_transactions": len(found.open),
        "oldest_transaction_age_s": round(found.oldest_s, 1),
        "lso_lag": situation.waiting,
        "decided_not_proven": len(found.decided),
        "lost_parts_written_again": found.log.tally.rewritten,
        "open": open_table(found),
        "recent": recent_table(found),
    }
    return dg.AssetObservation(asset, description=sentence, metadata=metadata)


def input_lags(stream: StreamSpec, lags: Sequence[int]) -> list[dg.AssetObservation]:
    """Observe each input topic with the stream's lag on it; each stream that reads the topic has a plot of its own."""
    return [
        dg.AssetObservation(dg.AssetKey.from_user_string(key), metadata={f"lag_offsets_{stream.name}": behind})
        for key, behind in zip(stream.source_keys, lags, strict=False)
    ]


@dataclass(frozen=True)
class StreamRow:
    """One stream in the table of all; ``situation`` is None of one that was never used, or could not be looked at.

    Attributes
    ----------
    run : Run or None
        The newest run of the stream.
    said : str
        The sentence of the tick.
    """

    stream: StreamSpec
    state: str
    situation: Situation | None
    run: Run | None
    said: str

    @property
    def cells(self) -> tuple[str, ...]:
        """Its cells, without the sentence: Dagster shows tables in a narrow column, and the row would fill the page."""
        found = self.situation.inspection if self.situation else None
        lag = f"{self.situation.lag:,}" if self.situation else ""
        count = str(len(found.open)) if found else ""
        oldest = f"{found.oldest_s:.0f} s" if found and found.open else ""
        run = f"{self.run.name} {self.run.status}" if self.run else ""
        return self.stream.name, self.state, lag, count, oldest, run, self.stream.sink_id


def all_streams(rows: Sequence[StreamRow], now: float) -> dg.AssetObservation:
    """The observation of all streams of the code location in one table, those that need somebody first; below it when
    they were looked at, a link to the newest run of each, and of those that need somebody the sentence and a link to
    the transactions. (Dagster shows no link in a cell.)
    """
    columns = ("stream", "state", "lag", "open", "oldest", "run", "sink")
    ordered = sorted(rows, key=lambda row: row.state in CALM)
    states = Counter(row.state for row in ordered)
    said = ", ".join(f"{count} {state}" for state, count in states.items())
    metadata: dict[str, Any] = {
        "streams": table(columns, [row.cells for row in ordered]),
        "looked_at": dg.MetadataValue.timestamp(now),
    }
    for row in ordered:
        if row.state not in CALM:
            metadata[f"{row.stream.name}: says"] = row.said
        if row.run is not None:
            metadata[f"{row.stream.name}: run"] = dg.MetadataValue.dagster_run(row.run.run_id)
        if row.state not in CALM:
            metadata[f"{row.stream.name}: look at"] = dg.MetadataValue.asset(
                dg.AssetKey.from_user_string(row.stream.asset)
            )
    moment = f"Looked at {when(round(now * 1000))} UTC"
    return dg.AssetObservation(ALL_STREAMS, description=f"{said}. {moment}.", metadata=metadata)


def open_table(found: Inspection) -> dg.TableMetadataValue:
    """Make the table of open transactions, oldest first, each with its age against its timeout."""
    return table(_OPEN, [_open_row(t) for t in found.open[:ROWS]])


def recent_table(found: Inspection) -> dg.TableMetadataValue:
    """Make the table of the newest decisions, newest first."""
    return table(_RECENT, [_recent_row(r) for r in found.recent[: -ROWS - 1 : -1]])


def owner_sentence(found: Inspection) -> str:
    """Describe the sink's owner, and whether its process is alive."""
    if found.owner is None:
        return "none: this sink was never used"
    claim = found.owner.claim
    alive = {True: "alive", False: "gone", None: "on another host, so its state is unknown"}[found.owner.alive]
    return f"{claim.purpose}, claim {claim.token}, {claim.process}: {alive}"


def standing_sentence(found: Standing) -> str:
    """Describe the checkpoint, beside the commit log."""
    batch = found.last_planned
    return {
        "unused": "no batch is planned yet",
        "settled": f"Spark has committed batch {batch}, and planned no other",
        "in flight": f"batch {batch} is planned and not decided",
        "in doubt": f"batch {batch} is decided, and Spark has not committed it yet",
        "checkpoint lost": "it lacks batches that are decided: it was deleted, restored or rewound",
        "foreign": "it is of another query than the sink",
        "torn": f"torn: {', '.join(found.torn)}",
    }[found.state]


def when(ms: int | None) -> str:
    """Format a moment for people, in UTC; empty for none."""
    return "" if ms is None else f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"


def _open_row(t: OpenTransaction) -> tuple[str, ...]:
    of_timeout = f" of {t.timeout_s:.0f} s ({100 * t.age_s / t.timeout_s:.0f} %)" if t.timeout_s > 0 else " s"
    batch = "" if t.batch_id is None else str(t.batch_id)
    partitions = ", ".join(f"{topic}-{p}" for topic, p in t.partitions)
    return t.transactional_id, t.state, t.verdict, batch, f"{t.age_s:.0f}{of_timeout}", partitions


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


def table(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> dg.TableMetadataValue:
    """Make a table of texts; Dagster needs its columns even without rows."""
    schema = dg.TableSchema([dg.TableColumn(c, "string") for c in columns])
    return dg.MetadataValue.table([dg.TableRecord(dict(zip(columns, row, strict=True))) for row in rows], schema)
