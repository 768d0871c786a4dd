"""The end of one transaction, by its id: a commit if it is decided, an abort by a recovery if it is not.

A commit or an abort ends exactly the transaction that was described, by producer id and epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from exactly_once.commitlog.commit_log import read_log
from exactly_once.coordinator.recover import recover
from exactly_once.errors import NotAuthorized, Unfinished
from exactly_once.inspection.findings import Decided, naming, title
from exactly_once.inspection.sink import UNDER_WAY, owner_of
from exactly_once.inspection.words import plural
from exactly_once.kafka.admin import Admin
from exactly_once.protocol.outcomes import Outcome
from exactly_once.tools.operation.model import (
    Operation,
    OperationContext,
    OperationOutcome,
    OperationStep,
    force_parameter,
    parameter,
)
from exactly_once.tools.operation.recover import left
from exactly_once.tools.operation.rules import check_abort, check_commit, part_sink
from exactly_once.txn.coordinators import Description, describe, end_one, end_txn_version, refuse_lowered
from exactly_once.txn.leaders import written


@dataclass(frozen=True, kw_only=True)
class TransactionParameters:
    """The parameters of a commit or an abort of one transaction."""

    id: str = parameter("", "The transactional id of a part.", "id", metavar="ID", chooses=True)
    force: str = force_parameter("", "The phrase that overrules a refusal.")


def _examine(context: OperationContext, p: TransactionParameters) -> OperationOutcome:
    return OperationOutcome(p.id, f"{p.id} is a transaction of sink {part_sink(p.id)}.")


def commit(context: OperationContext, p: TransactionParameters, before: OperationOutcome) -> OperationOutcome:
    """Commit the decided transaction of a part. Harmless while a driver does the same.

    Raises what :func:`check_commit` does, Unfinished when the brokers gave no definite answer in time,
    BrokerUnreachable or NotAuthorized.
    """
    with Admin(context.connection, context.budget_s) as admin:
        transaction = describe(admin, [p.id])[p.id]
        log = read_log(context.connection, part_sink(p.id), context.budget_s)
        written = None
        if naming(transaction, log) is None and transaction.state in UNDER_WAY:
            written = _written(admin.renew(context.budget_s), transaction)
        decided = check_commit(transaction, log, written, p.force or None)
        version = decided.decision.end_txn_version if decided else end_txn_version(admin)
        _end(admin.renew(context.budget_s), transaction, True, version, decided)
    batch, records, forced = None, None, p.force or None
    if decided is not None:
        batch, records, forced = title(decided.decision), decided.handle.records, None
    of = f"forced: {forced}" if records is None else f"{batch}, {plural(records, 'record')}"
    document = {**_ended("committed", transaction, forced), "decided": batch, "records": records}
    return OperationOutcome(p.id, f"Committed {p.id}, {of}.", document=document)


def abort(context: OperationContext, p: TransactionParameters, before: OperationOutcome) -> OperationOutcome:
    """Abort the transaction of a part.

    A driver might decide an undecided transaction meanwhile, so this runs a recovery, which takes the sink from the
    driver first and aborts every undecided transaction. With ``force``, aborts a decided transaction, and that one
    alone; the next start of the stream writes its rows again (EO-LOST).

    Raises what :func:`check_abort` and :func:`check_owner` do, Unfinished when the transaction is still open, and what
    a recovery raises.
    """
    connection, sink_id = context.connection, part_sink(p.id)
    with Admin(connection, context.budget_s) as admin:
        transaction = describe(admin, [p.id])[p.id]
        log = read_log(connection, sink_id, context.budget_s)
        decided = check_abort(transaction, log, p.force or None)
        if decided is not None:
            _end(admin.renew(context.budget_s), transaction, False, decided.decision.end_txn_version, decided)
            document = {**_ended("aborted", transaction, p.force), "recovery": None}
            return OperationOutcome(p.id, f"Aborted {p.id}, forced: {p.force}.", document=document)
        owner = owner_of(log, context.alive_of)
        context.admit(sink_id, owner, p.force)
        report = recover(connection, sink_id, context.work_budget_s, operator=context.operator)
        after = describe(admin.renew(context.budget_s), [p.id])[p.id]
    if (after.state, after.producer_epoch) == (transaction.state, transaction.producer_epoch):
        raise Unfinished(
            f"the transaction of {p.id} is still {after.state}",
            "Run the recovery again, and read in its report what became of this transaction",
            safe="The transaction is not decided; none of it is visible to a read_committed reader",
        )
    forced = p.force or None if owner is not None and owner.works is not False else None
    return OperationOutcome(
        p.id,
        report.sentence,
        document={**_ended("aborted", transaction, forced), "recovery": report.as_metadata()},
        diagnoses=left(context, report),
        ok=report.clean,
        value=report,
    )


def _ended(how: str, transaction: Description, forced: str | None) -> dict[str, Any]:
    t = transaction
    its = {"producer_id": t.producer_id, "producer_epoch": t.producer_epoch}
    return {how: t.transactional_id, **its, "forced": forced}


def _operation(
    verb: str, does: str, act: Callable[[OperationContext, TransactionParameters, OperationOutcome], OperationOutcome]
) -> Operation[TransactionParameters]:
    return Operation(TransactionParameters, _examine, (OperationStep(verb, does, act),), f"transactions {verb}", does)


COMMIT = _operation("commit", "commit a transaction that is decided", commit)
ABORT = _operation("abort", "abort an undecided transaction, by a recovery of its sink", abort)


def _written(admin: Admin, transaction: Description) -> int | None:
    try:
        return written(admin, transaction)
    except NotAuthorized:  # without READ on the topic, the phrase says that the number is unknown
        return None


def _end(admin: Admin, transaction: Description, commit: bool, version: int, decided: Decided | None) -> None:
    refuse_lowered(admin, [version])
    # an end that is under way already may have raised the epoch since the decision
    epoch = decided.handle.epoch if decided else transaction.producer_epoch
    outcome = end_one(admin, transaction.transactional_id, transaction.producer_id, epoch, commit, version)
    if outcome is not Outcome.DONE:
        raise Unfinished(
            f"the {'commit' if commit else 'abort'} of {transaction.transactional_id} ended as {outcome.name}",
            "Start the stream or run the recovery; either finds out how the transaction ended",
            safe=None if decided else "The transaction is not decided",
        )
