"""The weaker guarantees, ``at_least_once`` and ``none``: no claim, no decision, no transaction.

Batches that the sink decided under ``exactly_once`` before are still completed: a driver that starts with a weaker
guarantee claims the sink once if it has a commit log, so nothing decided is lost on the way down.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace

from exactly_once.checkpoint import batch_in_flight
from exactly_once.coordinator.claim import CLAIM_BUDGET_S, claim_for_stream
from exactly_once.coordinator.driver_state import DriverState, Store
from exactly_once.deadline import now_ms
from exactly_once.errors import Lost, ProtocolViolation, UnsupportedMode
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.commit_log import read_log
from exactly_once.options import SinkOptions
from exactly_once.participants.kafka import CONTACT_BUDGET_S
from exactly_once.participants.kafka_checks import check_cluster
from exactly_once.protocol.part import Part
from exactly_once.protocol.planning import Batch, Plan
from exactly_once.protocol.ticket import Ticket


def plan_delivery(options: SinkOptions, store: Store) -> Ticket:
    """Plan the batch in flight under a weaker guarantee.

    A batch that was decided under exactly_once is drained.

    Raises
    ------
    Lost
        When parts of a decided batch are lost, which only exactly_once can make good.
    ExactlyOnceError
        Whatever has to be refused at start; nothing is written then.
    """
    batch = batch_in_flight(options.checkpoint, options.sink_id)
    state = store.load()
    ours = batch.query_id, options.operator
    if state is None or not state.finished or (state.query_id, state.operator) != ours:
        state = _settled(options, batch)
    decided = (state.last_batch, state.last_digest) == (batch.batch_id, batch.offsets_digest)
    execution = uuid.uuid4().hex
    store.save(state.planned(execution, batch, now_ms(), {}))
    plan = Plan.DRAIN if decided else Plan.WRITE
    return Ticket(replace(batch, sources=(), offsets=""), plan, state.token, execution, state.timeout_ms)


def _settled(options: SinkOptions, batch: Batch) -> DriverState:
    """Return the state of a driver whose earlier decisions are all completed."""
    if read_log(options.connection, options.sink_id, CONTACT_BUDGET_S).owner is None:
        with Admin(options.connection, CONTACT_BUDGET_S) as admin:
            version, timeout_ms = check_cluster(options, admin.renew(CLAIM_BUDGET_S))
        return DriverState(0, batch.query_id, version, timeout_ms, 0, operator=options.operator)
    state = claim_for_stream(options, batch, adopts_all=True)
    if state.replay:
        raise Lost(
            f"batch {batch.batch_id} of sink {options.sink_id!r} is decided, but some of its parts are lost",
            "Start the stream once with sink.guarantee=exactly_once, which writes exactly these parts again; then "
            f"change the guarantee to {options.guarantee.value}",
        )
    return state


class DeliveryCommitter:
    """The driver's side of a batch that needs no decision.

    As :class:`exactly_once.coordinator.micro_batch.Committer`.
    """

    def __init__(self, store: Store):
        self._store = store

    def commit(self, parts: Sequence[Part | None], batch_id: int) -> None:
        """Do nothing but check: the tasks have already sent everything that the guarantee requires.

        Raises
        ------
        UnsupportedMode
            When a task has no result: it has sent nothing.
        """
        if any(part is None for part in parts):
            raise UnsupportedMode(
                "Spark asked to commit a batch without results from its tasks, as it does in continuous mode",
                "Use trigger(processingTime=...) or trigger(availableNow=True)",
            )
        state = self._store.load()
        if state is None:
            raise ProtocolViolation("this driver has planned no batch", "Start the stream again")
        self._store.save(replace(state, finished=True))

    def abort(self, batch_id: int, parts: Sequence[Part | None] = ()) -> None:
        """Do nothing: sent records cannot be rolled back."""

    def close(self) -> None:
        """Do nothing: it has no connections."""
