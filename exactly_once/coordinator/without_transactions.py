"""The weaker guarantees, ``at_least_once`` and ``none``: no claim, no decision, no transaction.

Batches that the sink decided under ``exactly_once`` before are still completed: a driver that starts with a weaker
guarantee claims the sink once if it has a commit log, so nothing decided is lost on the way down.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace

from exactly_once.checkpoint import batch_in_flight
from exactly_once.commitlog.commit_log import read_log
from exactly_once.coordinator.claim import CLAIM_BUDGET_S, claim_for_stream
from exactly_once.coordinator.coordination import Coordination
from exactly_once.coordinator.driver_state import UNCLAIMED, DriverState
from exactly_once.coordinator.micro_batch import Coordinator
from exactly_once.coordinator.named import checked_ends
from exactly_once.coordinator.session import Session
from exactly_once.deadline import now_ms
from exactly_once.errors import Lost, ProtocolViolation, UnsupportedMode
from exactly_once.kafka.sharing import CLIENTS
from exactly_once.options import Guarantee, SinkOptions
from exactly_once.participants.kafka.checks import check_cluster
from exactly_once.participants.kafka.participant import CONTACT_BUDGET_S
from exactly_once.protocol.planning import Batch, Plan
from exactly_once.protocol.ticket import Part, Ticket


class DeliveryCoordinator(Coordination):
    """The driver's side of one query whose batches need no decision."""

    writes_once = False
    longest_ms = None  # no transaction

    def __init__(self, options: SinkOptions):
        self.options = options
        self.ticket: Ticket | None = None
        self._state: DriverState | None = None

    def plan(self, check: Callable[[Batch], None] | None = None) -> Ticket:
        """Plan the batch in flight. A batch that was decided under exactly_once is drained.

        Raises
        ------
        Lost
            When parts of a decided batch are lost, which only exactly_once can make good.
        ExactlyOnceError
            Whatever has to be refused at start; nothing is written then.
        """
        state = self._state
        batch = batch_in_flight(self.options.checkpoint, self.options.sink_id, state.written if state else None)
        if check is not None:
            check(batch)
        state = state or _settled(self.options, batch)
        if batch.named is not None and batch.named.joined:
            checked_ends(self.options, batch, None, lambda: True)
        self._state = state = state.planned(uuid.uuid4().hex, batch, now_ms(), {})
        self.ticket = state.ticket(Plan.DRAIN if state.drains else Plan.WRITE)
        return self.ticket

    def commit(self, parts: Sequence[Part | None], batch_id: int) -> None:
        """Note that the batch is written: the tasks have already sent everything that the guarantee requires. Raise
        UnsupportedMode when one of them has no result: it has sent nothing.
        """
        if any(part is None for part in parts):
            raise UnsupportedMode(
                "Spark asked to commit a batch without results from its tasks, as it does in continuous mode",
                "Use trigger(processingTime=...) or trigger(availableNow=True)",
            )
        if self._state is None:
            raise ProtocolViolation("this driver has planned no batch", "Start the stream again")
        self._state = replace(self._state, finished=True)

    def abort(self, batch_id: int, parts: Sequence[Part | None] = ()) -> dict[str, list[str]]:
        """Do nothing: sent records cannot be rolled back."""
        return {}

    def close(self) -> dict[str, list[str]]:
        """Do nothing: it has no connections, and leaves nothing open."""
        return {}


def coordinator_of(options: SinkOptions) -> Coordination:
    """Return the coordinator of a query, by its guarantee."""
    if options.guarantee is Guarantee.EXACTLY_ONCE:
        return Coordinator(options)
    return DeliveryCoordinator(options)


def _settled(options: SinkOptions, batch: Batch) -> DriverState:
    """Return the state of a driver whose earlier decisions are all completed."""
    with CLIENTS.borrow(options.connection, CONTACT_BUDGET_S) as admin:
        if read_log(options.connection, options.sink_id, CONTACT_BUDGET_S, admin=admin).owner is None:
            version, timeout_ms, _ = check_cluster(options, admin.renew(CLAIM_BUDGET_S))
            return DriverState(UNCLAIMED, batch, version, timeout_ms, clock_ahead_ms=0)
    with Session.of(options) as session:
        state = claim_for_stream(session, options, batch, adopts_all=True)
    if state.replay:
        raise Lost(
            f"batch {batch.batch_id} of sink {options.sink_id!r} is decided, but some of its parts are lost",
            "Start the stream once with sink.guarantee=exactly_once, which writes exactly these parts again; then "
            f"change the guarantee to {options.guarantee.value}",
        )
    return state
