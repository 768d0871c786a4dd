"""Transactions as an op needs them: list, describe, commit, abort, sweep; a connection around
:mod:`exactly_once.ops.transactions`.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from exactly_once.coordinator.recover import RecoveryReport, recover
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.transactions import Description, Listing, describe, list_transactions
from exactly_once.ops import transactions as operations
from exactly_once.ops.inspection import UNDER_WAY
from exactly_once.ops.transactions import Aborted, Ended, Refused
from exactly_once.protocol.names import namespace
from resources.kafka import KafkaResource

__all__ = ["UNDER_WAY", "Refused", "TransactionAdmin"]

Listings = list[Listing]


class TransactionAdmin(KafkaResource):
    """Looks at the transactions of a sink and ends them, within a time budget for each call.

    Every call raises BrokerUnreachable when the brokers give no answer within the budget, NotAuthorized without the
    right. What would break the guarantee is refused: see :mod:`exactly_once.ops.rules`.
    """

    budget_s: float = Field(default=operations.BUDGET_S, description="Seconds that one call may take.")
    recovery_budget_s: float = Field(
        default=operations.RECOVERY_BUDGET_S, description="Seconds that a recovery may take."
    )

    def list(self, sink_id: str, states: tuple[str, ...] = UNDER_WAY) -> Listings:
        """The transactional ids of the sink that are in one of ``states``."""
        with Admin(self.connection(), self.budget_s) as admin:
            return list_transactions(admin, namespace(sink_id), states)

    def describe(self, transactional_ids: Sequence[str]) -> dict[str, Description]:
        """The coordinators' view of these ids."""
        with Admin(self.connection(), self.budget_s) as admin:
            return describe(admin, transactional_ids)

    def open_transactions(self, sink_id: str) -> Sequence[Description]:
        """What is under way in the sink, oldest first."""
        with Admin(self.connection(), self.budget_s) as admin:
            ids = [t.transactional_id for t in list_transactions(admin, namespace(sink_id), UNDER_WAY)]
            found = [d for d in describe(admin, ids).values() if d.state in UNDER_WAY]
        return sorted(found, key=lambda d: d.started_ms)

    def commit(self, transactional_id: str, force: str | None = None) -> Ended:
        """Commit the transaction of ``transactional_id``; see :func:`exactly_once.ops.transactions.commit`."""
        return operations.commit(self.connection(), transactional_id, force, self.budget_s)

    def abort(self, transactional_id: str, force: str | None = None) -> Aborted:
        """Abort the transaction of ``transactional_id``; see :func:`exactly_once.ops.transactions.abort`."""
        return operations.abort(self.connection(), transactional_id, force, self.budget_s, self.recovery_budget_s)

    def sweep(self, sink_id: str) -> RecoveryReport:
        """Finish what is decided and abort what is not; see :func:`exactly_once.coordinator.recover.recover`.

        It takes the sink from whoever owns it: callers make sure that no driver is at work.
        """
        return recover(self.connection(), sink_id, self.recovery_budget_s)
