"""The transactions of a sink for ops: a resource."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from dagster_exactly_once.resources.kafka import KafkaResource
from exactly_once.coordinator import recover as recovery
from exactly_once.coordinator.recover import RecoveryReport
from exactly_once.inspection.sink import RECOVERY_BUDGET_S, UNDER_WAY
from exactly_once.kafka.admin import Admin
from exactly_once.participant import Participant
from exactly_once.protocol.names import namespace
from exactly_once.tools.operation.model import BUDGET_S
from exactly_once.txn.coordinators import Listing, list_transactions


class TransactionAdmin(KafkaResource):
    """Lists the transactions of a sink and recovers it, within a time budget for each call.

    Every call raises BrokerUnreachable when the brokers do not answer within the budget, and NotAuthorized without the
    right.
    """

    budget_s: float = Field(default=BUDGET_S, description="Seconds that one call may take.")
    recovery_budget_s: float = Field(default=RECOVERY_BUDGET_S, description="Seconds that a recovery may take.")

    def list(self, sink_id: str) -> Sequence[Listing]:
        """Return the transactional ids of the sink with a transaction that readers wait for."""
        with Admin(self.connection(), self.budget_s) as admin:
            return list_transactions(admin, namespace(sink_id), UNDER_WAY)

    def recover(self, sink_id: str, operator: str = "", others: Sequence[Participant[Any]] = ()) -> RecoveryReport:
        """Commit decided batches, abort undecided transactions; see :func:`exactly_once.coordinator.recover.recover`.

        Takes the sink from its owner: callers make sure that no driver is at work. ``operator`` goes into the claim;
        ``others`` are the sink's participants other than Kafka.
        """
        return recovery.recover(self.connection(), sink_id, self.recovery_budget_s, others, operator)
