"""Recovery without a stream: claim the sink, commit decided batches, abort undecided transactions, and verify."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from exactly_once.commitlog.commit_log import CommitLog, read_log
from exactly_once.commitlog.progress import check_writable
from exactly_once.coordinator import resolve
from exactly_once.coordinator.claim import make_claim
from exactly_once.coordinator.consent import Consent
from exactly_once.coordinator.resolve import Resolved
from exactly_once.coordinator.session import Session
from exactly_once.deadline import Deadline, now_ms
from exactly_once.errors import UnknownTopic
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.participant import Participant
from exactly_once.participants.kafka.transactions import open_transactions
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.names import check_operator, namespace
from exactly_once.protocol.records import KAFKA, Claim, Decision
from exactly_once.txn.coordinators import Description, check_seen, refuse_lowered


@dataclass(frozen=True)
class RecoveryReport:
    """The findings and results of a recovery.

    Attributes
    ----------
    claim : Claim or None
        Its own claim; None when the sink was never used.
    completed : list of Decision
        Decided batches that it proved committed.
    rolled_back : dict of str to list of str
        By participant, Kafka among them: the undecided parts that it rolled back there.
    left_open : list of Description
        Transactions still open: of a driver's task that is still running, or ones that the principal may not end.
    blocked : list of (str, int)
        Output partitions on which the last stable offset is still behind the high watermark.
    to_rewrite : list of Decision
        Decided batches with lost parts: the next start of the stream writes exactly these parts again.
    """

    sink_id: str
    claim: Claim | None = None
    completed: list[Decision] = field(default_factory=list)
    rolled_back: dict[str, list[str]] = field(default_factory=dict)
    left_open: list[Description] = field(default_factory=list)
    blocked: list[tuple[str, int]] = field(default_factory=list)
    to_rewrite: list[Decision] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """True when nothing is open and no reader is blocked."""
        return not (self.left_open or self.blocked)

    @property
    def sentence(self) -> str:
        """One sentence for a log: what the recovery did and what it left."""
        if self.claim is None:
            return f"Sink {self.sink_id} was never used: there is nothing to recover."
        batches = [d.write_id or str(d.batch_id) for d in self.completed]
        lost = [d.write_id or str(d.batch_id) for d in self.to_rewrite]
        parts = sum(len(names) for names in self.rolled_back.values())
        did = [
            f"it completed batch {', '.join(batches)}" if batches else "",
            f"it rolled back {parts} undecided part{'' if parts == 1 else 's'}" if parts else "",
            f"the next start writes the lost parts of batch {', '.join(lost)} again" if lost else "",
            f"these transactions are still open: {', '.join(d.transactional_id for d in self.left_open)}"
            if self.left_open
            else "",
            f"readers still wait on {', '.join(f'{t}-{p}' for t, p in self.blocked)}" if self.blocked else "",
        ]
        said = "; ".join(part for part in did if part) or "there was nothing to complete or roll back"
        return (
            f"Sink {self.sink_id} {'is recovered' if self.clean and not lost else 'is not fully recovered yet'}: "
            f"{said}."
        )

    def as_metadata(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return {
            "sink_id": self.sink_id,
            "claim": self.claim.token if self.claim else 0,
            "completed_batches": [d.batch_id for d in self.completed],
            "batches_with_lost_parts": [d.write_id or d.batch_id for d in self.to_rewrite],
            "completed_transactions": sum(d.counts.get(KAFKA, (0, 0))[0] for d in self.completed),
            "aborted_transactions": self.rolled_back.get(KAFKA, []),
            "rolled_back": {participant: list(names) for participant, names in self.rolled_back.items()},
            "left_open": [d.transactional_id for d in self.left_open],
            "blocked_partitions": [f"{t}-{p}" for t, p in self.blocked],
        }


@dataclass(frozen=True)
class Verification:
    """The state of a sink after a recovery: open transactions, waiting readers, unproven decisions."""

    left_open: list[Description]
    blocked: list[tuple[str, int]]
    open_decisions: list[Decision]

    @property
    def clean(self) -> bool:
        """True when nothing is open, no reader is blocked, and every decision is proven."""
        return not (self.left_open or self.blocked or self.open_decisions)


def claim_sink(connection: Connection, sink_id: str, budget_s: float = 60.0, operator: str = "") -> Claim | None:
    """Claim the sink: a driver that is still running is fenced and stops with EO-FENCED, which names the ``operator``
    of this claim. The next start of the stream takes it back. Return None for a sink that was never used.

    Raises
    ------
    InvalidOption
        When ``operator`` is no short line of text (:func:`~exactly_once.protocol.names.check_operator`).
    BrokerUnreachable, BrokerRefused, CommitLogDamaged, CommitLogBlocked, NotAuthorized
    """
    operator = check_operator(operator)
    deadline = Deadline(budget_s)
    commit_log = CommitLog(connection, sink_id)
    # the whole log is read only where nothing is found: that waits for the write of a dead driver, which the claim ends
    found = commit_log.read(deadline)
    if found.owner is None:
        found = commit_log.read(deadline, whole=True)
        if found.owner is None:
            return None
    _check_rights(connection, sink_id, found, deadline)

    def make(state: LogState) -> Claim:
        owner = state.owner
        bound, checkpoint, progress = (owner.query_id, owner.checkpoint, owner.progress) if owner else (None, "", "")
        return make_claim(state, bound, now_ms(), "recovery", checkpoint, operator, progress)

    _, claim = commit_log.claim(make, deadline)
    commit_log.close()
    return claim


def _check_rights(connection: Connection, sink_id: str, log: LogState, deadline: Deadline) -> None:
    """Refuse before a driver is fenced: a recovery must see the sink's transactions and outputs, and end what is
    decided.
    """
    with Admin(connection, max(1.0, deadline.left)) as admin:
        refuse_lowered(admin, [d.end_txn_version for d in log.open_decisions])
        check_seen(admin, namespace(sink_id))
        for topic in sorted({topic for decision in log.decisions for topic in decision.topics}):
            with suppress(UnknownTopic):  # deleted since
                admin.topic_partitions([topic])
        if log.owner is not None and log.owner.progress:
            check_writable(admin, log.owner.progress)


def complete_decided(
    connection: Connection,
    sink_id: str,
    token: int,
    budget_s: float = 60.0,
    others: Iterable[Participant[Any]] = (),
) -> Resolved:
    """Commit decided batches from before the claim ``token`` that are not yet proven committed. Idempotent.

    ``others`` are the sink's participants other than Kafka. Lost parts (``losses``) stay open: the next start of the
    stream writes them again.

    Raises BrokerUnreachable, Expired, Unfinished, Fenced or NotAuthorized.
    """
    deadline = Deadline(budget_s)
    with Session.without_driver(connection, sink_id, others, deadline) as session:
        found = resolve.complete_decided(session, token, Consent(), deadline)
    _raise_first(found)
    return found


def sweep_undecided(
    connection: Connection,
    sink_id: str,
    token: int,
    budget_s: float = 60.0,
    others: Iterable[Participant[Any]] = (),
) -> dict[str, list[str]]:
    """Roll back what owners before the claim ``token`` left open and did not decide; return the names of that, by
    participant. Idempotent.

    Raises Fenced or NotAuthorized.
    """
    deadline = Deadline(budget_s)
    with Session.without_driver(connection, sink_id, others, deadline) as session:
        return resolve.sweep_undecided(session, token, session.log.own(token, deadline), deadline)


def verify(connection: Connection, sink_id: str, budget_s: float = 10.0) -> Verification:
    """Check whether the sink is at rest; transaction markers get a moment to arrive."""
    deadline = Deadline(budget_s)
    log = read_log(connection, sink_id, budget_s, whole=True)
    with Admin(connection, budget_s) as admin:
        check_seen(admin, namespace(sink_id))
        left_open = open_transactions(sink_id, admin, lambda p: True)
    topics = {t for d in log.decisions for t in d.topics} | {t for d in left_open for t, _ in d.partitions}
    blocked = _wait_until_readable(connection, sorted(topics), Deadline(max(1.0, deadline.left)))
    return Verification(left_open, blocked, list(log.open_decisions))


def recover(
    connection: Connection,
    sink_id: str,
    timeout_s: float = 60.0,
    others: Iterable[Participant[Any]] = (),
    operator: str = "",
) -> RecoveryReport:
    """Bring the sink to rest: claim, complete, sweep, verify. Idempotent; safe to run twice at once (the later claim
    continues, the earlier is refused). ``others`` are the sink's participants other than Kafka; the claim says that
    ``operator`` operates this recovery.

    Raises BrokerUnreachable, InvalidOption, Expired, Unfinished, Fenced or NotAuthorized.
    """
    deadline = Deadline(timeout_s)
    mine = claim_sink(connection, sink_id, timeout_s, operator)
    if mine is None:
        return RecoveryReport(sink_id)
    with Session.without_driver(connection, sink_id, others, deadline) as session:
        did = resolve.resolve(session, mine.token, Consent(), deadline)
    _raise_first(did)
    found = verify(connection, sink_id, min(10.0, max(1.0, deadline.left)))
    return RecoveryReport(
        sink_id,
        claim=mine,
        completed=did.completed,
        rolled_back=did.rolled_back,
        left_open=found.left_open,
        blocked=found.blocked,
        to_rewrite=[x.decision for x in did.losses],
    )


def _raise_first(found: Resolved) -> None:
    for _, failure in found.failures:
        raise failure


def _wait_until_readable(connection: Connection, topics: list[str], deadline: Deadline) -> list[tuple[str, int]]:
    """Wait for the markers; return the partitions whose last stable offset is still behind when the budget is spent."""
    blocked: list[tuple[str, int]] = []
    if not topics:
        return blocked
    with Admin(connection, deadline.seconds + 5) as admin:
        for _ in deadline.tries():
            blocked = []
            for topic in topics:
                try:
                    marks = admin.watermarks(topic)
                except UnknownTopic:  # deleted since: it has no readers
                    continue
                blocked += [(topic, p) for p, w in marks.items() if w.last_stable < w.high]
            if not blocked:
                break
    return blocked
