"""The transactions of a sink as an observation of their asset: numbers that Dagster plots, and tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import dagster as dg

from dagster_exactly_once.names import ALL_STREAMS
from dagster_exactly_once.sensors.situation import Situation
from exactly_once.ops.findings import Inspection, OpenTransaction, RecentDecision

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
        "checkpoint": situation.standing.state,
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


def stream_row(name: str, sink_id: str, state: str, situation: Situation | None) -> tuple[str, ...]:
    """Make the row of one stream; without a situation, of a sink that was never used or not reached in time."""
    if situation is None:
        return name, sink_id, state, "", "", "", ""
    found = situation.inspection
    oldest = f"{found.oldest_s:.0f} s" if found.open else ""
    return name, sink_id, state, f"{situation.lag:,}", str(len(found.open)), oldest, owner_sentence(found)


def all_streams(rows: Sequence[tuple[str, ...]]) -> dg.AssetObservation:
    """The observation of all streams of the code location, in one table."""
    columns = ("stream", "sink", "state", "lag_offsets", "open_transactions", "oldest", "owner")
    states = Counter(row[2] for row in rows)
    said = ", ".join(f"{count} {state}" for state, count in states.most_common())
    return dg.AssetObservation(ALL_STREAMS, description=f"{said}.", metadata={"streams": table(columns, list(rows))})


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
    return f"{claim.purpose}, claim {claim.token}, process {claim.process}: {alive}"


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
