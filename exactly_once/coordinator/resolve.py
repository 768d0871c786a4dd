"""A claim ends what earlier claims left: it completes decided batches and rolls back undecided parts."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from exactly_once.coordinator.complete import COMMITTED, complete, decided_error, progress_to_tell
from exactly_once.coordinator.consent import Consent
from exactly_once.coordinator.hanging import end_hanging
from exactly_once.coordinator.session import Session
from exactly_once.deadline import Deadline, now_ms
from exactly_once.errors import ExactlyOnceError, Expired
from exactly_once.participant import Handle, Scope
from exactly_once.protocol import records
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.records import KAFKA, Completed, Decision

log = logging.getLogger(__name__)


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
        Of the commit log.
    UnknownTopic, NotAuthorized
        Of the topic that tells readers which batches are whole.
    """
    found = Resolved(session.log.own(token, deadline))  # fences the completed marks
    try:
        for decision in found.log.open_before(token):
            try:
                lost = complete(session, decision, recovering=True)
                if lost and not consent.accepts_lost(decision):
                    found.losses.append(Loss(decision, lost))
                    continue
                how = records.ACCEPTED if lost else records.COMMITTED
            except ExactlyOnceError as e:
                if not (isinstance(e, Expired) and consent.accepts_lost(decision)):
                    found.failures.append((decision, e))
                    continue
                how = records.ACCEPTED
                title = decision.title(session.sink_id)
                log.warning("%s: continuing past the parts in doubt, as the option sink.accept.lost allows", title)
            done = Completed(decision.query_id, decision.batch_id, token, now_ms(), how=how)
            progress = progress_to_tell(session, decision, found.log.owner, deadline)
            try:
                found.log = session.log.append(done, deadline, progress=progress)
            except ExactlyOnceError as e:
                raise decided_error(e, COMMITTED) from e
            found.completed.append(decision)
    finally:
        again = sum(len(d.rewritten) for d in found.completed)
        session.log.tally(token, deadline, completed=len(found.completed), rewritten=again)
    return found


def sweep_undecided(session: Session, token: int, log: LogState, deadline: Deadline) -> dict[str, list[str]]:
    """Roll back what older claims than ``token`` left open, save what a decision names that is still not completed in
    ``log``, a state behind that claim; and end what hangs (:mod:`exactly_once.coordinator.hanging`).

    Returns
    -------
    dict of str to list of str
        By participant, the names of what was rolled back.

    Raises NotAuthorized or Unfinished.
    """
    decided = tuple(h for d in log.open_before(token) for h in d.handles)
    swept = session.sweep(Scope(session.sink_id, token, decided=decided, incarnation=session.incarnation()))
    if hung := end_hanging(session, token, log):
        swept[KAFKA] = sorted({*swept.get(KAFKA, ()), *hung})
    session.log.tally(token, deadline, aborted=sum(map(len, swept.values())))
    return swept
