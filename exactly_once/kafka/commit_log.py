"""The commit log: a compacted topic for each sink that only its owner can write.

It has one partition and one writer, the transactional producer ``eo:<sink>:log``. Kafka itself fences a second driver:
each InitProducerId aborts what the previous producer had under way and refuses it from then on. Because the *last* init
wins, not the last claim, a producer is only used after the log was read to its end behind its own init and the latest
claim there is the caller's. So between the look and the write nobody else can have claimed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from exactly_once.deadline import Deadline
from exactly_once.errors import (
    BrokerUnreachable,
    CommitLogDamaged,
    ExactlyOnceError,
    Fenced,
    InvalidTransactionTimeout,
    NotAuthorized,
    UnknownTopic,
)
from exactly_once.kafka.connection import FAST_CONNECT, Connection, librdkafka_log
from exactly_once.kafka.raw import RawClient
from exactly_once.protocol.log_state import LogState, fold
from exactly_once.protocol.names import commit_log_id, commit_log_topic, offsets_group
from exactly_once.protocol.records import Claim, Completed, Entry, Record, decode, encode, key_of

log = logging.getLogger(__name__)

#: Topic -> partition -> the next offset to read.
Offsets = Mapping[str, Mapping[int, int]]

#: A write is one small record; a driver that dies inside it blocks readers of the log (never of the output) this long,
#: or until the next claim, which aborts it.
LOG_TRANSACTION_TIMEOUT_MS = 30_000

#: What the brokers answer when the offsets, not the record, are what they refuse: no READ on the group or the topic, or
#: an input topic that is on another cluster.
_NO_OFFSETS = (
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
)

#: Compaction never touches the active segment, so this bounds what a claim has to read.
_TOPIC_CONFIG = {
    "cleanup.policy": "compact",
    "message.timestamp.type": "LogAppendTime",  # the broker's clock is the one that transactions expire by
    "segment.bytes": str(4 * 1024 * 1024),
    "min.cleanable.dirty.ratio": "0.1",
    "max.message.bytes": str(8 * 1024 * 1024),  # a decision of 50,000 parts
}


class CommitLog:
    """The commit log of ``sink_id``, for one process.

    Reading needs no right to write. :meth:`claim` and :meth:`append` create the writer on first use and again after any
    failure.
    """

    def __init__(self, connection: Connection, sink_id: str):
        self._connection = connection
        self.sink_id = sink_id
        self.topic = commit_log_topic(sink_id)
        self._producer: Producer | None = None
        self._state = LogState()
        self._group_metadata: Any = None
        self._may_commit_offsets = True
        self.clock_ahead_ms = 0
        """The brokers' clock minus this machine's, as of the last write."""

    def read(self, deadline: Deadline) -> LogState:
        """The state at the end of the log, as far as it is committed; an empty state when there is no log.

        Raises
        ------
        BrokerUnreachable, CommitLogDamaged, NotAuthorized
        """
        try:
            entries = list(self._entries(deadline))
        except UnknownTopic:
            return LogState()
        return fold(entries)

    def claim(self, make: Callable[[LogState], Claim], deadline: Deadline) -> tuple[LogState, Claim]:
        """Become the owner: fence every other writer, read to the end, write ``make(state)``.

        ``make`` may raise to refuse; then nothing is written.

        Returns
        -------
        (LogState, Claim)
            The state before the claim, and the claim.
        """
        failure: ExactlyOnceError | None = None
        for _ in deadline.tries(first_pause_s=0.2):
            state = self._init(deadline)
            claim = make(state)
            try:
                self._write(claim, deadline)
                return state, claim
            except KafkaException as e:
                failure = self._named(e)
            self._init(deadline)
            if self._state.owner == claim:
                return state, claim
        raise failure or self._timed_out(deadline)

    def append(
        self,
        record: Record,
        deadline: Deadline,
        offsets: Offsets | None = None,
        check: Callable[[LogState], None] | None = None,
    ) -> None:
        """Write ``record``, which carries the caller's token, durably and as the owner.

        ``offsets``, by topic and partition, are committed in the same transaction to the consumer group
        :func:`~exactly_once.protocol.names.offsets_group`, for lag tools. Without the right to do so the record is
        written alone. ``check`` may raise to refuse: it gets the very state behind which the record is written.

        Raises
        ------
        Fenced
            When a later claim exists. If an earlier try was left without an answer, the record may be in the log all
            the same; then the newer owner has seen it.
        """
        failure: ExactlyOnceError | None = None
        for _ in deadline.tries(first_pause_s=0.2):
            state = self.own(record.token, deadline)
            if self._holds(record):
                return
            if check is not None:
                check(state)
            try:
                self._write(record, deadline, offsets if self._may_commit_offsets else None)
                return
            except KafkaException as e:  # fenced by a late init, or an answer that got lost: look, then try again
                failure = self._named(e)
                if offsets and e.args[0].code() in _NO_OFFSETS:
                    self._may_commit_offsets = False
                    log.warning(
                        "sink %s: EO-WARN-GROUP the input's offsets cannot be committed to the consumer group %s (%s), "
                        "so lag tools will not see the stream; nothing else is affected",
                        self.sink_id,
                        offsets_group(self.sink_id),
                        e.args[0].str(),
                    )
        raise failure or self._timed_out(deadline)

    def own(self, token: int, deadline: Deadline) -> LogState:
        """The state of the log, after making sure that nobody claimed after ``token`` and that no write is under way.

        Raises
        ------
        Fenced
            When somebody did.
        """
        owner = self._state.owner
        if self._producer is None or owner is None or owner.token != token:
            owner = self._init(deadline).owner  # what this process remembers may be an earlier claim of its own driver
        if owner is None or owner.token != token:
            self._discard()
            by = f"claim {owner.token}, {owner.purpose} on {owner.host} (process {owner.pid})" if owner else "no claim"
            raise Fenced(
                f"claim {token} of sink {self.sink_id!r} is superseded by {by}",
                "Stop this driver if the newer one is the right one; to take the sink back, start the stream here "
                "again",
            )
        return self._state

    def close(self) -> None:
        """Drop the writer; what it wrote is committed already."""
        self._discard()

    # -- writing --------------------------------------------------------------------------------------------------

    def _init(self, deadline: Deadline) -> LogState:
        self._discard()
        self._ensure_topic(deadline)
        producer = Producer(
            {
                **self._connection.librdkafka(),
                **FAST_CONNECT,
                "client.id": f"exactly-once-log-{self.sink_id}",
                "transactional.id": commit_log_id(self.sink_id),
                "transaction.timeout.ms": LOG_TRANSACTION_TIMEOUT_MS,
                "message.max.bytes": _TOPIC_CONFIG["max.message.bytes"],
                "linger.ms": 0,
                "compression.type": "lz4",
                "logger": librdkafka_log,
            }
        )
        try:
            producer.init_transactions(deadline.left)
        except KafkaException as e:
            raise self._named(e) from e
        self._state = fold(self._entries(deadline))
        self._producer = producer
        return self._state

    def _write(self, record: Record, deadline: Deadline, offsets: Offsets | None = None) -> None:
        producer, failed = self._producer, []
        assert producer is not None
        try:
            producer.begin_transaction()
            producer.produce(
                self.topic,
                key=key_of(record),
                value=encode(record),
                on_delivery=lambda error, message: failed.append(error) if error else self._note(record, message),
            )
            if offsets:
                positions = [TopicPartition(t, p, o) for t, ends in offsets.items() for p, o in ends.items()]
                producer.send_offsets_to_transaction(positions, self._group(), deadline.left)
            producer.commit_transaction(deadline.left)
            if failed:
                raise KafkaException(failed[0])
        except BaseException:
            self._discard()  # its state is not known; the next use initialises again and reads what became of the write
            raise

    def _group(self) -> Any:
        if self._group_metadata is None:
            config = {"group.id": offsets_group(self.sink_id), "logger": librdkafka_log}
            consumer = Consumer({**self._connection.librdkafka(), **config})
            self._group_metadata = consumer.consumer_group_metadata()
            consumer.close()
        return self._group_metadata

    def _note(self, record: Record, message: Message) -> None:
        _, timestamp_ms = message.timestamp()
        self.clock_ahead_ms = timestamp_ms - now_ms()
        self._state = fold([Entry(record, message.offset() or 0, timestamp_ms)], self._state)

    def _holds(self, record: Record) -> bool:
        if isinstance(record, Completed):
            return (record.query_id, record.batch_id) in self._state.marks
        return record in self._state.decisions or record == self._state.tally

    def _discard(self) -> None:
        self._producer = None
        self._state = LogState()

    def _ensure_topic(self, deadline: Deadline) -> None:
        with RawClient(self._connection, deadline.left) as cluster:
            try:
                cluster.topic_partitions([self.topic])
            except UnknownTopic:
                replication = min(3, cluster.broker_count())
                durable = {"min.insync.replicas": str(max(1, replication - 1))}
                cluster.create_topic(self.topic, 1, replication, {**_TOPIC_CONFIG, **durable})
                for _ in deadline.tries():
                    try:
                        cluster.topic_partitions([self.topic])
                        return
                    except UnknownTopic:
                        continue
            policy = cluster.topic_config(self.topic).get("cleanup.policy", "compact")
            if policy != "compact":
                raise CommitLogDamaged(
                    f"the commit log {self.topic} has cleanup.policy={policy}: decisions would be deleted by age",
                    f"Set cleanup.policy=compact on {self.topic}",
                )

    # -- reading --------------------------------------------------------------------------------------------------

    def _entries(self, deadline: Deadline) -> Iterator[Entry]:
        """All committed records, in order, up to the last stable offset at the time of the call."""
        consumer = Consumer(
            {
                **self._connection.librdkafka(),
                "group.id": f"exactly-once-{self.sink_id}",  # required by the client; nothing joins or commits it
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 20,  # the end of the log is asked for, not waited for
                "fetch.message.max.bytes": 16 * 1024 * 1024,
                "logger": librdkafka_log,
            }
        )
        try:
            low, _ = consumer.get_watermark_offsets(TopicPartition(self.topic, 0), timeout=max(0.1, deadline.left))
            consumer.assign([TopicPartition(self.topic, 0, low)])
            while not deadline.over:
                message = consumer.poll(0.1)
                if message is None:
                    continue
                error = message.error()
                if error is None:
                    _, timestamp_ms = message.timestamp()
                    yield Entry(decode(message.value() or b""), message.offset() or 0, timestamp_ms)
                elif error.code() == KafkaError._PARTITION_EOF:
                    return
                elif not error.retriable() and error.code() != KafkaError._TRANSPORT:
                    raise KafkaException(error)
            raise self._timed_out(deadline)
        except KafkaException as e:
            raise self._named(e) from e
        finally:
            consumer.close()

    def _timed_out(self, deadline: Deadline) -> BrokerUnreachable:
        return BrokerUnreachable(
            f"the commit log {self.topic} gave no answer within {deadline.seconds:g} s",
            "Check the brokers; start again when they answer",
        )

    def _named(self, e: KafkaException) -> ExactlyOnceError:
        error: KafkaError = e.args[0]
        code = error.code()
        if code in (KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION):
            return UnknownTopic(f"the commit log {self.topic} does not exist", "Start the stream once; it creates it")
        if code == KafkaError.INVALID_TRANSACTION_TIMEOUT:
            return InvalidTransactionTimeout(
                f"the brokers allow no transaction timeout of {LOG_TRANSACTION_TIMEOUT_MS} ms",
                "Set transaction.max.timeout.ms of the brokers to a minute at least",
            )
        if "AUTHORIZATION" in error.name() or "AUTHENTICATION" in error.name():
            return NotAuthorized(
                f"this principal may not use the commit log {self.topic} ({error.str()})",
                "Grant the rights that the README lists under 'Rights'",
            )
        return BrokerUnreachable(
            f"the commit log {self.topic} on {self._connection.bootstrap_servers}: {error.str()}",
            "Check the brokers; start again",
        )


def read_log(connection: Connection, sink_id: str, timeout_s: float = 10.0) -> LogState:
    """The state of the sink's commit log, for observers; an empty state for a sink that was never used.

    Raises
    ------
    BrokerUnreachable, CommitLogDamaged, NotAuthorized
    """
    return CommitLog(connection, sink_id).read(Deadline(timeout_s))


def now_ms() -> int:
    """This machine's clock in ms since the epoch: for people, never for decisions."""
    return int(time.time() * 1000)
