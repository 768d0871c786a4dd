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
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
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
from exactly_once.kafka.admin import Admin, Partition, by_topic
from exactly_once.kafka.connection import Connection
from exactly_once.kafka.errors import check
from exactly_once.protocol.checksum import mismatch
from exactly_once.protocol.records import OffsetRange, PreparedTransaction
from exactly_once.txn.coordinators import ENDED, Description, check_all_seen, describe, ids_of

#: The brokers' default of transaction.max.timeout.ms: no coordinator leaves a transaction open for longer than that.
OLDER_THAN_S = 900.0

#: Pause between two checks for a producer that no coordinator names. When a coordinator dies, its ids are in no list
#: until its successor begins to load them, which it does as soon as it hears of it: seconds at the most.
_ASK_AGAIN_S = 10.0

#: Partitions in one request, as in Kafka's own tool: a leader has to look through the producers of each.
_PARTITIONS_AT_ONCE = 500

#: Most (transaction, partition) pairs that are examined before a decision, at least one for each transaction. A leader
#: answers with every producer that wrote to the partition within a day, at up to 10 microseconds each: for this many
#: pairs a tenth of a second.
_PAIRS = 10_000

#: Time for which a leader that denies a transaction is asked again: it may have been deposed without knowing it yet.
_SURE_S = 2.0

#: Open transactions by partition whose leader was asked: (producer id, epoch) -> what each holds there.
Open = dict[Partition, dict[tuple[int, int], OffsetRange]]


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


class LeadersAnswer(NamedTuple):
    """The leaders' word on open transactions, and the ids of topics, of one moment. ``unasked`` is why some leaders did
    not answer, "" when all did; they may answer the next time if they were ``silent``.
    """

    open: Open
    unasked: str = ""
    silent: bool = False
    ids: Mapping[str, str] = {}


def begin_asking(
    admin: Admin, handles: Sequence[PreparedTransaction], topics: Iterable[str]
) -> Awaitable[LeadersAnswer]:
    """Ask the leaders of what ``handles`` wrote, and for the ids of ``topics``, without waiting: :func:`end_asking`."""
    also = sorted(topics)
    return admin.begin(lambda: _ask_leaders(admin, _pairs(handles), also))


def end_asking(admin: Admin, begun: Awaitable[LeadersAnswer]) -> LeadersAnswer | None:
    """Return what :func:`begin_asking` has asked for; None when the brokers did not answer."""
    try:
        return admin.run(lambda: begun)
    except KafkaError:
        return None


def _pairs(handles: Sequence[PreparedTransaction]) -> list[Partition]:
    each = max(1, _PAIRS // max(1, len(handles)))
    return sorted({p for h in handles for p in sorted(h.written)[:each]})


def mismatches(
    admin: Admin,
    handles: Sequence[PreparedTransaction],
    described: Mapping[str, Description],
    heard: LeadersAnswer | None = None,
) -> tuple[dict[str, str], str]:
    """Return how open transactions differ from what their tasks wrote (:mod:`exactly_once.protocol.checksum`), given
    what the coordinators say of them, and the leaders in ``heard``. Where these say nothing, or something else than the
    tasks, they are asked again.

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

    if (differences := compared({})) or not handles:
        return differences, ""
    sure, unasked = Deadline(_SURE_S), ""
    for _ in admin.deadline.tries():
        try:
            seen, heard = heard or _producers_on(admin, _pairs(handles)), None
        except ExactlyOnceError as e:
            return differences, "" if differences else e.what
        differences, unasked = compared(seen.open), seen.unasked
        if sure.over if differences else not seen.silent:
            break
    return differences, unasked


def _producers_on(admin: Admin, partitions: list[Partition]) -> LeadersAnswer:
    """Return the transactions that the leaders of these partitions know as open.

    When one leader does not answer, the answers of the others still count. A partition that does not exist has none.
    """
    return admin.ask(lambda: _ask_leaders(admin, partitions))


async def _ask_leaders(admin: Admin, partitions: list[Partition], also: Iterable[str] = ()) -> LeadersAnswer:
    found: Open = {p: {} for p in partitions}
    unasked, silent, ids = "", False, dict[str, str]()
    topics = sorted({topic for topic, _ in partitions})
    for p in await _describe_producers(admin, topics, set(partitions).__contains__, also, ids):
        here = (p.topic, p.partition)
        if p.failure is None:
            found[here] = {(h.producer_id, h.producer_epoch): OffsetRange(h.start_offset, h.records) for h in p.open}
        else:
            del found[here]
            unasked, silent = str(p.failure), silent or bool(p.failure.retriable)
    return LeadersAnswer(found, unasked, silent, {topic: i for topic, i in ids.items() if i})


# -- open transactions ------------------------------------------------------------------------------------------------


def open_on(admin: Admin, partitions: Sequence[Partition]) -> list[Hanging]:
    """Every transaction that is open on one of ``partitions``, whether or not it hangs."""
    return _open(admin, sorted({topic for topic, _ in partitions}), set(partitions).__contains__)


def written(admin: Admin, transaction: Description) -> int:
    """Return how many records an open transaction holds, as its partitions' leaders count them.

    Exact for a transaction whose producer was initialised for it alone, as a part's is.
    """
    mine = (transaction.producer_id, transaction.producer_epoch)
    found = _open(admin, sorted({topic for topic, _ in transaction.partitions}))
    return sum(h.records for h in found if (h.producer_id, h.producer_epoch) == mine)


def _open(
    admin: Admin, topics: list[str], wanted: Callable[[Partition], bool] = lambda partition: True
) -> list[Hanging]:
    """Every transaction that is open on a partition of ``topics`` that is ``wanted``, by the partition's leader."""

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
        The least age of the last record, by its timestamp, of those whose producer no coordinator knows. A transaction
        that has just begun can look like one of these, so this should be the longest transaction timeout that the
        brokers allow. Where a coordinator is past a transaction by its own word, no age is needed.

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


def end_by_marker(connection: Connection, hanging: Hanging, commit: bool = False, budget_s: float = 10.0) -> bool:
    """Write the end marker that no coordinator will write, of an abort or of a ``commit``, which makes visible what the
    transaction holds in this partition; return False when it was there no more.

    It is looked up again first: exactly this transaction is ended, and only as long as it hangs. That takes the
    explicit word of a coordinator, which describes the id and does not name the partition. Where none knows the
    producer, it takes two looks, ten seconds apart, since a coordinator may just have died.

    Raises
    ------
    BrokerUnreachable, NotAuthorized
        It needs ALTER on the cluster, and DESCRIBE on all transactional ids where no coordinator knows the producer:
        one may, under an id that this principal does not see.
    """
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


async def _describe_producers(
    admin: Admin,
    topics: list[str],
    wanted: Callable[[Partition], bool],
    also: Iterable[str] = (),
    ids: dict[str, str] | None = None,
) -> list[_Answer]:
    """Ask the leaders of the partitions of ``topics`` that are ``wanted``, and who they are, at once: an answer counts
    if its broker was the leader meanwhile, else the leader is asked. ``ids`` takes the ids of these topics, and of
    those in ``also``, whose errors are nobody's.
    """
    early: list[tuple[int, list[Partition], Any]] = []
    for node, some in admin.led_before(topics).items():
        with suppress(KafkaError):  # the broker has left the cluster
            early += _send(admin, node, some, wanted)
    leaderless: list[Partition] = []
    denied: dict[str, KafkaError] = {}
    led = await admin.leaders(sorted({*topics, *also}), leaderless, ids, denied)
    for topic in topics:
        if topic in denied:
            raise denied[topic]
    answers = [_Answer(*p, LeaderNotAvailableError(f"{p[0]}-{p[1]}"), []) for p in leaderless if wanted(p)]
    names = set(topics)
    left = {node: {p for p in some if p[0] in names} for node, some in led.items()}
    asked: list[tuple[set[Partition], Any]] = []
    for node, some, answer in early:
        if still := left.get(node, set()) & set(some):
            asked.append((still, answer))
            left[node] -= still
    for node, rest in left.items():
        asked += [(set(some), answer) for _, some, answer in _send(admin, node, sorted(rest), wanted)]
    for partitions, answer in asked:
        try:
            answers += [a for a in _answers(await answer) if (a.topic, a.partition) in partitions]
        except UnknownBrokerIdError:  # the caller has the client look at the cluster anew
            raise
        except KafkaError as e:
            answers += [_Answer(*p, e, []) for p in sorted(partitions)]
    return answers


def _send(
    admin: Admin, node: int, led: list[Partition], wanted: Callable[[Partition], bool]
) -> Iterator[tuple[int, list[Partition], Any]]:
    """Ask a broker for those of these partitions that are ``wanted``, some at a time."""
    partitions = [p for p in led if wanted(p)]
    for first in range(0, len(partitions), _PARTITIONS_AT_ONCE):
        some = partitions[first : first + _PARTITIONS_AT_ONCE]
        yield node, some, admin.send(_request(some), node)


def _request(partitions: list[Partition]) -> DescribeProducersRequest:
    of_topic = DescribeProducersRequest.TopicRequest
    return DescribeProducersRequest(
        topics=[of_topic(name=name, partition_indexes=some) for name, some in by_topic(partitions).items()]
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
