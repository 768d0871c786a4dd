"""Tables about the transactions of a sink, for the terminal and Dagster."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from exactly_once.inspection.findings import Inspection, OpenTransaction
from exactly_once.inspection.words import utc
from exactly_once.protocol.part_state import PartState
from exactly_once.protocol.records import Decision
from exactly_once.tools.operation.model import ResultTable, table
from exactly_once.txn.coordinators import Description

#: Most rows of the table of open transactions: a sink has one for each part of its batch.
ROWS = 30


def inspected(inspection: Inspection) -> dict[str, ResultTable]:
    """Make the tables of open transactions, unproven decisions and waiting readers."""
    return {"open": open_transactions(inspection), "decided": _decided(inspection), "blocked": _blocked(inspection)}


def open_transactions(inspection: Inspection) -> ResultTable:
    """Make the table of open transactions, oldest first, each with its age against its timeout."""
    return table(  # few and narrow columns: a wider table pushes the ends of the sentences beside it out of sight
        inspection.open[:ROWS],
        transactional_id=lambda t: t.transactional_id,
        state=lambda t: t.state,
        verdict=lambda t: t.verdict,
        batch=lambda t: "" if t.batch_id is None else t.batch_id,
        age=_age,
        partitions=lambda t: _places(t.partitions),
    )


def completed(decisions: Sequence[Decision]) -> ResultTable:
    return table(
        decisions,
        batch=lambda d: d.batch_id,
        query=lambda d: d.write_id or d.query_id,
        parts=lambda d: d.part_count,
        records=lambda d: f"{d.records:,}",
        topics=lambda d: ", ".join(d.topics),
        decided_at=lambda d: utc(d.decided_ms),
    )


def described(transactions: Sequence[Description]) -> ResultTable:
    """Make the table of transactions, by their coordinators."""
    return table(
        transactions,
        transactional_id=lambda t: t.transactional_id,
        state=lambda t: t.state,
        began_at=lambda t: utc(t.started_ms if t.started_ms >= 0 else None),
        producer=lambda t: f"{t.producer_id}.{t.producer_epoch}",
        partitions=lambda t: _places(t.partitions),
    )


def _decided(inspection: Inspection) -> ResultTable:
    return table(
        inspection.decided,
        batch=lambda d: d.batch_id,
        query=lambda d: d.query_id,
        claim=lambda d: d.token,
        decided_at=lambda d: utc(d.decided_ms),
        waiting=lambda d: d.count(PartState.DECIDED),
        committed=lambda d: d.count(PartState.COMMITTED),
        lost=lambda d: d.count(PartState.LOST),
        unknown=lambda d: d.count("unknown"),
        other_outputs=lambda d: ", ".join(f"{output}: {count}" for output, count in d.unasked.items()),
    )


def _blocked(inspection: Inspection) -> ResultTable:
    return table(
        inspection.blocked,
        partition=lambda b: f"{b.topic}-{b.partition}",
        waiting_offsets=lambda b: f"{b.waiting:,}",
        held_by=lambda b: "this sink" if b.ours else "another application",
        groups=lambda b: ", ".join(b.groups),
    )


def _age(t: OpenTransaction) -> str:
    of_timeout = f" of {t.timeout_s:.0f} s ({100 * t.age_s / t.timeout_s:.0f} %)" if t.timeout_s > 0 else " s"
    return f"{t.age_s:.0f}{of_timeout}"


def _places(partitions: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{topic}-{p}" for topic, p in partitions)
