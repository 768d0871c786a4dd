"""The tables of a recovery's steps, as the UI shows them."""

from __future__ import annotations

from collections.abc import Sequence

import dagster as dg

from dagster_exactly_once.tables import open_table, table, when
from exactly_once.inspection.findings import Inspection
from exactly_once.protocol.part_state import PartState
from exactly_once.protocol.records import Decision
from exactly_once.txn.coordinators import Description


def inspected(found: Inspection) -> dict[str, dg.MetadataValue]:
    """Make the tables of open transactions, unproven decisions and waiting readers."""
    return {"open": open_table(found), "decided": _decided(found), "blocked": _blocked(found)}


def completed(decisions: Sequence[Decision]) -> dg.MetadataValue:
    """Make the table of completed batches."""
    return table(
        ("batch", "query", "parts", "records", "topics", "decided_at"),
        [
            (
                str(d.batch_id),
                d.write_id or d.query_id,
                str(d.part_count),
                f"{d.records:,}",
                ", ".join(d.topics),
                when(d.decided_ms),
            )
            for d in decisions
        ],
    )


def rolled_back(parts: Sequence[tuple[str, ...]]) -> dg.MetadataValue:
    """Make the table of undecided parts that a recovery rolled back: participant and name of each."""
    return table(("output", "part"), [*parts])


def described(transactions: Sequence[Description]) -> dg.MetadataValue:
    """Make the table of transactions, by their coordinators."""
    return table(
        ("transactional_id", "state", "began_at", "producer", "partitions"),
        [
            (
                t.transactional_id,
                t.state,
                when(t.started_ms if t.started_ms >= 0 else None),
                f"{t.producer_id}.{t.producer_epoch}",
                ", ".join(f"{topic}-{p}" for topic, p in t.partitions),
            )
            for t in transactions
        ],
    )


def _decided(found: Inspection) -> dg.MetadataValue:
    return table(
        ("batch", "query", "claim", "decided_at", "waiting", "committed", "lost", "unknown", "other_outputs"),
        [
            (
                str(d.batch_id),
                d.query_id,
                str(d.token),
                when(d.decided_ms),
                *(str(d.count(state)) for state in (PartState.DECIDED, PartState.COMMITTED, PartState.LOST, "unknown")),
                ", ".join(f"{output}: {count}" for output, count in d.unasked.items()),
            )
            for d in found.decided
        ],
    )


def _blocked(found: Inspection) -> dg.MetadataValue:
    return table(
        ("partition", "waiting_offsets", "held_by", "groups"),
        [
            (
                f"{b.topic}-{b.partition}",
                f"{b.waiting:,}",
                "this sink" if b.ours else "another application",
                ", ".join(b.groups),
            )
            for b in found.blocked
        ],
    )
