"""A claim ends what earlier claims left: it completes decided batches and rolls back undecided parts."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from exactly_once.coordinator.complete import COMMITTED, complete, decided_error, progress_to_tell
from exactly_once.coordinator.consent import Consent
from exactly_once.coordinator.session import Session
from exactly_once.deadline import Deadline, now_ms
from exactly_once.errors import ExactlyOnceError, Expired
from exactly_once.participant import Handle, Scope
from exactly_once.protocol import records
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.names import SLOTS, PartId, older_slots
from exactly_once.protocol.records import KAFKA, Completed, Decision
from exactly_once.txn.coordinators import Description, end_txn_version
from exactly_once.txn.hanging import END_BUDGET_S, end_left_open, was_aborted
from exactly_once.txn.leaders import Hanging

log = logging.getLogger(__name__)


def end_hanging(session: Session, token: int, state: LogState) -> list[str]:
    """End what hangs of claims before ``token``, on the topics that the log and the options name. Never raises: readers
    waited before, and the next claim asks again.

    It touches the ids that a sweep of this claim may touch, save those that an open decision names, and returns those
    of what was aborted.
    """
    topics = session.kafka.topics | {topic for d in state.decisions for topic in d.topics}
    spare = {h.name for d in state.open_decisions for h in d.transactions}
    slots = older_slots(token, SLOTS)

    def mine(transactional_id: str) -> bool:
        part = PartId.parse(transactional_id)
        own = part is not None and part.sink_id == session.sink_id and part.slot in slots
        return own and transactional_id not in spare

    try:
        admin = session.kafka.admin(END_BUDGET_S)
        hung = end_left_open(admin, topics, mine, lambda h, d: to_commit(h, d, end_txn_version(admin), state))
    except ExactlyOnceError as e:
        _warn(session.sink_id, e.what)
        return []
    if hung.ended:
        names = ", ".join(h.name for h in hung.ended)
        log.warning("sink %s: ended hanging transactions that kept readers waiting: %s", session.sink_id, names)
    if hung.left or hung.why:
        left = ", ".join(h.name for h in hung.left)
        _warn(session.sink_id, "; ".join(text for text in (hung.why, left and f"left: {left}") if text))
    named = [h for h in hung.ended if state.naming(h.producer_id, h.producer_epoch)]  # it was committed
    return sorted({str(h.transactional_id) for h in hung.ended if h not in named})


def to_commit(h: Hanging, d: Description, version: int, state: LogState) -> bool | None:
    """Return whether a hanging transaction of the sink is to be committed (True) or aborted; None when that is not
    known, or for a person to say. ``d`` is its coordinator's view of its id, ``version`` that of EndTxn on the cluster.
    """
    if named := state.naming(h.producer_id, h.producer_epoch):
        mark = state.marks.get((named[0].query_id, named[0].batch_id))
        return True if mark is not None and mark.how == records.COMMITTED else None
    undecided = was_aborted(h, d, version) or state.would_name(h.producer_id, h.producer_epoch, h.last_timestamp_ms)
    return False if undecided else None


def _warn(sink_id: str, why: str) -> None:
    log.warning(
        "sink %s: EO-WARN-HANGING hanging transactions of this sink may keep readers waiting (%s): run exactly-once "
        "transactions list --hanging --sink %s",
        sink_id,
        why,
        sink_id,
    )


@dataclass(frozen=True)
class Loss:
    """A decision, and those of its parts that are proven to be rolled back."""

    decision: Decision
    handles: list[Handle]


@dataclass
class Resolved:
    """The batches of earlier drivers that a claim completed, found lost, or could not complete; by participant, the
    names of the undecided parts that it rolled back; and the state of the log behind its marks.
    """

    log: LogState
    completed: list[Decision] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    rolled_back: dict[str, list[str]] = field(default_factory=dict)
    failures: list[tuple[Decision, ExactlyOnceError]] = field(default_factory=list)


def resolve(session: Session, token: int, consent: Consent, deadline: Deadline) -> Resolved:
    """Complete decided batches and roll back undecided parts; see :func:`complete_decided`, :func:`sweep_undecided`.

    When a decision cannot be completed (``failures``), undecided parts are rolled back anyway, since readers wait for
    them.
    """
    found = complete_decided(session, token, consent, deadline)
    found.rolled_back = sweep_undecided(session, token, found.log, deadline)
    return found


def complete_decided(session: Session, token: int, consent: Consent, deadline: Deadline) -> Resolved:
    """Complete every decision that stands before the claim ``token`` and is not proven, oldest first.

    Returns
    -------
    Resolved
        Those that went through are in ``completed``; those with lost parts in ``losses``, and they stay open, as do
        those in ``failures``: Expired, Unfinished, NotAuthorized, ParticipantMissing.

    Raises
    ------
    Fenced, BrokerUnreachable
        From the commit log.
    UnknownTopic, NotAuthorized
        From the topic that tells readers which batches are whole.
    """
    resolved = Resolved(session.log.own(token, deadline))  # fences the completed marks
    try:
        for decision in resolved.log.open_before(token):
            try:
                lost = complete(session, decision, recovering=True)
                if lost and not consent.accepts_lost(decision):
                    resolved.losses.append(Loss(decision, lost))
                    continue
                how = records.ACCEPTED if lost else records.COMMITTED
            except ExactlyOnceError as e:
                if not (isinstance(e, Expired) and consent.accepts_lost(decision)):
                    resolved.failures.append((decision, e))
                    continue
                how = records.ACCEPTED
                title = decision.title(session.sink_id)
                log.warning("%s: continuing past the parts in doubt, as the option sink.accept.lost allows", title)
            done = Completed(decision.query_id, decision.batch_id, token, now_ms(), how=how)
            progress = progress_to_tell(session, decision, resolved.log.owner, deadline)
            try:
                resolved.log = session.log.append(done, deadline, progress=progress)
            except ExactlyOnceError as e:
                raise decided_error(e, COMMITTED) from e
            resolved.completed.append(decision)
    finally:
        again = sum(len(d.rewritten) for d in resolved.completed)
        session.log.tally(token, deadline, completed=len(resolved.completed), rewritten=again)
    return resolved


def sweep_undecided(session: Session, token: int, log: LogState, deadline: Deadline) -> dict[str, list[str]]:
    """Roll back what claims older than ``token`` left open, but for the parts of decisions that are not completed in
    ``log``, a state behind that claim; then :func:`end_hanging`. Return, by participant, the names of what was rolled
    back.

    Raises NotAuthorized or Unfinished.
    """
    decided = tuple(h for d in log.open_before(token) for h in d.handles)
    swept = session.sweep(Scope(session.sink_id, token, decided=decided, incarnation=session.incarnation()))
    if hung := end_hanging(session, token, log):
        swept[KAFKA] = sorted({*swept.get(KAFKA, ()), *hung})
    session.log.tally(token, deadline, aborted=sum(map(len, swept.values())))
    return swept
