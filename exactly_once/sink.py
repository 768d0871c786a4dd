"""The driver's side of a micro-batch: plan it, decide and complete it, or abort it.

Planning and committing run in different processes: :func:`plan` where Spark plans a write, :class:`Committer` where
Spark commits it. What they share lies in :mod:`exactly_once.driver_state` and in the commit log.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace

from exactly_once import driver_state
from exactly_once.checkpoint import batch_in_flight
from exactly_once.claim import COMPLETE_BUDGET_S, claim_for_stream
from exactly_once.completion import complete, older_slots, sweep
from exactly_once.deadline import Deadline
from exactly_once.driver_state import DriverState
from exactly_once.errors import Expiring, Fenced, ProtocolViolation, UnsupportedMode
from exactly_once.failpoints import reach
from exactly_once.kafka.commit_log import CommitLog, now_ms
from exactly_once.kafka.control import Control, Description
from exactly_once.options import SinkOptions
from exactly_once.protocol.names import SLOTS, slot_of
from exactly_once.protocol.planning import Batch, Plan, plan_batch
from exactly_once.protocol.records import Completed, Decision, PreparedTransaction

log = logging.getLogger(__name__)

#: A decision needs this part of the timeout still ahead, so that a driver which dies right after it leaves the next one
#: time to start and complete.
SPARE = 0.3

#: At this part of the timeout a warning says that batches are getting too long for it.
WARN = 0.5

#: Transactions that failed attempts left open block readers, so they are looked for at least this often.
SWEEP_EVERY_MS = 30_000

DECIDE_BUDGET_S = 30.0
ABORT_BUDGET_S = 10.0


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
    if state is None or not state.finished or state.query_id != batch.query_id:
        state = claim_for_stream(options, batch)
    last = _last_decision(state)
    ticket = Ticket(
        batch,
        plan_batch(options.sink_id, batch, last, adopt=True),  # the claim has asked for consent where it is needed
        state.token,
        uuid.uuid4().hex,
        state.timeout_ms,
    )
    driver_state.save(options.sink_id, options.checkpoint, state.planned(ticket.execution))
    return ticket


class Committer:
    """Decides, completes and aborts batches of one sink; keeps its connections for the life of the process."""

    def __init__(self, options: SinkOptions):
        self._options = options
        self._log = CommitLog(options.connection, options.sink_id)
        self._control: Control | None = None

    def close(self) -> None:
        """Close the connections."""
        self._log.close()
        if self._control is not None:
            self._control.close()
            self._control = None

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
            decision = self._decide_and_complete(done, state)
            batch = decision.batch_id, decision.offsets_digest
            state = replace(state, last_batch=batch[0], last_digest=batch[1])
            state = self._housekeeping(done, state)
        self._save(replace(state, finished=True))
        return decision

    def _decide_and_complete(self, parts: list[Part], state: DriverState) -> Decision:
        handles = tuple(p.handle for p in parts if p.handle is not None)
        batch = batch_in_flight(self._options.checkpoint)
        reach("all-prepared")
        self._check_alive(handles, state)
        decision = Decision(
            state.query_id,
            parts[0].batch_id,
            state.token,
            handles,
            batch.offsets_digest,
            state.end_txn_version,
            now_ms(),
            parts[0].run_id,
            tuple(sorted({t for p in parts for t in p.topics})),
        )
        self._log.append(decision, Deadline(DECIDE_BUDGET_S))
        reach("decided")
        if handles:
            complete(self._options.sink_id, decision, self._connected(), COMPLETE_BUDGET_S)
        done = Completed(decision.query_id, decision.batch_id, state.token, now_ms())
        self._log.append(done, Deadline(DECIDE_BUDGET_S))
        reach("completed")
        return decision

    def abort(self, batch_id: int) -> list[Description]:
        """Abort what this driver's last execution left open, unless its batch is decided.

        Spark calls this also after a failed commit. The log is initialised and read first: that settles a decision
        which may still be under way.

        Returns
        -------
        list of Description
            What was aborted.
        """
        state = driver_state.load(self._options.sink_id, self._options.checkpoint)
        if state is None:
            return []  # stopped before the claim: no task has begun
        try:
            log_state = self._log.own(state.token, Deadline(ABORT_BUDGET_S))
        except Fenced:
            return []  # the newer owner sweeps
        if log_state.is_decided(state.query_id, batch_id):
            return []
        slot = slot_of(state.token)
        control = self._connected().renew(ABORT_BUDGET_S)
        return sweep(self._options.sink_id, control, state.end_txn_version, lambda p: p.slot == slot)

    # -- steps ----------------------------------------------------------------------------------------------------

    def _check(self, parts: Sequence[Part | None], batch_id: int, state: DriverState) -> list[Part]:
        done = [p for p in parts if p is not None]
        if len(done) < len(parts) or not done:
            raise UnsupportedMode(
                "Spark asks for the commit of a batch without results of its tasks, as it does in continuous mode",
                "Use trigger(processingTime=...) or trigger(availableNow=True)",
            )
        seen = {(p.execution, p.token, p.batch_id, p.query_id, p.plan) for p in done}
        expected = {(state.execution, state.token, batch_id, state.query_id, done[0].plan)}
        if seen != expected:
            raise ProtocolViolation(
                f"batch {batch_id}: the tasks report {sorted(map(str, seen))}, but the driver planned {expected}",
                "Start the stream again; if it repeats, report it with this message",
            )
        return done

    def _check_alive(self, handles: Sequence[PreparedTransaction], state: DriverState) -> None:
        """Invariant 3: every transaction is open, is the one that was prepared, and has time to spare."""
        described = self._connected().renew(DECIDE_BUDGET_S).describe(h.transactional_id for h in handles)
        broker_now = time.time() * 1000 + state.clock_ahead_ms
        oldest = 0.0
        for h in handles:
            d = described[h.transactional_id]
            used = (broker_now - d.started_ms) / max(1, d.timeout_ms)
            if (d.state, d.producer_id, d.producer_epoch) != ("Ongoing", h.producer_id, h.epoch) or used > 1 - SPARE:
                why = (
                    f"has used {used:.0%} of its {d.timeout_ms} ms"
                    if d.state == "Ongoing" and d.producer_epoch == h.epoch
                    else f"is gone (the broker says {d.state or 'unknown'} at epoch {d.producer_epoch}, not {h.epoch})"
                )
                raise Expiring(
                    f"the transaction {h.transactional_id} of part {h.part} {why}",
                    "Make batches shorter (maxOffsetsPerTrigger, fewer rows) or raise kafka.transaction.timeout.ms; "
                    "then "
                    "start again",
                )
            oldest = max(oldest, used)
        if oldest > WARN:
            log.warning(
                "sink %s: EO-WARN-TIMEOUT the batch used %.0f%% of transaction.timeout.ms=%d before its decision; "
                "past %.0f%% it "
                "would not be decided",
                self._options.sink_id,
                oldest * 100,
                state.timeout_ms,
                (1 - SPARE) * 100,
            )

    def _housekeeping(self, parts: list[Part], state: DriverState) -> DriverState:
        """Abort what failed attempts of this execution, or late tasks of older claims, left open."""
        retried = any(not p.attempt.startswith("0.") for p in parts)
        if not retried and now_ms() - state.swept_ms < SWEEP_EVERY_MS:
            return state
        slots = older_slots(state.token, SLOTS) | {slot_of(state.token)}
        control = self._connected().renew(DECIDE_BUDGET_S)
        swept = sweep(self._options.sink_id, control, state.end_txn_version, lambda p: p.slot in slots)
        if swept:
            log.warning("sink %s: aborted %d transactions of failed attempts", self._options.sink_id, len(swept))
        return replace(state, swept_ms=now_ms())

    # -- plumbing -------------------------------------------------------------------------------------------------

    def _connected(self) -> Control:
        if self._control is None:
            self._control = Control(self._options.connection, DECIDE_BUDGET_S)
        return self._control

    def _state(self) -> DriverState:
        state = driver_state.load(self._options.sink_id, self._options.checkpoint)
        if state is None:
            raise ProtocolViolation("this driver has no claim on the sink", "Start the stream again")
        return state

    def _save(self, state: DriverState) -> None:
        driver_state.save(self._options.sink_id, self._options.checkpoint, state)


def _last_decision(state: DriverState) -> Decision | None:
    if state.last_batch < 0:
        return None
    return Decision(state.query_id, state.last_batch, state.token, (), state.last_digest, state.end_txn_version, 0)
