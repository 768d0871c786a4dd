"""The driver's side of a micro-batch: plan it, decide and complete it, or abort it.

Planning and committing run in different processes: :func:`plan` where Spark plans a write, :class:`Committer` where
Spark commits it. What they share lies in :mod:`exactly_once.driver_state` and in the commit log.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace

from exactly_once import driver_state
from exactly_once.checkpoint import batch_in_flight, kafka_offsets
from exactly_once.claim import claim_for_stream, count
from exactly_once.completion import older_slots, sweep
from exactly_once.deadline import Deadline
from exactly_once.deciding import ABORT_BUDGET_S, DECIDE_BUDGET_S, Decider
from exactly_once.driver_state import DriverState
from exactly_once.errors import ExactlyOnceError, Fenced, ProtocolViolation, UnsupportedMode
from exactly_once.kafka.commit_log import now_ms
from exactly_once.kafka.control import Description
from exactly_once.options import SinkOptions
from exactly_once.protocol.names import SLOTS, slot_of
from exactly_once.protocol.planning import Batch, Plan, plan_batch
from exactly_once.protocol.records import Decision, PreparedTransaction

log = logging.getLogger(__name__)

#: Transactions that failed attempts left open block readers, so they are looked for at least this often.
SWEEP_EVERY_MS = 30_000


@dataclass(frozen=True, slots=True)
class Ticket:
    """What the tasks of one execution of one batch need to know; travels to them inside the pickled writer."""

    batch: Batch
    plan: Plan
    token: int
    execution: str
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class Part:
    """What one task did. ``handle`` is None for a part without rows, and for a drained one."""

    execution: str
    token: int
    batch_id: int
    query_id: str
    run_id: str
    part: int
    attempt: str
    plan: Plan
    offsets_digest: str
    handle: PreparedTransaction | None = None
    topics: tuple[str, ...] = ()


def plan(options: SinkOptions) -> Ticket:
    """What the batch in flight may do; claims first when this driver is not yet the owner.

    Runs once for each execution of a batch, before its tasks.

    Raises
    ------
    ExactlyOnceError
        Whatever has to be refused; nothing is written then.
    """
    batch = batch_in_flight(options.checkpoint)
    state = driver_state.load(options.sink_id, options.checkpoint)
    wanted_ms = options.timeout_ms or (state.timeout_ms if state else None)
    if state is None or not state.finished or (state.query_id, state.timeout_ms) != (batch.query_id, wanted_ms):
        state = claim_for_stream(options, batch)
    last = _last_decision(state)
    ticket = Ticket(
        replace(batch, sources=()),  # of no use to a task
        plan_batch(options.sink_id, batch, last, adopt=True),  # the claim has asked for consent where it is needed
        state.token,
        uuid.uuid4().hex,
        state.timeout_ms,
    )
    ends = kafka_offsets(batch.sources) if options.input_offsets else {}
    driver_state.save(options.sink_id, options.checkpoint, state.planned(ticket.execution, ends))
    return ticket


class Committer:
    """Decides, completes and aborts batches of one sink; keeps its connections for the life of the process."""

    def __init__(self, options: SinkOptions):
        self._options = options
        self._decider = Decider(options)

    def close(self) -> None:
        """Close the connections."""
        self._decider.close()

    def commit(self, parts: Sequence[Part | None], batch_id: int) -> Decision | None:
        """Commit a batch.

        1. Check that the parts are those of the execution that was planned last.
        2. Ask the brokers: every prepared transaction is alive, with time to spare.
        3. Decide: one fenced, durable record. From here on the batch will be committed, whoever does it.
        4. Complete: EndTxn for every handle, until each outcome is proven.
        5. Mark the decision as completed; sweep what failed attempts left open.

        Returns
        -------
        Decision or None
            None when the batch was drained.

        Raises
        ------
        Fenced, Expiring, Expired, Unfinished, UnsupportedMode, ProtocolViolation
        """
        state = self._state()
        done = self._check(parts, batch_id, state)
        decision = None
        if done[0].plan is Plan.WRITE:
            decision = self._decider.decide_and_complete(proposal(done, state), state)
            batch = decision.batch_id, decision.offsets_digest
            state = replace(state, last_batch=batch[0], last_digest=batch[1])
            state = self._housekeeping(done, state)
            state = replace(state, clock_ahead_ms=self._decider.log.clock_ahead_ms)
        else:
            count(self._decider.log, state.token, Deadline(DECIDE_BUDGET_S), drained=1)
        if self._state().execution == state.execution:  # else a newer run of the query has begun in this driver
            self._save(replace(state, finished=True))
        return decision

    def abort(self, batch_id: int, parts: Sequence[Part] = ()) -> list[Description]:
        """Abort what this driver's last execution left open, unless its batch is decided.

        Spark calls this also after a failed commit. The log is initialised and read first: that settles a decision
        which may still be under way.

        Returns
        -------
        list of Description
            What was aborted.
        """
        state = driver_state.load(self._options.sink_id, self._options.checkpoint)
        if state is None or any(p.execution != state.execution for p in parts):
            return []  # stopped before the claim, when no task has begun; or a newer run began, and its claim swept
        mine = [h for p in parts if (h := p.handle) is not None]
        try:
            log_state = self._decider.log.own(state.token, Deadline(ABORT_BUDGET_S))
        except Fenced:
            return self._decider.abandon(mine, state)
        if log_state.is_decided(state.query_id, batch_id):
            return []
        return self._decider.abort_own(state)

    # -- steps ----------------------------------------------------------------------------------------------------

    def _check(self, parts: Sequence[Part | None], batch_id: int, state: DriverState) -> list[Part]:
        done = [p for p in parts if p is not None]
        if len(done) < len(parts) or not done:
            raise UnsupportedMode(
                "Spark asks for the commit of a batch without results of its tasks, as it does in continuous mode",
                "Use trigger(processingTime=...) or trigger(availableNow=True)",
            )
        seen = {(p.execution, p.token, p.batch_id, p.query_id, p.plan, p.offsets_digest) for p in done}
        expected = {(state.execution, state.token, batch_id, state.query_id, done[0].plan, done[0].offsets_digest)}
        if seen != expected:
            raise ProtocolViolation(
                f"batch {batch_id}: the tasks report {sorted(map(str, seen))}, but the driver planned {expected}",
                "Start the stream again; if it repeats, report it with this message",
            )
        return done

    def _housekeeping(self, parts: list[Part], state: DriverState) -> DriverState:
        """Abort what failed attempts of this execution, or late tasks of older claims, left open."""
        retried = any(not p.attempt.startswith("0.") for p in parts)
        if not retried and now_ms() - state.swept_ms < SWEEP_EVERY_MS:
            return state
        slots = older_slots(state.token, SLOTS) | {slot_of(state.token)}
        control = self._decider.control().renew(DECIDE_BUDGET_S)
        try:
            swept = sweep(self._options.sink_id, control, state.end_txn_version, lambda p: p.slot in slots)
            if swept:
                count(self._decider.log, state.token, Deadline(DECIDE_BUDGET_S), aborted=len(swept))
                log.warning("sink %s: aborted %d transactions of failed attempts", self._options.sink_id, len(swept))
        except ExactlyOnceError as e:  # the batch is committed; the next one sweeps again
            log.warning("sink %s: %s", self._options.sink_id, e)
            return state
        return replace(state, swept_ms=now_ms())

    # -- plumbing -------------------------------------------------------------------------------------------------

    def _state(self) -> DriverState:
        state = driver_state.load(self._options.sink_id, self._options.checkpoint)
        if state is None:
            raise ProtocolViolation("this driver has no claim on the sink", "Start the stream again")
        return state

    def _save(self, state: DriverState) -> None:
        driver_state.save(self._options.sink_id, self._options.checkpoint, state)


def proposal(parts: Sequence[Part], state: DriverState) -> Decision:
    """The decision that ``parts`` ask for; its times are filled in when it is made."""
    return Decision(
        state.query_id,
        parts[0].batch_id,
        state.token,
        tuple(p.handle for p in parts if p.handle is not None),
        parts[0].offsets_digest,
        state.end_txn_version,
        0,
        parts[0].run_id,
        tuple(sorted({t for p in parts for t in p.topics})),
    )


def _last_decision(state: DriverState) -> Decision | None:
    if state.last_batch < 0:
        return None
    return Decision(state.query_id, state.last_batch, state.token, (), state.last_digest, state.end_txn_version, 0)
