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
from exactly_once.errors import (
    BrokerUnreachable,
    ExactlyOnceError,
    Expiring,
    Fenced,
    ProtocolViolation,
    UnsupportedMode,
)
from exactly_once.failpoints import reach
from exactly_once.kafka.commit_log import CommitLog, now_ms
from exactly_once.kafka.control import Control, Description, End
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

_PERHAPS_DECIDED = "Whether the batch is decided is not known here; the next start finds out, and writes its rows once"
_COMMITTED = "The batch is committed; the next start marks it so and drains its rows"

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
            state = replace(state, clock_ahead_ms=self._log.clock_ahead_ms)
        if self._state().execution == state.execution:  # else a newer run of the query has begun in this driver
            self._save(replace(state, finished=True))
        return decision

    def _decide_and_complete(self, parts: list[Part], state: DriverState) -> Decision:
        handles = tuple(p.handle for p in parts if p.handle is not None)
        reach("all-prepared")
        try:
            left_s = self._check_alive(handles, state)
        except Expiring:
            self._log.close()  # look afresh: when a newer owner did this, that is the error to report
            self._log.own(state.token, Deadline(DECIDE_BUDGET_S))
            raise
        decision = Decision(
            state.query_id,
            parts[0].batch_id,
            state.token,
            handles,
            parts[0].offsets_digest,
            state.end_txn_version,
            now_ms(),
            parts[0].run_id,
            tuple(sorted({t for p in parts for t in p.topics})),
        )
        try:
            # half of what is left: a decision that is written late must still leave time to complete it
            self._log.append(decision, Deadline(min(DECIDE_BUDGET_S, left_s / 2)))
        except BrokerUnreachable as e:
            raise BrokerUnreachable(e.what, e.way_out, safe=_PERHAPS_DECIDED) from e
        reach("decided")
        if handles:
            complete(self._options.sink_id, decision, self._connected(), COMPLETE_BUDGET_S)
        done = Completed(decision.query_id, decision.batch_id, state.token, now_ms())
        try:
            self._log.append(done, Deadline(DECIDE_BUDGET_S))
        except BrokerUnreachable as e:
            raise BrokerUnreachable(e.what, e.way_out, safe=_COMMITTED) from e
        reach("completed")
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
        try:
            log_state = self._log.own(state.token, Deadline(ABORT_BUDGET_S))
        except Fenced:
            return self._abandon(parts, state)
        if log_state.is_decided(state.query_id, batch_id):
            return []
        slot = slot_of(state.token)
        control = self._connected().renew(ABORT_BUDGET_S)
        return sweep(self._options.sink_id, control, state.end_txn_version, lambda p: p.slot == slot)

    def _abandon(self, parts: Sequence[Part], state: DriverState) -> list[Description]:
        """Abort what the tasks of this superseded driver prepared: its successor may be a recovery that is gone by now.

        Exactly these transactions, by producer id and epoch, and only those that this driver has not decided. Its log
        producer is fenced, so no decision of its own can follow.
        """
        decided = {h for d in self._log.read(Deadline(ABORT_BUDGET_S)).decisions for h in d.handles}
        mine = {h.transactional_id: h for p in parts if (h := p.handle) is not None and h not in decided}
        control = self._connected().renew(ABORT_BUDGET_S)
        found = [
            d
            for i, d in control.describe(mine).items()
            if (d.state, d.producer_id, d.producer_epoch) == ("Ongoing", mine[i].producer_id, mine[i].epoch)
        ]
        ends = [End(d.transactional_id, d.producer_id, d.producer_epoch) for d in found]
        control.end_all(ends, False, state.end_txn_version)
        return found

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

    def _check_alive(self, handles: Sequence[PreparedTransaction], state: DriverState) -> float:
        """Invariant 3: every transaction is open, is the one that was prepared, and has time to spare.

        Returns
        -------
        float
            The seconds that the one which expires first has left.
        """
        described = self._connected().renew(DECIDE_BUDGET_S).describe(h.transactional_id for h in handles)
        broker_now = time.time() * 1000 + state.clock_ahead_ms
        oldest, left_s = 0.0, state.timeout_ms / 1000
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
            left_s = min(left_s, (d.timeout_ms - broker_now + d.started_ms) / 1000)
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
        return left_s

    def _housekeeping(self, parts: list[Part], state: DriverState) -> DriverState:
        """Abort what failed attempts of this execution, or late tasks of older claims, left open."""
        retried = any(not p.attempt.startswith("0.") for p in parts)
        if not retried and now_ms() - state.swept_ms < SWEEP_EVERY_MS:
            return state
        slots = older_slots(state.token, SLOTS) | {slot_of(state.token)}
        control = self._connected().renew(DECIDE_BUDGET_S)
        try:
            swept = sweep(self._options.sink_id, control, state.end_txn_version, lambda p: p.slot in slots)
            if swept:
                log.warning("sink %s: aborted %d transactions of failed attempts", self._options.sink_id, len(swept))
        except ExactlyOnceError as e:  # the batch is committed; the next one sweeps again
            log.warning("sink %s: %s", self._options.sink_id, e)
            return state
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
