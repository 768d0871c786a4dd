"""Questions to the leaders of partitions about open transactions: what these hold, and which ones hang.

A hanging transaction is open at a partition's leader, and no coordinator will ever end it. A time-out cannot help,
since it is the coordinator that times out. They come from brokers before 3.6 (or with
``transaction.partition.verification.enable=false``), where a late Produce request could open a transaction after its
own end marker (KIP-664, KIP-890); and from brokers whose coordinator ended a transaction while a partition had no
leader (4.3.1). The steps are those of Kafka's own tool: leaders first, coordinators second.

Everything here needs READ on the topics.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kafka.errors import (
    KafkaError,
    LeaderNotAvailableError,
    TopicAuthorizationFailedError,
    UnknownBrokerIdError,
    UnknownTopicOrPartitionError,
    for_code,
)
from kafka.protocol.admin.transactions import DescribeProducersRequest
from kafka.protocol.producer.transaction import WriteTxnMarkersRequest

from exactly_once.deadline import Deadline, now_ms
from exactly_once.errors import ExactlyOnceError
from exactly_once.kafka.admin import Admin, Partition
from exactly_once.kafka.connection import Connection
from exactly_once.kafka.errors import check
from exactly_once.protocol.checksum import mismatch
from exactly_once.protocol.records import Extent, PreparedTransaction
from exactly_once.txn.coordinators import ENDED, Description, check_all_seen, describe, ids_of

#: The brokers' default of transaction.max.timeout.ms: no coordinator leaves a transaction open for longer than that.
OLDER_THAN_S = 900.0

#: Between two questions about a transaction whose producer no coordinator names. When a coordinator dies, its ids are
#: in no list until its successor begins to load them, which it does as soon as it hears of it: seconds at the most.
_ASK_AGAIN_S = 10.0

#: Partitions in one request, as in Kafka's own tool: a leader has to look through the producers of each.
_PARTITIONS_AT_ONCE = 500

#: (Transaction, partition) pairs that are looked at before a decision, at least one for each transaction. A leader
#: answers with every producer that wrote to the partition within a day, at up to 10 microseconds each: for this many
#: pairs a tenth of a second.
_PAIRS = 10_000

#: A leader that says that a transaction is not there is asked again for this long: it may be one that has been deposed
#: and does not know it yet.
_SURE_S = 2.0

#: By partition whose leader was asked, (producer id, epoch) of its open transactions -> what they hold there.
Open = dict[Partition, dict[tuple[int, int], Extent]]


class Hanging(NamedTuple):
    """A transaction that is open on one partition, beyond any coordinator's reach.

    ``last_timestamp_ms`` is the timestamp of its last record, which its writer may have chosen. ``transactional_id`` is
    the id to which a coordinator has given this producer id; None when none knows it. ``records`` counts what the
    producer wrote to the partition under this epoch: at least what this transaction holds.
    """

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    last_timestamp_ms: int
    transactional_id: str | None = None
    records: int = 0

    @property
    def name(self) -> str:
        """``topic-partition@start offset``: what a person calls it."""
        return f"{self.topic}-{self.partition}@{self.start_offset}"


class _Answer(NamedTuple):
    """The answer to DescribeProducers about one partition, or why there is none."""

    topic: str
    partition: int
    failure: KafkaError | None
    open: list[Hanging]
    producers: frozenset[int] = frozenset()


# -- before a decision ------------------------------------------------------------------------------------------------


def mismatches(
    admin: Admin, handles: Sequence[PreparedTransaction], described: Mapping[str, Description]
) -> tuple[dict[str, str], str]:
    """Return how open transactions differ from what their tasks wrote (:mod:`exactly_once.protocol.checksum`).

    Parameters
    ----------
    described : mapping
        What the coordinators say of them.

    Returns
    -------
    (dict of str to str, str)
        By transactional id, a clause that says how; and why some leaders could not be asked, "" when all were.
    """

    def compared(answers: Open) -> dict[str, str]:
        whys = {
            h.transactional_id: mismatch(
                h.written,
                described[h.transactional_id].partitions,
                {p: answers[p].get((h.producer_id, h.epoch)) for p in h.written if p in answers},
            )
            for h in handles
        }
        return {name: why for name, why in whys.items() if why}

    if (found := compared({})) or not handles:
        return found, ""
    each = max(1, _PAIRS // len(handles))
    asked = sorted({p for h in handles for p in sorted(h.written)[:each]})
    sure, unasked = Deadline(_SURE_S), ""
    for _ in admin.deadline.tries():
        try:
            answers, unasked, silent = _producers_on(admin, asked)
        except ExactlyOnceError as e:
            return found, "" if found else e.what
        found = compared(answers)
        if sure.over if found else not silent:
            break
    return found, unasked


def _producers_on(admin: Admin, partitions: list[Partition]) -> tuple[Open, str, bool]:
    """Return the transactions that the leaders of these partitions know as open.

    Also why some are left out, and whether these may answer the next time. When one leader does not answer, the answers
    of the others still count.

    A partition that does not exist has none.
    """

    async def question() -> tuple[Open, str, bool]:
        found: Open = {p: {} for p in partitions}
        unasked, silent = "", False
        topics = sorted({topic for topic, _ in partitions})
        for p in await _describe_producers(admin, topics, set(partitions).__contains__):
            here = (p.topic, p.partition)
            if p.failure is None:
                found[here] = {(h.producer_id, h.producer_epoch): Extent(h.start_offset, h.records) for h in p.open}
            else:
                del found[here]
                unasked, silent = str(p.failure), silent or bool(p.failure.retriable)
        return found, unasked, silent

    return admin.ask(question)


# -- open transactions ------------------------------------------------------------------------------------------------


def open_on(admin: Admin, partitions: Sequence[Partition]) -> list[Hanging]:
    """Every transaction that is open on one of ``partitions``, whether or not it hangs."""
    return _open_at(admin, sorted({topic for topic, _ in partitions}), set(partitions).__contains__)


def written(admin: Admin, transaction: Description) -> int:
    """Return how many records an open transaction holds, as its partitions' leaders count them.

    Exact for a transaction whose producer was initialised for it alone, as a part's is.
    """
    mine = (transaction.producer_id, transaction.producer_epoch)
    found = _open(admin, sorted({topic for topic, _ in transaction.partitions}))
    return sum(h.records for h in found if (h.producer_id, h.producer_epoch) == mine)


def _open(admin: Admin, topics: list[str]) -> list[Hanging]:
    """Every transaction that is open on a partition of ``topics``, by the partition's leader."""
    return _open_at(admin, topics, lambda partition: True)


def _open_at(admin: Admin, topics: list[str], wanted: Callable[[Partition], bool]) -> list[Hanging]:
    async def question() -> list[Hanging]:
        found: list[Hanging] = []
        for p in await _describe_producers(admin, topics, wanted):
            if p.failure is not None:
                raise p.failure
            found += p.open
        return found

    return admin.ask(question)


# -- where producers wrote --------------------------------------------------------------------------------------------


class Trail(NamedTuple):
    """The topics in which one of some producers wrote; those that this principal may not read; and those of which a
    leader did not answer.
    """

    found: frozenset[str] = frozenset()
    denied: frozenset[str] = frozenset()
    silent: frozenset[str] = frozenset()


def trail_of(admin: Admin, producer_ids: Iterable[int], topics: Sequence[str]) -> Trail:
    """Ask the leaders of ``topics`` which of these producers wrote there, committed, aborted or open.

    A leader forgets a producer that has written nothing to the partition for ``producer.id.expiration.ms`` (a day).
    """
    wanted = frozenset(producer_ids)
    answers = admin.ask(lambda: _describe_producers(admin, list(topics), lambda partition: True))
    failed = [(a.topic, a.failure) for a in answers if a.failure is not None]
    denied = frozenset(topic for topic, e in failed if isinstance(e, TopicAuthorizationFailedError))
    gone = frozenset(topic for topic, e in failed if isinstance(e, UnknownTopicOrPartitionError))
    found = frozenset(a.topic for a in answers if a.producers & wanted)
    return Trail(found, denied, frozenset(topic for topic, _ in failed) - denied - gone)


# -- what hangs -------------------------------------------------------------------------------------------------------


def find_hanging(
    connection: Connection, topics: Iterable[str], older_than_s: float = OLDER_THAN_S, budget_s: float = 10.0
) -> list[Hanging]:
    """Return the hanging transactions on ``topics``; topics that do not exist have none.

    Parameters
    ----------
    older_than_s : float
        Of those whose producer no coordinator knows, only the ones whose last record has a timestamp at least this old.
        A transaction that has just begun can look like one of these, so this should be the longest transaction timeout
        that the brokers allow. Where a coordinator is past a transaction by its own word, no age is needed.

    Raises
    ------
    BrokerUnreachable, NotAuthorized
        It needs READ on the topics. It also needs DESCRIBE on *all* transactional ids: the brokers leave out the others
        silently, and their transactions look like hanging ones without a transactional id
        (:func:`~exactly_once.txn.coordinators.check_all_seen` tells).
    """
    with Admin(connection, budget_s) as admin:
        return _hanging(admin, topics, older_than_s)


def open_where_asked(admin: Admin, topics: list[str]) -> tuple[list[Hanging], str, bool]:
    """Return every transaction that is open on a partition of ``topics``, by those leaders that could be asked; why
    others could not ("" when all were), and whether these may answer the next time.
    """
    answers = admin.ask(lambda: _describe_producers(admin, topics, lambda partition: True))
    failures = [a.failure for a in answers if a.failure is not None]
    why = str(failures[-1]) if failures else ""
    return [h for a in answers for h in a.open], why, any(e.retriable for e in failures)


def abort_hanging(connection: Connection, hanging: Hanging, budget_s: float = 10.0) -> bool:
    """Write the abort marker that no coordinator will write; what the transaction holds is never visible.

    It is looked up again first: exactly this transaction is ended, and only as long as it hangs. That takes the
    explicit word of a coordinator, which describes the id and does not name the partition. Where none knows the
    producer, it takes two looks, ten seconds apart, since a coordinator may just have died.

    Returns
    -------
    bool
        False when it was there no more.

    Raises
    ------
    BrokerUnreachable, NotAuthorized
        It needs ALTER on the cluster, and DESCRIBE on all transactional ids where no coordinator knows the producer:
        one may, under an id that this principal does not see.
    """
    return _ended(connection, hanging, False, budget_s)


def commit_hanging(connection: Connection, hanging: Hanging, budget_s: float = 10.0) -> bool:
    """Write the commit marker that no coordinator will write, as :func:`abort_hanging` does the abort marker; what the
    transaction holds in this partition is visible.
    """
    return _ended(connection, hanging, True, budget_s)


def _ended(connection: Connection, hanging: Hanging, commit: bool, budget_s: float) -> bool:
    with Admin(connection, budget_s) as admin:
        found = _same(admin, hanging)
        if found is not None and found.transactional_id is None:
            check_all_seen(admin)
            time.sleep(_ASK_AGAIN_S)
            found = _same(admin.renew(budget_s), hanging)
        if found is None:
            return False
        write_marker(admin, found, commit)
        return True


def _hanging(admin: Admin, topics: Iterable[str], older_than_s: float) -> list[Hanging]:
    names = sorted(set(topics))
    limit_ms = now_ms() - older_than_s * 1000
    candidates = _open(admin, names)
    if not candidates:
        return []
    ids = ids_of(admin, {h.producer_id for h in candidates})
    known = describe(admin, ids.values())
    orphans = [
        h._replace(transactional_id=ids.get(h.producer_id))
        for h in candidates
        if _hangs(h, known.get(ids.get(h.producer_id, "")), limit_ms)
    ]
    if not orphans:
        return []
    # one that ended between the two looks is not hanging
    still = {h[:6] for h in _open(admin, sorted({h.topic for h in orphans}))}
    return [h for h in orphans if h[:6] in still]


def _hangs(h: Hanging, d: Description | None, limit_ms: float) -> bool:
    """Return whether a transaction hangs, given its coordinator's view of its id; None when no coordinator knows it."""
    if d is not None and (h.topic, h.partition) in d.partitions:
        return False
    past = d is not None and (d.state in ENDED or d.producer_epoch > h.producer_epoch)
    return past or h.last_timestamp_ms <= limit_ms


def _same(admin: Admin, h: Hanging) -> Hanging | None:
    """Return the very transaction ``h`` as it hangs now; None when it no longer does."""
    return next((x for x in _hanging(admin, [h.topic], 0.0) if x[:6] == h[:6]), None)


def write_marker(admin: Admin, h: Hanging, commit: bool) -> None:
    """Send the end marker to the leader; it needs ALTER on the cluster."""
    marker = WriteTxnMarkersRequest.WritableTxnMarker
    request = WriteTxnMarkersRequest(
        markers=[
            marker(
                producer_id=h.producer_id,
                producer_epoch=h.producer_epoch,
                transaction_result=commit,
                topics=[marker.WritableTxnMarkerTopic(name=h.topic, partition_indexes=[h.partition])],
                # -1 before the producer's first marker; 0 is below the epoch of any coordinator
                coordinator_epoch=max(0, h.coordinator_epoch),
            )
        ]
    )

    async def question() -> None:
        answer = await admin.send(request, await admin.leader((h.topic, h.partition)))
        for result in answer.markers:
            for topic in result.topics:
                for partition in topic.partitions:
                    check(partition.error_code, f"WriteTxnMarkers to {h.name}")

    admin.ask(question)


# -- DescribeProducers ------------------------------------------------------------------------------------------------


async def _describe_producers(admin: Admin, topics: list[str], wanted: Callable[[Partition], bool]) -> list[_Answer]:
    leaderless: list[Partition] = []
    sent = []
    for node, led in (await admin.leaders(topics, leaderless)).items():
        partitions = [p for p in led if wanted(p)]
        for first in range(0, len(partitions), _PARTITIONS_AT_ONCE):
            some = partitions[first : first + _PARTITIONS_AT_ONCE]
            sent.append((some, admin.send(_request(some), node)))
    found = [_Answer(*p, LeaderNotAvailableError(f"{p[0]}-{p[1]}"), []) for p in leaderless if wanted(p)]
    for some, answer in sent:
        try:
            found += _answers(await answer)
        except UnknownBrokerIdError:  # the client has to look at the cluster anew, which whoever asks sees to
            raise
        except KafkaError as e:
            found += [_Answer(*p, e, []) for p in some]
    return found


def _request(partitions: list[Partition]) -> DescribeProducersRequest:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    return DescribeProducersRequest(
        topics=[DescribeProducersRequest.TopicRequest(name=t, partition_indexes=p) for t, p in by_topic.items()]
    )


def _answers(answer: Any) -> list[_Answer]:
    return [
        _Answer(
            topic.name,
            p.partition_index,
            for_code(p.error_code)(f"DescribeProducers of {topic.name}-{p.partition_index}") if p.error_code else None,
            [
                Hanging(
                    topic.name,
                    p.partition_index,
                    producer_id=x.producer_id,
                    producer_epoch=x.producer_epoch,
                    coordinator_epoch=x.coordinator_epoch,
                    start_offset=x.current_txn_start_offset,
                    last_timestamp_ms=x.last_timestamp,
                    records=x.last_sequence + 1,  # sequences begin at 0 with each epoch
                )
                for x in p.active_producers
                if x.current_txn_start_offset >= 0
            ],
            frozenset(x.producer_id for x in p.active_producers),
        )
        for topic in answer.topics
        for p in topic.partitions
    ]
