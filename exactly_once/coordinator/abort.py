"""The abort of an execution: what is not decided is rolled back in every participant, and late tasks are kept out."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from exactly_once.coordinator.driver_state import DriverState
from exactly_once.coordinator.session import Session
from exactly_once.deadline import Deadline, now_ms
from exactly_once.errors import ExactlyOnceError, Fenced
from exactly_once.participant import Scope
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.names import SLOTS
from exactly_once.protocol.records import PreparedPart, PreparedTransaction, identity

log = logging.getLogger(__name__)

AnyHandle = PreparedTransaction | PreparedPart

#: Budget of an abort: Spark waits for it, and the next start does again what it did not do.
ABORT_BUDGET_S = 10.0


def abort_execution(
    session: Session, state: DriverState, batch_id: int, handles: Sequence[AnyHandle], reported: bool
) -> dict[str, list[str]]:
    """Abort the execution of ``state`` unless its batch is decided, in every participant; return, by participant, the
    names of what was rolled back. ``handles`` are those of its parts that are known: all of them, and no task is alive,
    if ``reported``.
    """
    try:
        # fences the record of the abort; also settles a decision that is under way
        log_state = session.log.own(state.token, Deadline(ABORT_BUDGET_S))
        if log_state.is_decided_by(state.token, state.batch.query_id, batch_id):
            return {}
        running = False
        # in the other cases no task of this batch has written
        if not (state.drains or state.finished or state.batch.batch_id != batch_id):
            running = not reported
            log_state = _mark_aborted(session, state, log_state)
        # the parts that a replay has prepared under this claim are in the scope, too
        return session.sweep(own_scope(session.sink_id, state, log_state, running))
    except Fenced:
        return abandon(session, handles, state)


def own_scope(sink_id: str, state: DriverState, log_state: LogState, running: bool = False) -> Scope:
    """Return the scope of the parts of this claim, and of those before it, that the log leaves undecided."""
    decided = tuple(h for d in log_state.open_decisions for h in d.handles)
    return Scope(sink_id, state.token, state.token, decided, state.incarnation, running=running)


def _mark_aborted(session: Session, state: DriverState, log_state: LogState) -> LogState:
    """Say in the log that this execution ends without a decision, unless it says so already; return its state.

    The record comes before the sweep: a task that opens its transaction after the sweep reads it
    (``Cluster.checkInTime`` in Java). One that may be killed before it can do so is kept from opening any
    by the sweep itself (``running`` of its scope).
    """
    if log_state.aborted is not None and log_state.aborted.execution == state.execution:
        return log_state
    try:
        return session.log.append(state.aborted(now_ms()), Deadline(ABORT_BUDGET_S))
    except Fenced:
        raise
    except ExactlyOnceError as e:  # the parts that are open now can be ended all the same
        log.warning(
            "sink %s: could not tell late tasks of batch %d to stop: %s", session.sink_id, state.batch.batch_id, e
        )
    return session.log.own(state.token, Deadline(ABORT_BUDGET_S))  # fences the sweep: that write may have been refused


def abandon(session: Session, handles: Sequence[AnyHandle], state: DriverState) -> dict[str, list[str]]:
    """Abort what the tasks of this superseded driver prepared: its successor may be a recovery that is gone by now, and
    that knew no participant other than Kafka.

    Abort the parts of ``handles``, and whatever else this claim has open, unless it is decided. This driver's log
    producer is fenced, so it can decide nothing more, and reading the log to its end shows every earlier decision. A
    completed decision may have lost its handles, but then none of its parts is open.
    """
    log_state = session.log.read(Deadline(ABORT_BUDGET_S), whole=True)
    decided = tuple(h for d in log_state.decisions for h in d.handles)
    spare = {identity(h) for h in decided}
    # without its log, nobody knows whose slot it is
    owner = log_state.owner.token if log_state.owner else state.token + SLOTS
    scope = Scope(session.sink_id, 0, state.token, decided, state.incarnation, owner=owner)
    rolled_back: dict[str, list[str]] = {}
    for name, participant in session.participants.items():
        mine = [h for h in handles if h.participant == name and identity(h) not in spare]
        try:
            if mine:
                participant.abort(mine)
            rolled_back |= session.sweep(scope, [name])
        except ExactlyOnceError as e:  # the other participants need not wait for this one
            log.warning("sink %s: participant %s: %s", session.sink_id, name, e)
    return rolled_back


def roll_back(session: Session, handles: Sequence[AnyHandle], state: DriverState) -> None:
    """Abort the parts prepared for a batch that another driver has decided; never raises."""
    try:
        abandon(session, handles, state)
    except ExactlyOnceError as e:  # its timeout ends what is left, or the sweep of the next start
        log.warning("sink %s: %s", session.sink_id, e)
