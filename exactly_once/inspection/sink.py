"""Inspection of a sink from outside: its owner, open transactions, unproven decisions, waiting readers.

Read-only. Every statement comes from the brokers or the commit log, none from a checkpoint or this machine's clock.
Only ages use that clock: Kafka does not tell its time, so an age is this machine's time minus the broker's time stamp.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from exactly_once.commitlog.commit_log import read_log
from exactly_once.deadline import Deadline, now_ms
from exactly_once.errors import UnknownTopic
from exactly_once.inspection.findings import (
    BlockedPartition,
    Inspection,
    OpenTransaction,
    Owner,
    RecentDecision,
    decided_at,
    judge_transaction,
    pending,
    sink_of,
)
from exactly_once.inspection.processes import AliveOf, Process, frozen_among, owner_alive
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.kafka.groups import find_readers
from exactly_once.participants.kafka.topics import topics_now
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.names import commit_log_topic, namespace, sink_of_log
from exactly_once.protocol.records import Decision
from exactly_once.txn.coordinators import Description, check_seen, describe, list_transactions

#: Budget of a recovery: as long as a claim may take.
RECOVERY_BUDGET_S = 60.0

#: States in which readers of the topics wait for the transaction.
UNDER_WAY = ("Ongoing", "PrepareCommit", "PrepareAbort")


def inspect_sink(
    connection: Connection,
    sink_id: str,
    budget_s: float = 10.0,
    readers: bool = False,
    alive_of: AliveOf | None = None,
) -> Inspection:
    """Inspect the sink as it is now. Changes nothing and fences no driver.

    Reads the log after it has described the open transactions, so it never calls a transaction "undecided" that was
    already decided when it was described.

    Parameters
    ----------
    readers : bool
        Also find the consumer groups that have offsets on blocked partitions.
    alive_of : callable, optional
        Is asked first whether the owner is alive; see :func:`owner_of`.

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
        if log.owner is not None:  # a sink that nobody has claimed has nothing open
            check_seen(admin.renew(max(0.1, deadline.left)), namespace(sink_id))
        handles = [h.transactional_id for d in log.open_decisions for h in d.transactions]
        admin.renew(max(0.1, deadline.left))
        known = describe(admin, (h for h in handles if h not in seen)) | seen
        checked = now_ms()
        found = sorted((d for d in seen.values() if d.state in UNDER_WAY), key=lambda d: d.started_ms)
        under_way = tuple(judge_transaction(d, log, checked) for d in found)
        decided = tuple(pending(d, log, known, topics_now(admin, (), d.ids_by_topic)) for d in log.open_decisions)
        blocked = _blocked(admin, under_way, log.decisions)
        complete: bool | None = None
        if readers:
            blocked, complete = _with_readers(admin, blocked, max(0.1, deadline.left))
    return Inspection(
        sink_id,
        owner=owner_of(log, alive_of),
        open=under_way,
        decided=decided,
        blocked=blocked,
        recent=tuple(
            RecentDecision(d, decided_at(d, log), log.marks.get((d.query_id, d.batch_id))) for d in log.decisions
        ),
        readers_complete=complete,
        checked_ms=checked,
        log=log,
    )


def inspect_foreign(admin: Admin, transaction: Description, budget_s: float) -> Inspection:
    """Inspect what a transaction of no sink holds back: an inspection without a sink. Raises BrokerUnreachable."""
    checked = now_ms()
    under_way = [judge_transaction(transaction, LogState(), checked)] if transaction.state in UNDER_WAY else []
    blocked, complete = _with_readers(admin, _blocked(admin, under_way, ()), budget_s)
    return Inspection("", blocked=blocked, readers_complete=complete, checked_ms=checked)


def _with_readers(
    admin: Admin, blocked: tuple[BlockedPartition, ...], budget_s: float
) -> tuple[tuple[BlockedPartition, ...], bool]:
    """Add the consumer groups that have offsets on them; return also whether every group could be asked."""
    who = find_readers(admin, [(b.topic, b.partition) for b in blocked], budget_s)
    return tuple(replace(b, groups=who.groups[b.topic, b.partition]) for b in blocked), who.complete


def owner_of(log: LogState, alive_of: AliveOf | None = None) -> Owner | None:
    """Return the owner according to the log, and whether it is alive.

    ``alive_of`` is asked first, with the owner's claim; what it cannot tell (None), this host may be able to see.
    """
    if log.owner is None:
        return None
    lives = owner_alive(log.owner, alive_of)
    return Owner(log.owner, lives, frozen_among([Process.of(log.owner)]) if lives else ())


def sinks(connection: Connection, budget_s: float = 10.0) -> list[str]:
    """Return every sink id with a commit log or a transactional id on the cluster, as far as the principal may see."""
    with Admin(connection, budget_s) as admin:
        found = {s for topic in admin.topics() if (s := sink_of_log(topic)) and topic == commit_log_topic(s)}
        ids = {sink_of(t.transactional_id) for t in list_transactions(admin, "eo:", ())}
    return sorted(found | {sink_id for sink_id in ids if sink_id is not None})


def _blocked(
    admin: Admin, under_way: Iterable[OpenTransaction], decisions: Iterable[Decision]
) -> tuple[BlockedPartition, ...]:
    written = {where for t in under_way if t.verdict != "log" for where in t.partitions}
    topics = {topic for topic, _ in written} | {topic for d in decisions for topic in d.topics}
    blocked: list[BlockedPartition] = []
    for topic in sorted(topics - {"__consumer_offsets"}):
        try:
            before = admin.watermarks(topic)
            if all(w.last_stable >= w.high for w in before.values()):
                continue
            after = admin.watermarks(topic)  # a commit between the two requests must not look like a waiting reader
        except UnknownTopic:  # deleted since: it has no readers
            continue
        blocked += [
            BlockedPartition(topic, p, after[p].last_stable, after[p].high, (topic, p) in written)
            for p, w in before.items()
            if p in after and after[p].last_stable < w.high
        ]
    if all(b.ours for b in blocked):
        return tuple(blocked)
    holders = _holders(admin)
    return tuple(b if b.ours else replace(b, holder=holders.get((b.topic, b.partition), "")) for b in blocked)


def _holders(admin: Admin) -> dict[tuple[str, int], str]:
    """Return the sink whose open transaction writes to a partition, for all sinks of this package that may be seen."""
    ids = [t.transactional_id for t in list_transactions(admin, "eo:", UNDER_WAY)]
    return {where: sink_of(d.transactional_id) or "" for d in describe(admin, ids).values() for where in d.partitions}


def worked_on(found: Inspection) -> bool:
    """Return whether a driver that is not known to be dead or frozen, or a recovery that has just begun, may be at
    work.
    """
    if found.owner is None or found.owner.frozen:
        return False
    claim, alive = found.owner.claim, found.owner.alive
    if claim.purpose == "recovery":
        return alive is not False and found.checked_ms - claim.claimed_ms < RECOVERY_BUDGET_S * 1000
    return alive is not False
