"""The end of one transaction, by its id: a commit if it is decided, an abort by a recovery if it is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from exactly_once.inspection.words import plural
from exactly_once.operation.model import (
    Operation,
    OperationContext,
    OperationOutcome,
    OperationStep,
    force_parameter,
    parameter,
)
from exactly_once.operation.recover import left
from exactly_once.operation.rules import name_of, part_sink
from exactly_once.operation.transactions import abort, commit


@dataclass(frozen=True, kw_only=True)
class TransactionParameters:
    """The parameters of a commit or an abort of one transaction."""

    id: str = parameter("", "The transactional id of a part.", "id", metavar="ID", chooses=True)
    force: str = force_parameter("", "The phrase that overrules a refusal.")


def _examine(context: OperationContext, p: TransactionParameters) -> OperationOutcome:
    return OperationOutcome(p.id, f"{p.id} is a transaction of sink {part_sink(p.id)}.")


def _commit(context: OperationContext, p: TransactionParameters, before: OperationOutcome) -> OperationOutcome:
    done = commit(context.connection, p.id, p.force or None, context.budget_s)
    batch = name_of(done.decided.decision) if done.decided else None
    records = done.decided.handle.records if done.decided else None
    document = {
        "committed": p.id,
        "producer_id": done.transaction.producer_id,
        "producer_epoch": done.transaction.producer_epoch,
        "decided": batch,
        "records": records,
        "forced": done.forced,
    }
    of = f"{batch}, {plural(records, 'record')}" if records is not None else f"forced: {done.forced}"
    return OperationOutcome(p.id, f"Committed {p.id}, {of}.", document=document)


def _abort(context: OperationContext, p: TransactionParameters, before: OperationOutcome) -> OperationOutcome:
    done = abort(
        context.connection,
        p.id,
        p.force or None,
        context.budget_s,
        context.work_budget_s,
        context.operator,
        context.alive_of,
    )
    document = {
        "aborted": p.id,
        "producer_id": done.transaction.producer_id,
        "producer_epoch": done.transaction.producer_epoch,
        "recovery": done.report.as_metadata() if done.report else None,
        "forced": done.forced,
    }
    sentence = done.report.sentence if done.report else f"Aborted {p.id}, forced: {done.forced}."
    wrong = left(context, done.report) if done.report else ()
    ok = done.report is None or done.report.clean
    return OperationOutcome(p.id, sentence, document=document, diagnoses=wrong, ok=ok)


def _end(
    verb: str, does: str, act: Callable[[OperationContext, TransactionParameters, OperationOutcome], OperationOutcome]
) -> Operation[TransactionParameters]:
    return Operation(TransactionParameters, _examine, (OperationStep(verb, does, act),), f"transactions {verb}", does)


COMMIT = _end("commit", "commit a transaction that is decided", _commit)
ABORT = _end("abort", "abort an undecided transaction, by a recovery of its sink", _abort)
