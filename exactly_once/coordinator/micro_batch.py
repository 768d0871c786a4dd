"""The driver's side of a micro-batch: plan it, decide and complete it, or abort it.

Planning and committing run in different processes: :func:`plan` where Spark plans a write, :class:`Committer` where
Spark commits it. What they share lies in :mod:`exactly_once.coordinator.driver_state` and in the commit log.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from exactly_once.checkpoint import batch_in_flight, kafka_offsets
from exactly_once.coordinator.abort import abort_execution, own_scope
from exactly_once.coordinator.claim import claim_for_stream
from exactly_once.coordinator.complete import COMMITTED, decided_error
from exactly_once.coordinator.decide import DECIDE_BUDGET_S, decide_and_complete, mark
from exactly_once.coordinator.driver_state import DriverState, Store
from exactly_once.coordinator.session import Session
from exactly_once.deadline import Deadline, now_ms
from exactly_once.errors import ExactlyOnceError, ProtocolViolation, UnsupportedMode
from exactly_once.options import SinkOptions
from exactly_once.participant import Participant
from exactly_once.protocol.loss import in_doubt, other_rows
from exactly_once.protocol.part import Part
from exactly_once.protocol.planning import Plan, plan_batch
from exactly_once.protocol.records import KAFKA, Completed, Decision, in_order
from exactly_once.protocol.replay import Match, lost_handles, match
from exactly_once.protocol.ticket import Ticket

log = logging.getLogger(__name__)

#: The driver sweeps participants other than Kafka for parts of failed attempts at least this often.
SWEEP_EVERY_MS = 30_000


def plan(options: SinkOptions, store: Store, others: Iterable[Participant[Any]] = ()) -> Ticket:
    """Plan the batch in flight; claim the sink first if this driver is not yet the owner.

    Runs once for each execution of a batch, before its tasks. ``others`` are the participants other than Kafka.

    Raises
    ------
    ExactlyOnceError
        Whatever has to be refused; nothing is written then.
    """
    batch = batch_in_flight(options.checkpoint, options.sink_id)
    state = store.load()
    wanted_ms = options.timeout_ms or (state.timeout_ms if state else None)
    # token 0: it ran under a weaker guarantee until now
    if (
        state is None
        or not state.finished
        or not state.token
        # another operator: a run in the same application, which must not be taken for the one before
        or (state.query_id, state.timeout_ms, state.operator) != (batch.query_id, wanted_ms, options.operator)
    ):
        state = claim_for_stream(options, batch, others)
    last = _last_decision(state)
    may = plan_batch(options.sink_id, batch, last, adopt=True)  # the claim has asked for consent where it is needed
    ticket = Ticket(
        replace(batch, sources=(), offsets=""),  # of no use to a task
        Plan.REPLAY if may is Plan.DRAIN and state.replay else may,
        state.token,
        uuid.uuid4().hex,
        state.timeout_ms,
        state.replay,
        state.incarnation,
        state.log_end,
        state.too_long,
    )
    ends = kafka_offsets(batch.sources) if options.input_offsets else {}
    store.save(state.planned(ticket.execution, batch, now_ms(), ends))
    return ticket


class Committer:
    """Decides, completes and aborts batches of one sink; keeps its session for the life of the process."""

    def __init__(self, session: Session, store: Store):
        self._session = session
        self._store = store
        self._name = uuid.uuid4().hex

    def commit(self, parts: Sequence[Part | None], batch_id: int) -> Decision | None:
        """Commit a batch.

        1. Check that the parts are those of the execution that was planned last.
        2. Ask the brokers: every prepared transaction is alive, with time to spare.
        3. Decide: one fenced, durable record. From here on the batch will be committed, whoever does it.
        4. Complete: EndTxn for every handle, until each outcome is proven.
        5. Mark the decision as completed, and meanwhile sweep what failed attempts left open.

        Returns
        -------
        Decision or None
            None when the batch was drained.

        Raises
        ------
        Fenced, Expiring, BatchTooLong, Expired, Lost, Unfinished, UnsupportedMode, ProtocolViolation
        """
        state = self._state()
        done = self._check(parts, batch_id, state)
        decision = None
        if done[0].plan is Plan.DRAIN:
            self._session.log.tally(state.token, Deadline(DECIDE_BUDGET_S), drained=1)
        else:
            decision, completed = self._decide(done, state)
            state = replace(
                state,
                last_batch=decision.batch_id,
                last_digest=decision.offsets_digest,
                replay={},
                too_long=0,
                swept_ms=self._housekeeping(done, state, decision, completed),
                clock_ahead_ms=self._session.log.clock_ahead_ms,
            )
        now = self._store.load()
        if now is not None and now.execution == state.execution:  # else a newer run has begun in this driver
            self._store.save(
                replace(state, finished=True, log_end=self._session.log.high_watermark, committer=self._name)
            )
        return decision

    def abort(self, batch_id: int, parts: Sequence[Part | None] = ()) -> dict[str, list[str]]:
        """Roll back the open parts of this driver's last execution, unless its batch is decided.

        Spark calls this also after a failed commit. The log is initialised and read first: that settles a decision
        which may still be under way. Then the log is told, for tasks that are still alive.

        Parameters
        ----------
        parts
            What is known of the tasks; None for one without a result.

        Returns
        -------
        dict of str to list of str
            By participant, the names of what was rolled back.
        """
        state = self._store.load()
        done = [p for p in parts if p is not None]
        if state is None or any(p.execution != state.execution for p in done):
            return {}  # stopped before the claim, when no task has begun; or a newer run began, and its claim swept
        self._take_turn(state)
        handles = [h for p in done for h in p.handles]
        return abort_execution(self._session, state, batch_id, handles, bool(parts) and len(done) == len(parts))

    def close(self) -> None:
        """Close the connections."""
        self._session.close()

    # -- steps ----------------------------------------------------------------------------------------------------

    def _check(self, parts: Sequence[Part | None], batch_id: int, state: DriverState) -> list[Part]:
        done = [p for p in parts if p is not None]
        if len(done) < len(parts) or not done:
            raise UnsupportedMode(
                "Spark asked to commit a batch without results from its tasks, as it does in continuous mode",
                "Use trigger(processingTime=...) or trigger(availableNow=True)",
            )
        seen = {(p.execution, p.token, p.batch_id, p.query_id, p.plan, p.offsets_digest) for p in done}
        expected = {(state.execution, state.token, batch_id, state.query_id, done[0].plan, done[0].offsets_digest)}
        if seen != expected:
            raise ProtocolViolation(
                f"batch {batch_id}: the tasks report {sorted(map(str, seen))}, but the driver planned {expected}",
                "Start the stream again; if the error repeats, report it with this message",
            )
        return done

    def _decide(self, parts: list[Part], state: DriverState) -> tuple[Decision, Completed]:
        proposed = proposal(parts, state)
        if parts[0].plan is not Plan.REPLAY:
            return decide_and_complete(self._session, proposed, state)
        last = self._session.log.own(state.token, Deadline(DECIDE_BUDGET_S)).last_decision(state.query_id)
        found = match(state.replay, proposed.handles)
        earlier = earlier_decision(self._session.sink_id, last, parts, state, found)
        for name, participant in self._session.participants.items():
            if spare := [h for h in found.spare if h.participant == name]:
                participant.abort(spare)
        return decide_and_complete(self._session, replace(proposed, handles=in_order(found.handles)), state, earlier)

    def _housekeeping(self, parts: list[Part], state: DriverState, decision: Decision, done: Completed) -> int:
        """Mark the decision as completed, and meanwhile roll back what failed attempts of this execution, and late
        tasks of older claims, left open.

        In Kafka after every batch: Spark's attempt numbers do not tell whether there is something, since a stage that
        is run again counts its attempts from 0 again. The other participants, where looking costs more, when something
        is known to have gone wrong, and now and then.

        Returns
        -------
        int
            When the other participants were last looked at, in ms.
        """
        session, swept_ms = self._session, state.swept_ms
        try:
            scope = own_scope(session, state)  # spares the parts of this decision
        except ExactlyOnceError as e:
            raise decided_error(e, COMMITTED) from e
        others = [name for name in session.participants if name != KAFKA]
        with ThreadPoolExecutor(1) as beside:  # one asks the log, the other Kafka's coordinators
            sweeping = beside.submit(session.sweep, scope, [KAFKA])
            mark(session, decision, done)
        try:
            swept = sweeping.result()
            retried = bool(swept) or any(not p.attempt.startswith("0.") for p in parts)
            if retried or now_ms() - swept_ms >= SWEEP_EVERY_MS:
                swept |= session.sweep(scope, others)
                swept_ms = now_ms()
            if count := sum(map(len, swept.values())):
                session.log.tally(state.token, Deadline(DECIDE_BUDGET_S), aborted=count)
                log.warning("sink %s: aborted %d transactions of failed attempts", session.sink_id, count)
        except ExactlyOnceError as e:  # the batch is committed; the next one sweeps again
            log.warning("sink %s: %s", session.sink_id, e)
        return swept_ms

    # -- plumbing -------------------------------------------------------------------------------------------------

    def _state(self) -> DriverState:
        state = self._store.load()
        if state is None:
            raise ProtocolViolation("this driver has no claim on the sink", "Start the stream again")
        self._take_turn(state)
        return state

    def _take_turn(self, state: DriverState) -> None:
        if state.committer != self._name:
            self._session.log.lapse()


def settle(options: SinkOptions, store: Store, runs: Callable[[], bool]) -> dict[str, list[str]]:
    """Roll back the open parts of the last execution of an ended query, if Spark's own call of ``abort`` did not.

    The state is loaded first and ``runs`` asked then: a run that begins later claims the sink anew, since this
    execution is not finished, and that fences what is done here.

    Parameters
    ----------
    runs
        Whether a query of this checkpoint runs in this driver again.

    Returns
    -------
    dict of str to list of str
        By participant, the names of what was rolled back.
    """
    state = store.load()
    if state is None or state.finished or runs():
        return {}
    with Session.of(options) as session:
        return abort_execution(session, state, state.batch_id, (), reported=False)


def proposal(parts: Sequence[Part], state: DriverState) -> Decision:
    """The decision that ``parts`` ask for; its times are filled in when it is made."""
    return Decision(
        state.query_id,
        parts[0].batch_id,
        state.token,
        in_order(h for p in parts for h in p.handles),
        parts[0].offsets_digest,
        state.end_txn_version,
        0,
        parts[0].run_id,
        offsets=state.offsets,
    )


def earlier_decision(
    sink_id: str, decision: Decision | None, parts: Sequence[Part], state: DriverState, found: Match
) -> Decision:
    """``decision``, whose lost parts ``parts`` have written again, after making sure that they are all there.

    Raises
    ------
    Expired
        When rows of a lost part did not come again.
    """
    if decision is None or decision.batch_id != parts[0].batch_id:
        raise ProtocolViolation(
            f"batch {parts[0].batch_id} was planned as a replay, but the commit log has no decision of this batch",
            "Start the stream again; if the error repeats, report it with this message",
        )
    name = decision.title(sink_id)
    handles = lost_handles(state.replay, decision.handles)
    if found.missing:
        missing = [h for h in handles if (h.participant, str(h.part)) in found.missing]
        raise other_rows(name, decision, missing)
    if strange := {t for p in parts for t in p.topics} - set(decision.topics):
        why = f"these parts were rolled back, and their rows now go to {', '.join(sorted(strange))}"
        raise in_doubt(name, decision, handles, why)
    log.warning("sink %s: %d lost parts of batch %d are written again", sink_id, len(handles), decision.batch_id)
    return decision


def _last_decision(state: DriverState) -> Decision | None:
    if state.last_batch < 0:
        return None
    return Decision(state.query_id, state.last_batch, state.token, (), state.last_digest, state.end_txn_version, 0)
