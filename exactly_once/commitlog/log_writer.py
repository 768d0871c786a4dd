"""The transactional producer of a commit log, request by request, over an :class:`~exactly_once.kafka.admin.Admin`.

A client's producer puts its requests one behind the other. This one asks at once what does not depend on each other,
and opens the next transaction, and sends what it is to hold, while its caller still asks others. It works by the rules
of transaction.version 0 and 1, which every broker knows and which a cluster with 2 takes as well.

Sources: KIP-98 (the requests), KIP-447 (offsets of a group without members).
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from kafka.errors import (
    ConcurrentTransactionsError,
    GroupAuthorizationFailedError,
    KafkaError,
    MessageSizeTooLargeError,
)
from kafka.protocol.producer import AddOffsetsToTxnRequest, EndTxnRequest, ProduceRequest, TxnOffsetCommitRequest
from kafka.record.default_records import DefaultRecordBatchBuilder

from exactly_once.deadline import Deadline
from exactly_once.kafka.admin import Admin, Partition
from exactly_once.kafka.asking import REQUEST_TIMEOUT_MS
from exactly_once.kafka.errors import check
from exactly_once.protocol.encoding import LARGEST_RECORD_BYTES
from exactly_once.txn.coordinators import add_request, check_added, initialise

T = TypeVar("T")

#: Versions of the requests: those that brokers since 2.7 know, and none that makes a broker take the rules of
#: transaction.version 2. Produce since 3 knows transactions, EndTxn since 3 names a fenced producer.
_ADD_OFFSETS, _COMMIT_OFFSETS, _PRODUCE, _END = 3, 3, 9, 3

#: Bytes of records from which on they are compressed: a decision of a few parts is as small without.
_COMPRESSED_FROM = 1_024

#: The codecs as a batch of records names them: gzip is in Python's own library.
_NONE, _GZIP = 0, 1

#: Pauses in which a coordinator writes the end markers of the transaction before, milliseconds on brokers side by side.
_STILL_ENDING_S = (0.002, 0.005, 0.01, 0.02, 0.05)

#: Budget for what is only asked, and not waited for.
_NOT_WAITED_S = 1.0

#: Time within which a leader answers that replicas have not acknowledged a record: before the client gives up the
#: request, and with it a connection over which others ask.
_ACKNOWLEDGED_MS = REQUEST_TIMEOUT_MS - 1_000

#: Share of its timeout from which on an open transaction is not used any more: its coordinator may end it.
_USABLE = 0.6

#: Room in a batch: the records of one write are one batch, whatever their size.
_NO_LIMIT = 1 << 30


class LogRecord(NamedTuple):
    """A record to be written under its key; a ``value`` of None is a tombstone."""

    key: bytes
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()


#: The records of a transaction by partition.
Batches = Mapping[Partition, Sequence[LogRecord]]


class Written(NamedTuple):
    """The first offset of the records of a partition, and the time at which the broker appended them; -1 where the
    topic keeps the times of producers.
    """

    offset: int
    timestamp_ms: int


class GroupOffsets(NamedTuple):
    """The offsets to commit with a transaction: of a group, by topic and partition, with metadata beside each. The
    ``coordinator`` of the group has ``timeout_s`` for its answer.
    """

    group: str
    coordinator: int
    offsets: Mapping[str, Mapping[int, int]]
    metadata: str
    timeout_s: float


class OffsetsFailed(Exception):
    """The brokers did not take the offsets; the cause is kafka-python's error."""


class LogWriter:
    """The producer of ``transactional_id`` from its initialisation to its first failure.

    After any exception the state of its transaction is not known: whoever goes on initialises another one, which ends
    what this one began.

    Parameters
    ----------
    ask : callable
        Seconds -> the connection with this budget.

    Raises BrokerUnreachable, BrokerRefused or NotAuthorized.
    """

    def __init__(self, ask: Callable[[float], Admin], transactional_id: str, timeout_ms: int, deadline: Deadline):
        self._ask = ask
        self._id = transactional_id
        self._producer_id, self._epoch = initialise(ask(max(0.1, deadline.left)), transactional_id, timeout_ms)
        self._usable_s = timeout_ms / 1000 * _USABLE
        self._unanswered = False
        self._sequences: dict[Partition, int] = {}
        self._opened_s = 0.0
        self._opening: tuple[frozenset[Partition], str, Awaitable[None]] | None = None
        self._ahead: tuple[Batches, Awaitable[dict[Partition, Written]]] | None = None

    @property
    def spent(self) -> bool:
        """True when another one must be initialised: the transaction has been open for too long, or a commit got no
        answer and was asked for again. Its first request may reach the coordinator late, and would end the next
        transaction of this producer.
        """
        open_s = time.monotonic() - self._opened_s if self._opening or self._ahead else 0.0
        return self._unanswered or open_s > self._usable_s

    def open(self, partitions: Iterable[Partition], group: str = "") -> None:
        """Begin the next transaction with these partitions, and with the offsets of ``group``, and do not wait for it:
        :meth:`write` does.
        """
        if self._opening is None:
            admin, wanted = self._ask(_NOT_WAITED_S), frozenset(partitions)
            self._opened_s = time.monotonic()
            self._opening = wanted, group, admin.begin(lambda: self._add(admin, wanted, group))

    def send(self, records: Batches, offsets: GroupOffsets | None = None) -> bool:
        """Send what the next :meth:`write` is to commit, and do not wait for it. Return False, and send nothing, unless
        the transaction was begun with their partitions and their group. Raise MessageSizeTooLargeError as that does.
        """
        opening, group = self._opening, offsets.group if offsets else ""
        if opening is None or not opening[0] >= frozenset(records) or opening[1] != group:
            return False
        _check_sizes(records)
        self._opening = None
        admin, packed = self._ask(_NOT_WAITED_S), self._packed(records)

        async def behind() -> dict[Partition, Written]:
            await opening[2]
            return await self._send(admin, packed, offsets)

        self._ahead = records, admin.begin(behind)
        return True

    def write(
        self, records: Batches, deadline: Deadline, offsets: GroupOffsets | None = None
    ) -> dict[Partition, Written]:
        """Write records and offsets in one transaction, and commit it. What :meth:`send` was given must be the same.

        Raises
        ------
        OffsetsFailed
            When the offsets could not be added; nothing is committed.
        kafka.errors.KafkaError
            What the brokers answered last. Whether the transaction was committed may not be known.
        """
        _check_sizes(records)
        admin = self._ask(max(0.1, deadline.left))
        written = self._sent_ahead(admin, records)
        if written is None:
            self._begin(admin, frozenset(records), offsets.group if offsets else "", deadline)
            packed = self._packed(records)
            written = _repeat(deadline, lambda: admin.run(lambda: self._send(admin, packed, offsets)))
        for where, some in records.items():
            self._sequences[where] = self._sequences.get(where, 0) + len(some)
        _repeat(deadline, lambda: admin.run(lambda: self._end(admin)))
        return written

    def _sent_ahead(self, admin: Admin, records: Batches) -> dict[Partition, Written] | None:
        """Return what became of what was sent; None where it is to be sent, for the first time or again."""
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return None
        assert ahead[0] == records, "a transaction would commit what it is not asked for"
        try:
            return admin.run(lambda: _answer(ahead[1]))
        except KafkaError as e:
            if not e.retriable:
                raise
        return None

    def _begin(self, admin: Admin, partitions: frozenset[Partition], group: str, deadline: Deadline) -> None:
        opening, self._opening = self._opening, None
        if opening is not None:
            added, its_group, answer = opening
            try:
                admin.run(lambda: _answer(answer))
                partitions, group = partitions - added, group if group != its_group else ""
            except KafkaError as e:
                if not e.retriable:
                    raise
        if partitions or group:
            _repeat(deadline, lambda: admin.run(lambda: self._add(admin, partitions, group)))

    # -- questions ------------------------------------------------------------------------------------------------

    async def _add(self, admin: Admin, partitions: frozenset[Partition], group: str) -> None:
        """Add to the transaction, which begins with that, once the coordinator has ended the one before."""
        for pause_s in _STILL_ENDING_S:
            try:
                return await self._add_now(admin, partitions, group)
            except ConcurrentTransactionsError:
                await admin.pause(pause_s)
        return await self._add_now(admin, partitions, group)

    async def _add_now(self, admin: Admin, partitions: frozenset[Partition], group: str) -> None:
        """Send both requests at once: their broker works them off in this order."""
        node = (await admin.coordinators([self._id]))[self._id]
        with self._forgetting(admin):
            to_add = add_request(self._id, self._producer_id, self._epoch, partitions)
            added = admin.send(to_add, node) if partitions else None
            of_group = AddOffsetsToTxnRequest(**self._me, group_id=group, max_version=_ADD_OFFSETS)
            offsets = admin.send(of_group, node) if group else None
            if added is not None:
                check_added(await added)
            if offsets is not None:
                try:
                    check((await offsets).error_code, f"AddOffsetsToTxn of {group}")
                except GroupAuthorizationFailedError as e:
                    raise OffsetsFailed(str(e)) from e

    async def _end(self, admin: Admin) -> None:
        node = (await admin.coordinators([self._id]))[self._id]
        with self._forgetting(admin):
            request = EndTxnRequest(**self._me, committed=True, max_version=_END)
            try:
                answer = await admin.send(request, node)
            except KafkaError:
                self._unanswered = True
                raise
            check(answer.error_code, f"EndTxn of {self._id}")

    @contextmanager
    def _forgetting(self, admin: Admin) -> Iterator[None]:
        """Have the coordinator looked up again behind an error: it may have moved. One that is busy has not."""
        try:
            yield
        except KafkaError as e:
            if not isinstance(e, ConcurrentTransactionsError):
                admin.forget_coordinator(self._id)
            raise

    async def _commit(self, admin: Admin, offsets: GroupOffsets) -> None:
        topic_of = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
        offset_of = topic_of.TxnOffsetCommitRequestPartition
        request = TxnOffsetCommitRequest(
            **self._me,
            group_id=offsets.group,
            generation_id=-1,
            member_id="",
            topics=[
                topic_of(name=topic, partitions=[offset_of(p, o, -1, offsets.metadata) for p, o in ends.items()])
                for topic, ends in offsets.offsets.items()
            ],
            max_version=_COMMIT_OFFSETS,
        )
        answer = await admin.wait(admin.send(request, offsets.coordinator), offsets.timeout_s)
        for topic in answer.topics:
            for p in topic.partitions:
                check(p.error_code, f"TxnOffsetCommit of {topic.name}-{p.partition_index}")

    async def _send(
        self, admin: Admin, packed: Mapping[Partition, bytes], offsets: GroupOffsets | None
    ) -> dict[Partition, Written]:
        """Send records and offsets at once. What is sent again is kept once."""
        committing = admin.begin(lambda: self._commit(admin, offsets)) if offsets else None
        written = await self._produce(admin, packed)
        if committing is not None:
            try:
                await committing
            except KafkaError as e:
                raise OffsetsFailed(str(e)) from e
        return written

    async def _produce(self, admin: Admin, packed: Mapping[Partition, bytes]) -> dict[Partition, Written]:
        """Send each partition's batch to its leader, all at once. One that is sent again is kept once: its leader knows
        it by its sequence.
        """
        of_topic, asked = ProduceRequest.TopicProduceData, []
        for where, batch in packed.items():
            data = [of_topic.PartitionProduceData(index=where[1], records=batch)]
            request = ProduceRequest(
                transactional_id=self._id,
                acks=-1,
                timeout_ms=_ACKNOWLEDGED_MS,
                topic_data=[of_topic(name=where[0], partition_data=data)],
                max_version=_PRODUCE,
            )
            asked.append((where, admin.send(request, await admin.led_by(where))))
        written: dict[Partition, Written] = {}
        for where, answer in asked:
            try:
                [topic] = (await answer).responses
                [p] = topic.partition_responses
                check(p.error_code, f"Produce to {where[0]}-{where[1]}")
            except KafkaError:
                admin.forget_leader(where)  # it may have moved
                raise
            written[where] = Written(int(p.base_offset), int(p.log_append_time_ms))
        return written

    # -- requests -------------------------------------------------------------------------------------------------

    @property
    def _me(self) -> dict[str, Any]:
        return {"transactional_id": self._id, "producer_id": self._producer_id, "producer_epoch": self._epoch}

    def _packed(self, records: Batches) -> dict[Partition, bytes]:
        return {where: self._batch(where, some) for where, some in records.items()}

    def _batch(self, where: Partition, records: Sequence[LogRecord]) -> bytes:
        codec = _GZIP if sum(len(r.value or b"") for r in records) >= _COMPRESSED_FROM else _NONE
        batch = DefaultRecordBatchBuilder(
            2, codec, True, self._producer_id, self._epoch, self._sequences.get(where, 0), _NO_LIMIT
        )
        for n, record in enumerate(records):
            batch.append(n, None, record.key, record.value, list(record.headers))
        return bytes(batch.build())


def _check_sizes(records: Batches) -> None:
    largest = max(len(r.value or b"") for some in records.values() for r in some)
    if largest > LARGEST_RECORD_BYTES:
        raise MessageSizeTooLargeError(f"{largest} bytes before compression")


def _repeat(deadline: Deadline, act: Callable[[], T]) -> T:
    """Return what ``act`` returns; repeat it after errors that Kafka calls retriable, the last of which is raised."""
    for _ in deadline.tries():
        try:
            return act()
        except KafkaError as e:
            failure = e
            if not e.retriable:
                raise
    raise failure


async def _answer(answer: Awaitable[T]) -> T:
    return await answer
