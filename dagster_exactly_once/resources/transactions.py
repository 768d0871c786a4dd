"""Transactions for ops: list, describe, commit, abort, sweep: a resource over the operations on transactions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from dagster_exactly_once.resources.kafka import KafkaResource
from exactly_once.coordinator import recover as recovery
from exactly_once.coordinator.recover import RecoveryReport
from exactly_once.inspection.sink import RECOVERY_BUDGET_S, UNDER_WAY
from exactly_once.kafka.admin import Admin
from exactly_once.operation import transactions as operations
from exactly_once.operation.model import BUDGET_S
from exactly_once.operation.rules import Refused
from exactly_once.operation.transactions import AbortedTransaction, EndedTransaction
from exactly_once.participant import Participant
from exactly_once.protocol.names import namespace
from exactly_once.txn.coordinators import Description, Listing, describe, list_transactions

__all__ = ["UNDER_WAY", "Refused", "TransactionAdmin"]

Listings = list[Listing]


class TransactionAdmin(KafkaResource):
    """Lists the transactions of a sink and ends them, within a time budget for each call.

    Every call raises BrokerUnreachable when the brokers do not answer within the budget, and NotAuthorized without the
    right. It refuses what would break the guarantee: see :mod:`exactly_once.operation.rules`.
    """

    budget_s: float = Field(default=BUDGET_S, description="Seconds that one call may take.")
    recovery_budget_s: float = Field(default=RECOVERY_BUDGET_S, description="Seconds that a recovery may take.")

    def list(self, sink_id: str, states: tuple[str, ...] = UNDER_WAY) -> Listings:
        """Return the transactional ids of the sink in one of ``states``."""
        with Admin(self.connection(), self.budget_s) as admin:
            return list_transactions(admin, namespace(sink_id), states)

    def describe(self, transactional_ids: Sequence[str]) -> dict[str, Description]:
        """Return the coordinators' view of these ids."""
        with Admin(self.connection(), self.budget_s) as admin:
            return describe(admin, transactional_ids)

    def open_transactions(self, sink_id: str) -> Sequence[Description]:
        """Return the sink's open transactions, oldest first."""
        with Admin(self.connection(), self.budget_s) as admin:
            ids = [t.transactional_id for t in list_transactions(admin, namespace(sink_id), UNDER_WAY)]
            found = [d for d in describe(admin, ids).values() if d.state in UNDER_WAY]
        return sorted(found, key=lambda d: d.started_ms)

    def commit(self, transactional_id: str, force: str | None = None) -> EndedTransaction:
        """Commit the transaction of ``transactional_id``; see :func:`exactly_once.operation.transactions.commit`."""
        return operations.commit(self.connection(), transactional_id, force, self.budget_s)

    def abort(self, transactional_id: str, force: str | None = None) -> AbortedTransaction:
        """Abort the transaction of ``transactional_id``; see :func:`exactly_once.operation.transactions.abort`."""
        return operations.abort(self.connection(), transactional_id, force, self.budget_s, self.recovery_budget_s)

    def recover(self, sink_id: str, operator: str = "", others: Sequence[Participant[Any]] = ()) -> RecoveryReport:
        """Commit decided batches, abort undecided transactions; see :func:`exactly_once.coordinator.recover.recover`.

        Takes the sink from its owner: callers make sure that no driver is at work. ``operator`` goes into the claim;
        ``others`` are the sink's participants other than Kafka.
        """
        return recovery.recover(self.connection(), sink_id, self.recovery_budget_s, others, operator)
