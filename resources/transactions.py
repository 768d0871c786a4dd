"""Transactions as an operator needs them: list, explain, commit, abort, sweep. What would break the guarantee is
refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import Field

from exactly_once.errors import ExactlyOnceError, Unfinished
from exactly_once.kafka.commit_log import read_log
from exactly_once.kafka.control import Control, Description, Listing
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.names import namespace, parse_part_id
from exactly_once.protocol.outcomes import Outcome
from exactly_once.protocol.records import Decision, PreparedTransaction
from exactly_once.recovery import RecoveryReport, recover
from resources.kafka import KafkaResource

Listings = list[Listing]

#: States in which readers of the topics wait for the transaction.
UNDER_WAY = ("Ongoing", "PrepareCommit", "PrepareAbort")


class Refused(ExactlyOnceError):
    """The operation would lose records, duplicate them, or touch what is not ours."""

    code = "EO-REFUSED"
    default_safe = "Nothing was changed"


@dataclass(frozen=True)
class Decided:
    """A transaction that the commit log wants committed."""

    decision: Decision
    handle: PreparedTransaction


def decided_as(transaction: Description, log: LogState) -> Decided | None:
    """The decision that names exactly this transaction (id, producer id and epoch), or None: it is undecided."""
    identity = (transaction.transactional_id, transaction.producer_id, transaction.producer_epoch)
    for decision in log.decisions:
        for handle in decision.handles:
            if (handle.transactional_id, handle.producer_id, handle.epoch) == identity:
                return Decided(decision, handle)
    return None


def check_commit(transaction: Description, log: LogState) -> Decided:
    """The decision to commit ``transaction`` by.

    Raises
    ------
    Refused
        When it is not under way, or not decided: committing it would show a part of a batch that will be written again.
    """
    _check_under_way(transaction)
    decided = decided_as(transaction, log)
    if decided is None:
        raise Refused(
            f"the transaction of {transaction.transactional_id} is not decided; its rows will be written again, so "
            f"committing it "
            "would duplicate them",
            "Start the stream, or run the recovery: either aborts it",
        )
    return decided


def check_abort(transaction: Description, log: LogState) -> None:
    """Make sure that ``transaction`` may be aborted.

    Raises
    ------
    Refused
        When it is not under way, or decided: aborting it would lose its rows.
    """
    _check_under_way(transaction)
    decided = decided_as(transaction, log)
    if decided is not None:
        raise Refused(
            f"the transaction of {transaction.transactional_id} is decided (batch {decided.decision.batch_id}, "
            f"{decided.handle.records} records); aborting it would lose them",
            "Commit it, or start the stream or the recovery: either commits it",
        )


class TransactionAdmin(KafkaResource):
    """Looks at the transactions of a sink and ends them, within a time budget for each call.

    Every call raises BrokerUnreachable when the brokers give no answer within the budget, NotAuthorized without the
    right.
    """

    budget_s: float = Field(default=10.0, description="Seconds that one call may take.")
    recovery_budget_s: float = Field(default=60.0, description="Seconds that a recovery may take.")

    def list(self, sink_id: str, states: tuple[str, ...] = UNDER_WAY) -> Listings:
        """The transactional ids of the sink that are in one of ``states``."""
        with Control(self.connection(), self.budget_s) as control:
            return control.list_transactions(namespace(sink_id), states)

    def describe(self, transactional_ids: Sequence[str]) -> dict[str, Description]:
        """The coordinators' view of these ids."""
        with Control(self.connection(), self.budget_s) as control:
            return control.describe(transactional_ids)

    def open_transactions(self, sink_id: str) -> Sequence[Description]:
        """What is under way in the sink, oldest first."""
        with Control(self.connection(), self.budget_s) as control:
            ids = [t.transactional_id for t in control.list_transactions(namespace(sink_id), UNDER_WAY)]
            found = [d for d in control.describe(ids).values() if d.state in UNDER_WAY]
        return sorted(found, key=lambda d: d.started_ms)

    def commit(self, transactional_id: str) -> Decided:
        """Commit the transaction of ``transactional_id``, which must be decided. Harmless while a driver does the same.

        Raises
        ------
        Refused
            See :func:`check_commit`.
        Unfinished
            The brokers gave no definite answer in time.
        """
        sink_id = self._sink_of(transactional_id)
        with Control(self.connection(), self.budget_s) as control:
            transaction = control.describe([transactional_id])[transactional_id]
            decided = check_commit(transaction, read_log(self.connection(), sink_id, self.budget_s))
            outcome = control.renew(self.budget_s).end(
                transactional_id,
                transaction.producer_id,
                transaction.producer_epoch,
                commit=True,
                version=decided.decision.end_txn_version,
            )
        if outcome is not Outcome.DONE:
            raise Unfinished(
                f"the commit of {transactional_id} ended as {outcome.name}",
                "Start the stream, or run the recovery: either finds out what became of it",
            )
        return decided

    def abort(self, transactional_id: str) -> RecoveryReport:
        """Abort the undecided transaction of ``transactional_id``.

        Its driver might decide it while we look, so the sink is taken from the driver first: this is a recovery, which
        aborts everything else that is undecided too.

        Raises
        ------
        Refused
            See :func:`check_abort`.
        """
        sink_id = self._sink_of(transactional_id)
        transaction = self.describe([transactional_id])[transactional_id]
        check_abort(transaction, read_log(self.connection(), sink_id, self.budget_s))
        report = self.sweep(sink_id)
        after = self.describe([transactional_id])[transactional_id]
        if (after.state, after.producer_epoch) == (transaction.state, transaction.producer_epoch):
            raise Unfinished(
                f"the transaction of {transactional_id} is still {after.state}",
                "See what the recovery says about it; run the recovery again",
                safe="It is not decided; nothing of it is visible to a read_committed reader",
            )
        return report

    def sweep(self, sink_id: str) -> RecoveryReport:
        """Finish what is decided and abort what is not; see :func:`exactly_once.recovery.recover`."""
        return recover(self.connection(), sink_id, self.recovery_budget_s)

    @staticmethod
    def _sink_of(transactional_id: str) -> str:
        part = parse_part_id(transactional_id)
        if part is None:
            raise Refused(
                f"{transactional_id!r} is no transactional id of a sink's part",
                "List the sink's transactions and use one of those ids; others belong to somebody else",
            )
        return part.sink_id


def _check_under_way(transaction: Description) -> None:
    if transaction.state not in UNDER_WAY:
        raise Refused(
            f"{transaction.transactional_id} has no transaction under way (the broker says "
            f"{transaction.state or 'unknown id'})",
            "List the transactions again: it may have ended meanwhile",
        )
