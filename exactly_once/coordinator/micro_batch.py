"""The driver's side of a micro-batch: plan it, decide and complete it, or abort it."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from exactly_once.checkpoint import batch_in_flight
from exactly_once.commitlog.input_offsets import Offsets
from exactly_once.coordinator.abort import abort_execution, own_scope
from exactly_once.coordinator.claim import claim_for_stream
from exactly_once.coordinator.complete import progress_to_tell
from exactly_once.coordinator.coordination import Coordination
from exactly_once.coordinator.decide import DECIDE_BUDGET_S, Committed, decide_and_complete, mark
from exactly_once.coordinator.driver_state import DriverState
from exactly_once.coordinator.named import checked_ends
from exactly_once.coordinator.session import Session
from exactly_once.coordinator.turns import turns_of
from exactly_once.deadline import Deadline, now_ms
from exactly_once.errors import ExactlyOnceError, ProtocolViolation, UnsupportedMode
from exactly_once.options import SinkOptions
from exactly_once.participant import Participant, Scope
from exactly_once.protocol.checkpoint_text import kafka_offsets
from exactly_once.protocol.dead_letters import check_number, first_refusal
from exactly_once.protocol.loss import in_doubt, other_rows
from exactly_once.protocol.planning import Batch, Plan, history_consent, plan_batch
from exactly_once.protocol.records import Decision, in_order
from exactly_once.protocol.replay import Match, lost_handles, match
from exactly_once.protocol.ticket import Part, Ticket

log = logging.getLogger(__name__)

#: Longest time between two sweeps for parts of failed attempts. In Kafka a sweep looks at every transactional id of the
#: cluster: with a hundred thousand a broker took 13 ms and more for each (4.3, a laptop).
SWEEP_EVERY_MS = 30_000

#: Time from a batch's plan to its commit below which the transaction of the next decision begins with the plan: well
#: below that transaction's timeout.
QUICK_S = 5.0


class Coordinator(Coordination):
    """The driver's side of one query that runs: made when it starts, closed when it ends. ``others`` are its outputs
    beside Kafka.

    It claims the sink for the query's first batch, and keeps its connections.
    """

    writes_once = False

    def __init__(self, options: SinkOptions, others: Iterable[Participant[Any]] = ()):
        self.options = options
        self.ticket: Ticket | None = None
        self._session = Session.of(options, others)
        self._turns = turns_of(options.connection.bootstrap_servers)
        self._state: DriverState | None = None
        self._marking: Future[DriverState] | None = None
        self._beginning: Future[None] | None = None
        self._took_s = float("inf")

    def plan(self, check: Callable[[Batch], None] | None = None) -> Ticket:
        """Plan the batch in flight; claim the sink first, if this is the query's first batch.

        After an execution that did not finish, it claims the sink again: tasks of that one may still be alive. It also
        claims again if the last completed mark could not be written; that error is raised first.
        """
        self._await_mark()
        self._await_beginning()
        turn = self._turns.claim() if self._state is None else self._turns.step()
        with self._session.trace.planning("batch"), turn:
            self.ticket = self._plan(check)
        return self.ticket

    def _plan(self, check: Callable[[Batch], None] | None) -> Ticket:
        state = self._state
        batch = batch_in_flight(self.options.checkpoint, self.options.sink_id, state.written if state else None)
        self._session.trace.say_of_batch(f"batch {batch.batch_id}", query=batch.query_id, batch=batch.batch_id)
        if check is not None:
            check(batch)
        if state is None or not state.finished or not state.log_end:  # with 0, tasks would take it for another's claim
            state = claim_for_stream(self._session, self.options, batch)
        may = plan_batch(self.options.sink_id, batch, state.last, adopt=True)  # the claim asked for consent
        ended = None
        if may is Plan.WRITE:
            self._session.kafka.ask_settings()
            ended = checked_ends(self.options, batch, state.last, lambda: history_consent(batch) in self.options.adopt)
        ends = kafka_offsets(batch.sources) if self.options.input_offsets else {}
        self._state = state = state.planned(uuid.uuid4().hex, batch, now_ms(), ends, ended)
        if may is not Plan.DRAIN:  # while tasks run, so that the decision need not wait for the answers
            self._beginning = self._session.submit(partial(self._begin_decision, ends))
        return state.ticket(Plan.REPLAY if may is Plan.DRAIN and state.replay else may)

    def _begin_decision(self, ends: Offsets) -> None:
        """Ask for what the decision of the planned batch needs, and begin its transaction if it will not take long."""
        if ends:
            self._session.log.ask_group(ends, Deadline(DECIDE_BUDGET_S))
        if self._took_s < QUICK_S:
            self._session.log.begin(ends)

    @property
    def longest_ms(self) -> int | None:
        """The brokers' transaction.max.timeout.ms, once the sink is claimed."""
        return self._state.longest_ms if self._state else None

    def commit(self, parts: Sequence[Part | None], batch_id: int) -> Decision | None:
        """Commit a batch.

        1. Check that the parts are those of the execution that was planned last.
        2. Ask the brokers: every prepared transaction is alive, with time to spare.
        3. Decide: one fenced, durable record. From here on the batch will be committed, whoever does it.
        4. Complete: EndTxn for every handle, until each outcome is proven.
        5. While Spark writes ``commits/N``: mark the decision as completed, and sweep what failed attempts left open
           (:meth:`_housekeeping`).
           The next call waits for that, whichever it is.

        Returns
        -------
        Decision or None
            None when the batch was drained.

        Raises
        ------
        UnsupportedMode, ProtocolViolation
            The parts are not those of the execution that was planned last.
        InvalidRecord
            More of the rows than the sink may make dead letters of cannot be written: nothing is decided.
        Fenced
            A newer claim owns the sink.
        Expiring, BatchTooLong
            A part is gone or too old: nothing is decided.
        Unfinished, Expired, Lost
            The batch is decided, but a commit is not proven, its outcome is unknown, or a part was rolled back.
        """
        self._session.trace.written()
        self._await_beginning()
        try:
            with self._turns.step():
                return self._commit(parts, batch_id)
        except BaseException as e:
            self._session.trace.fail(e)  # the abort ends the trace
            raise

    def _commit(self, parts: Sequence[Part | None], batch_id: int) -> Decision | None:
        state, trace = self._planned(), self._session.trace
        done = self._check(parts, batch_id, state)
        self._took_s = (now_ms() - state.planned_ms) / 1000
        decision = None
        if done[0].plan is Plan.DRAIN:
            self._session.log.tally(state.token, Deadline(DECIDE_BUDGET_S), drained=1)
            self._state = replace(state, finished=True, log_end=self._session.log.high_watermark)
            trace.say_of_batch(outcome="drained")
            trace.end()
        else:
            check_number(self.options.dead_letters, done)
            batch = self._decide(done, state)
            decision = batch.decision
            self._warn_of_dead_letters(decision, done)
            trace.say_of_batch(
                outcome="committed",
                parts=len(decision.handles),
                records=decision.records,
                dead_letters=decision.dead_letters,
            )
            self._state = state = replace(state, last=decision, replay={}, too_long=0, finished=True)
            self._marking = self._session.submit(partial(self._marked, done, state, batch))
        return decision

    def abort(self, batch_id: int, parts: Sequence[Part | None] = ()) -> dict[str, list[str]]:
        """Roll back the open parts of the last execution, unless its batch is decided.

        Spark calls this also after a failed commit. The log is initialised and read first: that settles a decision
        which may still be under way. Then the log is told, for tasks that are still alive.
        """
        with suppress(ExactlyOnceError):  # it is logged, and that batch is committed
            self._await_mark()
        self._await_beginning()
        trace = self._session.trace
        trace.written()
        try:
            with trace.step("abort"):
                return self._abort(batch_id, parts)
        finally:
            trace.end()

    def _abort(self, batch_id: int, parts: Sequence[Part | None]) -> dict[str, list[str]]:
        state = self._state
        done = [p for p in parts if p is not None]
        if state is None or any(p.execution != state.execution for p in done):
            return {}  # stopped before the claim, when no task has begun; or parts of an execution before the last
        handles = [h for p in done for h in p.handles]
        return abort_execution(self._session, state, batch_id, handles, bool(parts) and len(done) == len(parts))

    def close(self) -> dict[str, list[str]]:
        """Roll back what an execution that did not finish has left open, and close the connections.

        Spark's own call of :meth:`abort` may not have come through: ``query.stop()`` interrupts the thread that makes
        it. And its tasks may have outlived that call by seconds.
        """
        with suppress(ExactlyOnceError):
            self._await_mark()
        self._await_beginning()
        state, self._state = self._state, None
        try:
            if state is None or state.finished:
                return {}
            return abort_execution(self._session, state, state.batch.batch_id, (), reported=False)
        finally:
            self._session.trace.end()
            self._session.close()

    # -- steps ----------------------------------------------------------------------------------------------------

    def _check(self, parts: Sequence[Part | None], batch_id: int, state: DriverState) -> list[Part]:
        done = [p for p in parts if p is not None]
        if len(done) < len(parts) or not done:
            raise UnsupportedMode(
                "Spark asked to commit a batch without results from its tasks, as it does in continuous mode",
                "Use trigger(processingTime=...) or trigger(availableNow=True)",
            )
        seen, planned = {(batch_id, p.execution, p.plan) for p in done}, (state.batch.batch_id, state.execution)
        if seen != {(*planned, done[0].plan)}:
            raise ProtocolViolation(
                f"batch {batch_id}: the tasks report {sorted(map(str, seen))}, but the driver planned {planned}",
                "Start the stream again; if the error repeats, report it with this message",
            )
        return done

    def _decide(self, parts: list[Part], state: DriverState) -> Committed:
        proposed = proposal(parts, state)
        if parts[0].plan is not Plan.REPLAY:
            return decide_and_complete(self._session, proposed, state)
        found = match(state.replay, proposed.handles)
        earlier = earlier_decision(self._session.sink_id, state.last, parts, state, found)
        for name, participant in self._session.participants.items():
            if spare := [h for h in found.spare if h.participant == name]:
                participant.abort(spare)
        return decide_and_complete(self._session, replace(proposed, handles=in_order(found.handles)), state, earlier)

    def _warn_of_dead_letters(self, decision: Decision, parts: list[Part]) -> None:
        if self.options.dead_letters is None or not decision.dead_letters:
            return
        what, way_out = first_refusal(parts)
        log.warning(
            "sink %s: EO-WARN-DEAD %d of %d rows of batch %d cannot be written and are in %s. The first: %s. %s",
            self._session.sink_id,
            decision.dead_letters,
            decision.records,
            decision.batch_id,
            self.options.dead_letters.topic,
            what,
            way_out,
        )

    def _await_beginning(self) -> None:
        """Wait until nobody else uses the log. What could not be asked, the decision asks."""
        beginning, self._beginning = self._beginning, None
        if beginning is not None:
            wait([beginning])

    def _await_mark(self) -> None:
        """Wait until the decision of the last batch is marked as completed. An error of the log, told as that of a
        batch that is committed, leaves the execution unfinished: the next plan claims again, and :meth:`close` rolls
        back what failed attempts left open.
        """
        marking, self._marking = self._marking, None
        if marking is None:
            return
        try:
            self._state = marking.result()
        except ExactlyOnceError:
            self._state = replace(self._planned(), finished=False)
            raise

    def _marked(self, parts: list[Part], state: DriverState, batch: Committed) -> DriverState:
        """Do :meth:`_housekeeping`, and log why it failed: no later call may ask."""
        try:
            return self._housekeeping(parts, state, batch)
        except ExactlyOnceError as e:
            log.warning("sink %s: %s", self._session.sink_id, e)
            self._session.trace.fail(e)
            raise
        finally:
            self._session.trace.end()

    def _housekeeping(self, parts: list[Part], state: DriverState, batch: Committed) -> DriverState:
        """Mark the decision as completed, and meanwhile roll back what failed attempts of this execution, and late
        tasks of older claims, left open; return the state after that.

        It looks for that where a part says that there was such an attempt, behind the batch after that one, and now and
        then.
        """
        session, swept_ms = self._session, state.swept_ms
        again = any(p.again for p in parts)
        sweeps = again or now_ms() - swept_ms >= SWEEP_EVERY_MS
        scope = own_scope(session.sink_id, state, batch.log)  # the scope spares the parts of this decision
        progress = progress_to_tell(session, batch.decision, batch.log.owner, Deadline(DECIDE_BUDGET_S))
        beside = session.submit(partial(self._beside_mark, scope if sweeps else None, batch.decision))
        try:
            with session.trace.step("mark"):
                mark(session, batch, progress)
        finally:
            wait([beside])
        try:
            swept = beside.result()
            if sweeps:  # an attempt that was given up may outlive its batch by seconds
                swept_ms = 0 if again else now_ms()
            if count := sum(map(len, swept.values())):
                session.log.tally(state.token, Deadline(DECIDE_BUDGET_S), aborted=count)
                log.warning("sink %s: aborted %d transactions of failed attempts", session.sink_id, count)
        except ExactlyOnceError as e:  # the batch is committed; the next one sweeps again
            log.warning("sink %s: %s", session.sink_id, e)
        clock_ahead_ms, log_end = session.log.clock_ahead_ms, session.log.high_watermark
        return replace(state, swept_ms=swept_ms, clock_ahead_ms=clock_ahead_ms, log_end=log_end)

    def _beside_mark(self, scope: Scope | None, decision: Decision) -> dict[str, list[str]]:
        """Roll back what ``scope`` names, if any, and say what the settings of the topics delete of ``decision``."""
        swept = self._session.sweep(scope) if scope is not None else {}
        self._session.kafka.warn_of_deletion(decision)
        return swept

    def _planned(self) -> DriverState:
        if self._state is None:
            raise ProtocolViolation("this driver has no claim on the sink", "Start the stream again")
        return self._state


def proposal(parts: Sequence[Part], state: DriverState) -> Decision:
    """Return the decision that ``parts`` ask for; its times are filled in when it is made."""
    return Decision(
        query_id=state.batch.query_id,
        batch_id=state.batch.batch_id,
        token=state.token,
        handles=in_order(h for p in parts for h in p.handles),
        offsets_digest=state.batch.offsets_digest,
        end_txn_version=state.end_txn_version,
        decided_ms=0,
        run_id=parts[0].run_id,
        offsets=state.batch.offsets,
        ended=state.ended,
    )


def earlier_decision(
    sink_id: str, decision: Decision | None, parts: Sequence[Part], state: DriverState, match: Match
) -> Decision:
    """Return ``decision``, whose lost parts ``parts`` have written again; raise Expired when rows of a lost part did
    not come again.
    """
    batch_id = state.batch.batch_id
    if decision is None or decision.batch_id != batch_id:
        raise ProtocolViolation(
            f"batch {batch_id} was planned as a replay, but the commit log has no decision of this batch",
            "Start the stream again; if the error repeats, report it with this message",
        )
    name = decision.title(sink_id)
    handles = lost_handles(state.replay, decision.handles)
    if match.missing:
        missing = [h for h in handles if (h.participant, str(h.part)) in match.missing]
        raise other_rows(name, decision, missing)
    if added := {t for p in parts for t in p.topics} - set(decision.topics):
        why = f"these parts were rolled back, and their rows now go to other topics: {', '.join(sorted(added))}"
        raise in_doubt(name, decision, handles, why)
    log.warning("sink %s: %d lost parts of batch %d are written again", sink_id, len(handles), batch_id)
    return decision
