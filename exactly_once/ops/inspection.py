"""Inspection of a sink from outside: its owner, open transactions, unproven decisions, waiting readers.

Read-only. Every statement comes from the brokers or the commit log, none from a checkpoint or this machine's clock.
Only ages use that clock: Kafka does not tell its time, so an age is this machine's time minus the broker's time stamp.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from exactly_once.deadline import Deadline, now_ms
from exactly_once.errors import UnknownTopic
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.commit_log import read_log
from exactly_once.kafka.connection import Connection
from exactly_once.kafka.groups import find_readers
from exactly_once.kafka.transactions import Description, describe, list_transactions
from exactly_once.ops.processes import owner_alive
from exactly_once.protocol.life import Life
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.names import commit_log_id, namespace, parse_part_id
from exactly_once.protocol.records import KAFKA, WRITE, Claim, Completed, Decision, PreparedTransaction

#: In these states, readers of the topics wait for the transaction.
UNDER_WAY = ("Ongoing", "PrepareCommit", "PrepareAbort")

_LOG_TOPIC = re.compile(r"eo\.(?P<sink>.+)\.commit-log")
_COMMITTING = ("PrepareCommit", "CompleteCommit")
_ABORTING = ("PrepareAbort", "CompleteAbort", "PrepareEpochFence")


@dataclass(frozen=True)
class Owner:
    """The latest claim of a sink, and whether its process is alive (None: unknown, it is on another host)."""

    claim: Claim
    alive: bool | None

    @property
    def works(self) -> bool | None:
        """Return whether a new claim would disturb a stream or a batch write; None when this host cannot tell.

        A recovery does not need protecting: two may run at once, and the process that ran one may stay alive long after
        it has finished.
        """
        return False if self.claim.purpose == "recovery" else self.alive

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self.claim), "alive": self.alive}


@dataclass(frozen=True)
class OpenTransaction:
    """An open transaction of the sink, as its coordinator describes it.

    Attributes
    ----------
    part, attempt
        None for the commit log's transaction.
    age_s, timeout_s : float
        How long it has been open, and the age at which the broker aborts it.
    verdict : str
        ``decided``: it will be committed. ``undecided``: it may be aborted, since its rows will be written again.
        ``log``: a write to the commit log.
    batch_id, records : int or None
        Of the decision; None unless decided.
    """

    transactional_id: str
    part: int | None
    attempt: str | None
    state: str
    producer_id: int
    producer_epoch: int
    age_s: float
    timeout_s: float
    partitions: tuple[tuple[str, int], ...]
    verdict: str
    batch_id: int | None = None
    records: int | None = None

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "partitions": [f"{t}-{p}" for t, p in self.partitions]}


@dataclass(frozen=True)
class PendingPart:
    """One handle of an unproven decision, and its state according to its coordinator.

    ``state`` is its :class:`~exactly_once.protocol.life.Life`: ``decided`` (still open), ``committed`` or ``lost``; or
    ``unknown`` (the coordinator forgot the id, or uses it for another transaction). In an output other than Kafka it is
    ``unasked``: only a start of the stream, or a recovery that has this output, can ask it. There, ``transactional_id``
    is the part's name.
    """

    transactional_id: str
    part: int
    records: int
    state: str
    participant: str = KAFKA


@dataclass(frozen=True)
class PendingDecision:
    """A decided batch without a completed mark."""

    query_id: str
    batch_id: int
    token: int
    decided_ms: int
    topics: tuple[str, ...]
    parts: tuple[PendingPart, ...]

    @property
    def name(self) -> str:
        """``batch 7``, or ``write 2013-01-05``."""
        return batch_name(self.query_id, self.batch_id)

    def count(self, state: str) -> int:
        """Return the number of parts in ``state``."""
        return sum(p.state == state for p in self.parts)

    @property
    def unasked(self) -> dict[str, int]:
        """Parts in outputs other than Kafka, by output."""
        return dict(Counter(p.participant for p in self.parts if p.state == "unasked"))

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        plain = {"name": self.name, "topics": list(self.topics), "parts": [asdict(p) for p in self.parts]}
        return {**asdict(self), **plain}


@dataclass(frozen=True)
class BlockedPartition:
    """A partition on which read_committed readers wait.

    ``ours``: an open transaction of this sink writes to it; if False, another application's transaction holds it back.
    ``groups`` is filled in on request.
    """

    topic: str
    partition: int
    last_stable: int
    high: int
    ours: bool
    groups: tuple[str, ...] = ()

    @property
    def waiting(self) -> int:
        """Offsets that cannot be read yet, markers included."""
        return self.high - self.last_stable

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "groups": list(self.groups), "waiting": self.waiting}


@dataclass(frozen=True)
class RecentDecision:
    """A decision in the log, and its completed mark if it has one."""

    decision: Decision
    decided_ms: int
    mark: Completed | None

    @property
    def completed_ms(self) -> int | None:
        """The time at which it was proven committed; None before that."""
        return self.mark.completed_ms if self.mark else None

    def as_json(self) -> dict[str, Any]:
        """Plain values, without the handles."""
        d = self.decision
        return {
            "query_id": d.query_id,
            "write_id": d.write_id,
            "batch_id": d.batch_id,
            "token": d.token,
            "parts": d.part_count,
            "records": d.records,
            "topics": list(d.topics),
            "began_ms": d.began_ms,
            "decided_ms": self.decided_ms,
            "completed_ms": self.completed_ms,
            "mark": asdict(self.mark) if self.mark else None,
        }


@dataclass(frozen=True)
class Inspection:
    """A sink at one moment; see the module.

    Attributes
    ----------
    open : tuple of OpenTransaction
        Oldest first.
    decided : tuple of PendingDecision
        Decided but not proven, oldest first.
    blocked : tuple of BlockedPartition
        Of the topics of open transactions and of the decisions in the log. Partitions of a running stream are blocked
        most of the time: only the duration matters.
    recent : tuple of RecentDecision
        Oldest first.
    readers_complete : bool or None
        None when readers were not requested; False when the budget ended before every group was asked.
    checked_ms : int
        This machine's clock.
    """

    sink_id: str
    owner: Owner | None = None
    open: tuple[OpenTransaction, ...] = ()
    decided: tuple[PendingDecision, ...] = ()
    blocked: tuple[BlockedPartition, ...] = ()
    recent: tuple[RecentDecision, ...] = ()
    readers_complete: bool | None = None
    checked_ms: int = 0
    log: LogState = field(default_factory=LogState, repr=False)

    @property
    def oldest_s(self) -> float:
        """Age of the oldest open transaction; 0 when nothing is open."""
        return max((t.age_s for t in self.open), default=0.0)

    @property
    def quiet(self) -> bool:
        """True when nothing is open, every decision is proven, and no reader is blocked."""
        return not (self.open or self.decided or self.blocked)

    def as_json(self) -> dict[str, Any]:
        """Plain values: what ``json.dumps`` takes."""
        return {
            "sink_id": self.sink_id,
            "checked_ms": self.checked_ms,
            "owner": self.owner.as_json() if self.owner else None,
            "open": [t.as_json() for t in self.open],
            "decided": [d.as_json() for d in self.decided],
            "blocked": [b.as_json() for b in self.blocked],
            "readers_complete": self.readers_complete,
            "recent": [r.as_json() for r in self.recent],
            "tally": asdict(self.log.tally),
        }


def inspect_sink(connection: Connection, sink_id: str, budget_s: float = 10.0, readers: bool = False) -> Inspection:
    """Inspect the sink as it is now. Changes nothing and fences no driver.

    Reads the log after it has described the open transactions, so it never calls a transaction "undecided" that was
    already decided when it was described.

    Parameters
    ----------
    readers : bool
        Also find the consumer groups that have offsets on blocked partitions.

    Raises
    ------
    BrokerUnreachable, CommitLogDamaged, NotAuthorized
        ``budget_s`` covers the whole inspection.
    """
    deadline = Deadline(budget_s)
    with Admin(connection, budget_s) as admin:
        listed = [t.transactional_id for t in list_transactions(admin, namespace(sink_id), UNDER_WAY)]
        seen = describe(admin, listed)
        log = read_log(connection, sink_id, max(0.1, deadline.left))
        handles = [h.transactional_id for d in log.open_decisions for h in d.transactions]
        admin.renew(max(0.1, deadline.left))
        known = describe(admin, (h for h in handles if h not in seen)) | seen
        checked = now_ms()
        found = sorted((d for d in seen.values() if d.state in UNDER_WAY), key=lambda d: d.started_ms)
        under_way = tuple(judge(d, log, checked) for d in found)
        blocked = _blocked(admin, sink_id, under_way, log.decisions)
        complete: bool | None = None
        if readers:
            who = find_readers(admin, [(b.topic, b.partition) for b in blocked], max(0.1, deadline.left))
            complete = who.complete
            blocked = tuple(
                BlockedPartition(b.topic, b.partition, b.last_stable, b.high, b.ours, who.groups[b.topic, b.partition])
                for b in blocked
            )
    return Inspection(
        sink_id,
        owner_of(log),
        under_way,
        tuple(_pending(d, log, known) for d in log.open_decisions),
        blocked,
        tuple(RecentDecision(d, _decided_ms(d, log), log.marks.get((d.query_id, d.batch_id))) for d in log.decisions),
        complete,
        checked,
        log,
    )


def owner_of(log: LogState) -> Owner | None:
    """Return the owner according to the log, and whether it is alive."""
    return Owner(log.owner, owner_alive(log.owner)) if log.owner else None


def sinks(connection: Connection, budget_s: float = 10.0) -> list[str]:
    """Return every sink id with a commit log or a transactional id on the cluster, as far as the principal may see."""
    with Admin(connection, budget_s) as admin:
        found = {m["sink"] for topic in admin.topics() if (m := _LOG_TOPIC.fullmatch(topic)) is not None}
        ids = {sink_of(t.transactional_id) for t in list_transactions(admin, "eo:", ())}
    return sorted(found | {sink_id for sink_id in ids if sink_id is not None})


def batch_name(query_id: str, batch_id: int) -> str:
    """Return the batch's name for people: ``batch 7``, or ``write 2013-01-05`` for a batch write."""
    return f"write {query_id.removeprefix(WRITE)}" if query_id.startswith(WRITE) else f"batch {batch_id}"


def sink_of(transactional_id: str) -> str | None:
    """Return the sink of a transactional id (of a part, or of a commit log); None for a foreign one."""
    part = parse_part_id(transactional_id)
    if part is not None:
        return part.sink_id
    sink_id = transactional_id.removeprefix("eo:").removesuffix(":log")
    return sink_id if sink_id and ":" not in sink_id and transactional_id == commit_log_id(sink_id) else None


def naming(transaction: Description, log: LogState) -> tuple[Decision, PreparedTransaction] | None:
    """Return the decision and the handle of exactly this transaction (id, producer id, epoch); None: undecided."""
    for decision in log.decisions:
        for handle in decision.handles:  # without a copy of the handles for each transaction
            if (
                isinstance(handle, PreparedTransaction)
                and handle.transactional_id == transaction.transactional_id
                and _is(handle, decision, transaction)
            ):
                return decision, handle
    return None


def judge(transaction: Description, log: LogState, checked_ms: int) -> OpenTransaction:
    """Judge a transaction under way by ``log``."""
    part = parse_part_id(transaction.transactional_id)
    found = naming(transaction, log)
    verdict = "log" if part is None else "decided" if found else "undecided"
    return OpenTransaction(
        transaction.transactional_id,
        part.part if part else None,
        part.attempt if part else None,
        transaction.state,
        transaction.producer_id,
        transaction.producer_epoch,
        max(0, checked_ms - transaction.started_ms) / 1000 if transaction.started_ms >= 0 else 0.0,
        transaction.timeout_ms / 1000,
        transaction.partitions,
        verdict,
        found[0].batch_id if found else None,
        found[1].records if found else None,
    )


def state_of(handle: PreparedTransaction, decision: Decision, described: Description | None) -> str:
    """Return the state of a decided handle, by the coordinator's description: see :class:`PendingPart`."""
    if described is None or not _is(handle, decision, described):
        return "unknown"
    if described.state == "Ongoing":
        return Life.DECIDED
    if described.state in _COMMITTING:
        return Life.COMMITTED
    return Life.LOST if described.state in _ABORTING else "unknown"


def _is(handle: PreparedTransaction, decision: Decision, described: Description) -> bool:
    """Return whether the description is of the handle's own transaction.

    EndTxn 5 raises the epoch when it ends a transaction; a timeout does so in every version.
    """
    raised = described.state in _ABORTING or (described.state in _COMMITTING and decision.end_txn_version >= 5)
    epochs = (handle.epoch, handle.epoch + 1) if raised else (handle.epoch,)
    return described.producer_id == handle.producer_id and described.producer_epoch in epochs


def _pending(decision: Decision, log: LogState, known: dict[str, Description]) -> PendingDecision:
    parts = tuple(
        PendingPart(h.name, h.part, h.records, state_of(h, decision, known.get(h.name)), h.participant)
        if isinstance(h, PreparedTransaction)
        else PendingPart(h.name, h.part, h.records, "unasked", h.participant)
        for h in decision.handles
    )
    return PendingDecision(
        decision.query_id, decision.batch_id, decision.token, _decided_ms(decision, log), decision.topics, parts
    )


def _decided_ms(decision: Decision, log: LogState) -> int:
    """By the brokers' clock."""
    return log.decided_ms.get((decision.query_id, decision.batch_id), decision.decided_ms)


def _blocked(
    admin: Admin, sink_id: str, under_way: Iterable[OpenTransaction], decisions: Iterable[Decision]
) -> tuple[BlockedPartition, ...]:
    written = {where for t in under_way if t.verdict != "log" for where in t.partitions}
    topics = {topic for topic, _ in written} | {topic for d in decisions for topic in d.topics}
    found: list[BlockedPartition] = []
    for topic in sorted(topics - {"__consumer_offsets"}):
        try:
            before = admin.watermarks(topic)
            if all(w.last_stable >= w.high for w in before.values()):
                continue
            after = admin.watermarks(topic)  # a commit between the two requests must not look like a waiting reader
        except UnknownTopic:  # deleted since: it has no readers
            continue
        found += [
            BlockedPartition(topic, p, after[p].last_stable, after[p].high, (topic, p) in written)
            for p, w in before.items()
            if p in after and after[p].last_stable < w.high
        ]
    return tuple(found)
