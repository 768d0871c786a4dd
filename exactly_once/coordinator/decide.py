"""The decision of a batch: every part is there, one durable record, then the commits."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from exactly_once.commitlog.progress import ProgressRecord
from exactly_once.coordinator.abort import roll_back
from exactly_once.coordinator.complete import COMMITTED, complete, decided_error
from exactly_once.coordinator.driver_state import DriverState
from exactly_once.coordinator.session import Session
from exactly_once.deadline import Deadline, now_ms
from exactly_once.errors import AlreadyDecided, BatchTooLong, BrokerUnreachable, ExactlyOnceError, Expiring
from exactly_once.failpoints import reach
from exactly_once.participant import Proposal
from exactly_once.protocol.counting import counted
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.loss import lost_parts
from exactly_once.protocol.planning import check_undecided
from exactly_once.protocol.records import Completed, Decision, in_order
from exactly_once.protocol.replay import Replay, lost_handles

_PERHAPS_DECIDED = (
    "The driver cannot tell whether the batch is decided; the next start finds out, and writes the rows once"
)
DECIDE_BUDGET_S = 30.0


@dataclass(frozen=True, slots=True)
class Committed:
    """A batch whose parts are all committed: its decision as it was written, the mark that says so, to be written by
    :func:`mark`, and the state of the log behind the decision.
    """

    decision: Decision
    done: Completed
    log: LogState


def decide_and_complete(
    session: Session, proposed: Decision, state: DriverState, amended: Decision | None = None
) -> Committed:
    """Decide ``proposed`` under the claim of ``state``, and complete it.

    ``amended`` is the earlier decision of the same batch of which ``proposed`` replaces lost parts: its other handles
    stay, and are committed already.

    Raises Fenced, AlreadyDecided, Expiring, BatchTooLong, Expired, Lost, Unfinished, BrokerUnreachable, TopicRecreated
    or ParticipantMissing.
    """
    reach("all-prepared")
    log = session.log.own(state.token, Deadline(DECIDE_BUDGET_S))  # fences the decision
    proposal = _proposal(session, proposed, state, log)
    session.log.begin(state.input_offsets)
    foreseen = _sent_ahead(session, proposal, state, log) if amended is None else None
    with session.trace.step("confirm"):
        confirmed = _confirm(session, proposal, state)
    reach("confirmed")
    prepare_ms = max(0, now_ms() + state.clock_ahead_ms - confirmed.began_ms) if confirmed.began_ms else 0
    decision = replace(confirmed, decided_ms=now_ms())
    if amended is not None:
        decision = amend(amended, decision, state.replay)
    decision = foreseen if foreseen and _says_the_same(decision, foreseen) else _with_count(decision, log)
    started = time.monotonic()
    try:
        with session.trace.step("decide"):
            log = _write(session, decision, state, amended, _left_s(confirmed, state))
    except AlreadyDecided:
        roll_back(session, proposed.handles, state)
        raise
    decided = time.monotonic()
    reach("decided")
    session.log.begin()  # for the mark
    with session.trace.step("complete"):
        lost = complete(session, decision)
    if lost:
        raise lost_parts(session.sink_id, decision, lost)
    durations = prepare_ms, _ms(started, decided), _ms(decided, time.monotonic())
    done = Completed(decision.query_id, decision.batch_id, state.token, now_ms(), *durations)
    return Committed(decision, done, log)


def mark(session: Session, batch: Committed, progress: ProgressRecord | None = None) -> None:
    """Write to the commit log that every part of ``batch`` is committed, and tell readers so. Errors of the log are
    re-raised; they say that the batch is committed.
    """
    reach("marking")
    try:
        session.log.append(batch.done, Deadline(DECIDE_BUDGET_S), progress=progress)
    except ExactlyOnceError as e:
        raise decided_error(e, COMMITTED) from e
    session.log.tally(batch.done.token, Deadline(DECIDE_BUDGET_S), rewritten=len(batch.decision.rewritten))
    reach("completed")


def _proposal(session: Session, proposed: Decision, state: DriverState, log: LogState) -> Proposal:
    return Proposal(
        sink_id=session.sink_id,
        checkpoint=session.checkpoint,
        batch=state.batch,
        decision=proposed,
        last=log.last_decision(proposed.query_id),
        planned_ms=state.planned_ms,
        timeout_ms=state.timeout_ms,
        clock_ahead_ms=state.clock_ahead_ms,
        too_long=state.too_long,
    )


def _sent_ahead(session: Session, proposal: Proposal, state: DriverState, log: LogState) -> Decision | None:
    """Send the decision as :func:`_confirm` will most likely return it, and return it; None where nobody can tell."""
    foreseen = session.kafka.foresee(proposal)
    if foreseen is None:
        return None
    planned_ms = state.planned_ms + session.log.clock_ahead_least_ms
    foreseen = replace(foreseen, began_ms=planned_ms if foreseen.transactions else 0, decided_ms=now_ms())
    foreseen = _with_count(foreseen, log)
    session.log.send(foreseen, state.input_offsets, Deadline(DECIDE_BUDGET_S))
    return foreseen


def _confirm(session: Session, proposal: Proposal, state: DriverState) -> Decision:
    """Keep invariant 3: every participant confirms its parts, Kafka last, whose transactions' time is running. When a
    newer owner ended the parts, Fenced is the error to report.
    """
    decision = proposal.decision
    try:
        for participant in reversed(session.participants.values()):
            decision = participant.confirm(replace(proposal, decision=decision))
    except (Expiring, BatchTooLong):
        session.log.close()
        session.log.own(state.token, Deadline(DECIDE_BUDGET_S))  # reads afresh: a newer owner may be the cause
        raise
    return decision


def _says_the_same(decision: Decision, foreseen: Decision) -> bool:
    """Return whether the confirmed decision is the one that was sent, but for its times and its count."""
    began_ms, decided_ms, count = foreseen.began_ms, foreseen.decided_ms, foreseen.counted
    return replace(decision, began_ms=began_ms, decided_ms=decided_ms, counted=count) == foreseen


def _with_count(decision: Decision, log: LogState) -> Decision:
    """Add what the streams of the sink have committed with this batch; one that is decided again counts once."""
    if decision.counted is not None:
        return decision
    batch = decision.query_id, decision.batch_id
    before = [d for d in log.decisions if (d.query_id, d.batch_id) != batch]
    return replace(decision, counted=counted([*before, decision]))


def _left_s(decision: Decision, state: DriverState) -> float:
    """Return how long the oldest of the transactions will still be open."""
    age_ms = now_ms() + state.clock_ahead_ms - decision.began_ms if decision.began_ms else 0
    return (state.timeout_ms - age_ms) / 1000


def _write(
    session: Session, decision: Decision, state: DriverState, amended: Decision | None, left_s: float
) -> LogState:
    """Write the decision to the commit log; return the state behind it. The transactions are open for ``left_s``."""

    def check(log_state: LogState) -> None:
        check_undecided(session.sink_id, decision, log_state, amended)

    try:
        # half of what is left: a decision that is written late must still leave time to complete it
        budget_s = min(DECIDE_BUDGET_S, left_s / 2)
        return session.log.append(decision, Deadline(budget_s), state.input_offsets, check)
    except BrokerUnreachable as e:
        raise BrokerUnreachable(e.what, e.way_out, safe=_PERHAPS_DECIDED) from e


def amend(earlier: Decision, replacement: Decision, replay: Replay) -> Decision:
    """Return the decision of a batch after its lost parts, those of ``replay``, were written again.

    ``replacement`` holds what replaces those parts alone, which may have other numbers.

    All its handles are ended with one version of EndTxn. Of the two claims' versions that is the lower one: what was
    committed with it must be asked for with it again, and a broker takes it for new transactions too.
    """
    lost = lost_handles(replay, earlier.handles)
    return replace(
        replacement,
        handles=in_order((*(h for h in earlier.handles if h not in lost), *replacement.handles)),
        topics=tuple(sorted({*earlier.topics, *replacement.topics})),
        rewritten=tuple(sorted({*earlier.rewritten, *(f"{h.participant}/{h.part}" for h in lost)})),
        end_txn_version=min(earlier.end_txn_version, replacement.end_txn_version),
        counted=earlier.counted,
        ended=earlier.ended,
    )


def _ms(start: float, end: float) -> int:
    return round((end - start) * 1000)
