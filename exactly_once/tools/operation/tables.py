"""Tables about the transactions of a sink, for the terminal and Dagster."""

from __future__ import annotations

from collections.abc import Sequence

from exactly_once.inspection.findings import Inspection, OpenTransaction
from exactly_once.inspection.words import utc
from exactly_once.protocol.part_state import PartState
from exactly_once.protocol.records import Decision
from exactly_once.tools.operation.model import ResultTable
from exactly_once.txn.coordinators import Description

#: Most rows of the table of open transactions: a sink has one for each part of its batch.
ROWS = 30


def inspected(inspection: Inspection) -> dict[str, ResultTable]:
    """Make the tables of open transactions, unproven decisions and waiting readers."""
    return {"open": open_transactions(inspection), "decided": _decided(inspection), "blocked": _blocked(inspection)}


def open_transactions(inspection: Inspection) -> ResultTable:
    """Make the table of open transactions, oldest first, each with its age against its timeout."""
    # few and narrow columns: a wider table pushes the ends of the sentences beside it out of sight
    columns = ("transactional_id", "state", "verdict", "batch", "age", "partitions")
    return ResultTable(columns, [_open_row(t) for t in inspection.open[:ROWS]])


def completed(decisions: Sequence[Decision]) -> ResultTable:
    return ResultTable(
        ("batch", "query", "parts", "records", "topics", "decided_at"),
        [
            (
                str(d.batch_id),
                d.write_id or d.query_id,
                str(d.part_count),
                f"{d.records:,}",
                ", ".join(d.topics),
                utc(d.decided_ms),
            )
            for d in decisions
        ],
    )


def described(transactions: Sequence[Description]) -> ResultTable:
    """Make the table of transactions, by their coordinators."""
    return ResultTable(
        ("transactional_id", "state", "began_at", "producer", "partitions"),
        [
            (
                t.transactional_id,
                t.state,
                utc(t.started_ms if t.started_ms >= 0 else None),
                f"{t.producer_id}.{t.producer_epoch}",
                ", ".join(f"{topic}-{p}" for topic, p in t.partitions),
            )
            for t in transactions
        ],
    )


def _decided(inspection: Inspection) -> ResultTable:
    states = (PartState.DECIDED, PartState.COMMITTED, PartState.LOST, "unknown")
    return ResultTable(
        ("batch", "query", "claim", "decided_at", "waiting", "committed", "lost", "unknown", "other_outputs"),
        [
            (
                str(d.batch_id),
                d.query_id,
                str(d.token),
                utc(d.decided_ms),
                *(str(d.count(state)) for state in states),
                ", ".join(f"{output}: {count}" for output, count in d.unasked.items()),
            )
            for d in inspection.decided
        ],
    )


def _blocked(inspection: Inspection) -> ResultTable:
    return ResultTable(
        ("partition", "waiting_offsets", "held_by", "groups"),
        [
            (
                f"{b.topic}-{b.partition}",
                f"{b.waiting:,}",
                "this sink" if b.ours else "another application",
                ", ".join(b.groups),
            )
            for b in inspection.blocked
        ],
    )


def _open_row(t: OpenTransaction) -> tuple[str, ...]:
    of_timeout = f" of {t.timeout_s:.0f} s ({100 * t.age_s / t.timeout_s:.0f} %)" if t.timeout_s > 0 else " s"
    batch = "" if t.batch_id is None else str(t.batch_id)
    partitions = ", ".join(f"{topic}-{p}" for topic, p in t.partitions)
    return t.transactional_id, t.state, t.verdict, batch, f"{t.age_s:.0f}{of_timeout}", partitions
