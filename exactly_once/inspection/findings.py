"""The findings of an inspection of a sink, and the pure verdicts on them: which transaction is decided, which lost."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from exactly_once.inspection.processes import Frozen
from exactly_once.participants.kafka.topics import AS_DECIDED, Topics
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.names import PartId, commit_log_id
from exactly_once.protocol.part_state import PartState
from exactly_once.protocol.records import KAFKA, WRITE, Claim, Completed, Decision, PreparedTransaction
from exactly_once.txn.coordinators import Description

_COMMITTING = ("PrepareCommit", "CompleteCommit")
_ABORTING = ("PrepareAbort", "CompleteAbort", "PrepareEpochFence")


@dataclass(frozen=True)
class Owner:
    """The latest claim of a sink, and whether its process is alive (None: unknown, it is on another machine).

    ``frozen`` holds that process if it is alive and does nothing.
    """

    claim: Claim
    alive: bool | None
    frozen: tuple[Frozen, ...] = ()

    @property
    def works(self) -> bool | None:
        """Return whether a new claim would disturb a stream or a batch write; None when this host cannot tell.

        A recovery does not need protecting: two may run at once, and the process that ran one may stay alive long after
        it has finished.
        """
        return False if self.claim.purpose == "recovery" else self.alive

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self.claim), "alive": self.alive, "frozen": bool(self.frozen)}


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
        ``log``: a write to the commit log. ``foreign``: another application's.
    batch_id, records : int or None
        The decision's batch, and the records of its part; None unless decided.
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

    ``state`` is its :class:`~exactly_once.protocol.part_state.PartState`: ``decided`` (still open), ``committed`` or
    ``lost``; or ``unknown`` (the coordinator forgot the id, or uses it for another transaction). In an output other
    than Kafka it is ``unasked``: only a start of the stream, or a recovery that has this output, can ask it. There,
    ``transactional_id`` is the part's name.
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

    ``ours``: an open transaction of this sink writes to it. If False, ``holder`` is the sink id of the other sink whose
    transaction holds it back; "" for another application's transaction, or a hanging one. ``groups`` is filled in on
    request.
    """

    topic: str
    partition: int
    last_stable: int
    high: int
    ours: bool
    groups: tuple[str, ...] = ()
    holder: str = ""

    @property
    def held_by(self) -> str:
        """Return whose transaction holds the readers back, for a sentence."""
        if self.ours:
            return "this sink's open transaction"
        if self.holder:
            return f"an open transaction of sink {self.holder}"
        return "another application's open transaction or a hanging one"

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
            "dead_letters": d.dead_letters,
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
        Partitions of the topics of open transactions and of the decisions in the log. Those of a running stream are
        blocked most of the time: only the duration matters.
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


def batch_name(query_id: str, batch_id: int) -> str:
    """Return the batch's name for people: ``batch 7``, or ``write 2013-01-05`` for a batch write."""
    return f"write {query_id.removeprefix(WRITE)}" if query_id.startswith(WRITE) else f"batch {batch_id}"


def title(decision: Decision) -> str:
    """Return the name of the batch of a decision for people."""
    return batch_name(decision.query_id, decision.batch_id)


def sink_of(transactional_id: str) -> str | None:
    """Return the sink of a transactional id (of a part, or of a commit log); None for a foreign one."""
    part = PartId.parse(transactional_id)
    if part is not None:
        return part.sink_id
    sink_id = transactional_id.removeprefix("eo:").removesuffix(":log")
    return sink_id if sink_id and ":" not in sink_id and transactional_id == commit_log_id(sink_id) else None


class Decided(NamedTuple):
    """A transaction that the commit log wants committed."""

    decision: Decision
    handle: PreparedTransaction


def naming(transaction: Description, log: LogState) -> Decided | None:
    """Return the decision and the handle of exactly this transaction (id, producer id, epoch); None: undecided."""
    for decision in log.decisions:
        for handle in decision.handles:  # without a copy of the handles for each transaction
            if (
                isinstance(handle, PreparedTransaction)
                and handle.transactional_id == transaction.transactional_id
                and _is(handle, decision, transaction)
            ):
                return Decided(decision, handle)
    return None


def judge_transaction(transaction: Description, log: LogState, checked_ms: int) -> OpenTransaction:
    """Judge a transaction under way by ``log``."""
    part = PartId.parse(transaction.transactional_id)
    decided = naming(transaction, log)
    if sink_of(transaction.transactional_id) is None:
        verdict = "foreign"
    else:
        verdict = "log" if part is None else "decided" if decided else "undecided"
    return OpenTransaction(
        transactional_id=transaction.transactional_id,
        part=part.part if part else None,
        attempt=part.attempt if part else None,
        state=transaction.state,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        age_s=max(0, checked_ms - transaction.started_ms) / 1000 if transaction.started_ms >= 0 else 0.0,
        timeout_s=transaction.timeout_ms / 1000,
        partitions=transaction.partitions,
        verdict=verdict,
        batch_id=decided.decision.batch_id if decided else None,
        records=decided.handle.records if decided else None,
    )


def state_of(
    handle: PreparedTransaction, decision: Decision, described: Description | None, topics: Topics = AS_DECIDED
) -> str:
    """Return the state of a decided handle, by the coordinator's description and the topics of its batch as they are
    now: see :class:`PendingPart`. The coordinator does not speak of a topic that was made again.
    """
    state = _by_coordinator(handle, decision, described)
    if not topics.changed:
        return state
    if state == PartState.DECIDED or not topics.stand:
        return PartState.LOST
    return "unknown" if state == PartState.COMMITTED else state


def _by_coordinator(handle: PreparedTransaction, decision: Decision, described: Description | None) -> str:
    if described is None or not _is(handle, decision, described):
        return "unknown"
    if described.state == "Ongoing":
        return PartState.DECIDED
    if described.state in _COMMITTING:
        return PartState.COMMITTED
    return PartState.LOST if described.state in _ABORTING else "unknown"


def _is(handle: PreparedTransaction, decision: Decision, described: Description) -> bool:
    """Return whether the description is of the handle's own transaction.

    EndTxn 5 raises the epoch when it ends a transaction; a timeout does so in every version.
    """
    raised = described.state in _ABORTING or (described.state in _COMMITTING and decision.end_txn_version >= 5)
    epochs = (handle.epoch, handle.epoch + 1) if raised else (handle.epoch,)
    return described.producer_id == handle.producer_id and described.producer_epoch in epochs


def pending(
    decision: Decision, log: LogState, known: dict[str, Description], topics: Topics = AS_DECIDED
) -> PendingDecision:
    """Return the decision with the state of each of its parts (:func:`state_of`)."""
    parts = tuple(
        PendingPart(h.name, h.part, h.records, state_of(h, decision, known.get(h.name), topics), h.participant)
        if isinstance(h, PreparedTransaction)
        else PendingPart(h.name, h.part, h.records, "unasked", h.participant)
        for h in decision.handles
    )
    return PendingDecision(
        decision.query_id, decision.batch_id, decision.token, decided_at(decision, log), decision.topics, parts
    )


def decided_at(decision: Decision, log: LogState) -> int:
    """Return the time of the decision, by the brokers' clock where the log tells it."""
    return log.decided_ms.get((decision.query_id, decision.batch_id), decision.decided_ms)
