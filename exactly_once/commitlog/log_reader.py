"""Read commit logs: all of the partition, up to where a reader may, or up to its very end; find the one with a query.

A read_committed reader stops at the last stable offset, so another application's open transaction hides every claim and
decision after it. After an init of the log's own producer nothing of ours is open: whoever goes on to write reads up
to the high watermark, or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from exactly_once.deadline import Deadline
from exactly_once.errors import BrokerUnreachable, CommitLogBlocked, CommitLogDamaged, ExactlyOnceError
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection, librdkafka_log
from exactly_once.kafka.errors import of_commit_log, silent_log
from exactly_once.protocol.encoding import decode
from exactly_once.protocol.names import commit_log_topic, sink_of_log
from exactly_once.protocol.records import Decision, Entry, is_own_key, key_of
from exactly_once.protocol.untrusted import check_own
from exactly_once.txn.coordinators import ids_of
from exactly_once.txn.leaders import OLDER_THAN_S, open_on

#: Budget for asking who blocks the log, when the budget for waiting is spent.
_WHO_S = 5.0

#: Largest answer, in bytes: a log that compaction has kept short comes in a few.
_MANY_BYTES = 16 * 1024 * 1024

#: Characters of a record's key that an error shows. Those of batch writes have up to 415.
_KEY_SHOWN = 500

#: Characters of a foreign key, and of its value, that an error shows.
_STRAY_SHOWN = 100

#: Most foreign keys that may lack a tombstone: some 20 MB. A program that takes the log for its own topic writes
#: thousands within a second, and tombstones must be a way back from them.
_MANY_STRAYS = 100_000

#: The only partition that a commit log uses, however many its topic has.
PARTITION = 0


class Reading(NamedTuple):
    """The records that were read, and the offset that the reader has reached."""

    entries: list[Entry]
    position: int


def read(
    connection: Connection, sink_id: str, deadline: Deadline, start: int | None = None, until: int | None = None
) -> Reading:
    """Return the committed records of the sink's log, in order: of each key the last one.

    Parameters
    ----------
    start : int, optional
        Where to begin. Default: at the beginning.
    until : int, optional
        Wait until everything before this offset can be read. Default: read what can be read now.

    Raises
    ------
    UnknownTopic, NotAuthorized, BrokerUnreachable, CommitLogDamaged
    CommitLogBlocked
        When the deadline is over before ``until`` can be read.
    """
    topic = commit_log_topic(sink_id)
    consumer = consumer_of(connection, topic, {"auto.offset.reset": "error", "fetch.message.max.bytes": _MANY_BYTES})
    latest = _Latest()
    position = -1
    try:
        partition = TopicPartition(topic, PARTITION)
        low, _ = consumer.get_watermark_offsets(partition, timeout=max(0.1, deadline.left))
        consumer.assign([TopicPartition(topic, PARTITION, low if start is None else start)])
        while not deadline.over:
            message = consumer.poll(0.1)
            if message is None:
                continue
            error = message.error()
            if error is None:
                latest.take(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                position = message.offset() or 0
                if until is None or position >= until:
                    break
            elif error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                continue  # the client looks for the coordinator of its group, which nothing here needs
            elif not error.retriable() and error.code() != KafkaError._TRANSPORT:
                raise KafkaException(error)
    except KafkaException as e:
        raise of_commit_log(e, topic, connection.bootstrap_servers) from e
    finally:
        consumer.close()
    entries = latest.entries(sink_id)
    if position < 0:
        raise timed_out(topic, deadline)
    if until is not None and position < until:
        with Admin(connection, _WHO_S) as admin:
            raise blocked(admin, topic, position)
    return Reading(entries, position)


def consumer_of(connection: Connection, name: str, settings: Mapping[str, Any]) -> Consumer:
    """Return a reader of commit logs, which waits for nothing at their ends."""
    return Consumer(
        {
            **connection.librdkafka(),
            "group.id": f"exactly-once-{name}",  # required by the client; nothing joins or commits it
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 20,  # the end of the log is asked for, not waited for
            "logger": librdkafka_log,
            **settings,
        }
    )


class _Latest:
    """The last record of each key, as in compaction: a tombstone settles the stray record before it.

    A log that is not compacted, or that somebody floods, takes no more memory than its keys do.
    """

    def __init__(self) -> None:
        self._by_key: dict[bytes | str | None, Message] = {}
        self._strays: dict[bytes, str] = {}  # a digest of the key -> where it is

    def take(self, message: Message) -> None:
        key, text = message.key(), _text(message.key())
        if is_own_key(text):
            self._by_key.pop(key, None)
            if message.value() is not None:
                self._by_key[key] = message
            return
        digest = blake2b(key.encode() if isinstance(key, str) else key or b"", digest_size=16).digest()
        self._strays.pop(digest, None)
        if (value := message.value()) is not None:
            where = f"at offset {message.offset()} under the key {text[:_STRAY_SHOWN]!r}"
            self._strays[digest] = f"{value[:_STRAY_SHOWN]!r} {where}"
            if len(self._strays) > _MANY_STRAYS:
                raise self._stray(message.topic() or "")

    def entries(self, sink_id: str) -> list[Entry]:
        """Return the entries in the order of the log."""
        if self._strays:
            raise self._stray(commit_log_topic(sink_id))
        return [_entry(message, sink_id) for message in self._by_key.values()]

    def _stray(self, topic: str) -> CommitLogDamaged:
        first = next(iter(self._strays.values()))
        many = (
            f"{len(self._strays):,} keys" if len(self._strays) <= _MANY_STRAYS else f"more than {_MANY_STRAYS:,} keys"
        )
        then = ", and wait until the brokers have compacted the topic" if len(self._strays) > _MANY_STRAYS else ""
        return CommitLogDamaged(
            f"the commit log {topic} holds records under {many} that no sink uses, the first {first}",
            f"Stop the program that wrote these records: only the sink may write to {topic}. Then drop the records "
            f"with exactly-once log {sink_of_log(topic)} --drop-foreign{then}",
        )


def _entry(message: Message, sink_id: str) -> Entry:
    """Return the record with its place.

    It must be what the sink writes under this key, and name the sink's own parts alone.
    """
    _, timestamp_ms = message.timestamp()
    try:
        record = decode(message.value() or b"", dict(message.headers() or ()))
    except CommitLogDamaged as e:
        if "newer version" not in e.what:
            raise _damaged(message, sink_id, e.what) from None
        raise CommitLogDamaged(
            f"{e.what}: the record at offset {message.offset()} of {message.topic()}",
            f"{e.way_out}. If no newer version was ever in use, something other than the sink wrote the record: run "
            f"exactly-once log {sink_id} to see the writer and how to undo the record",
        ) from None
    try:
        check_own(record, sink_id)
    except ValueError as e:
        what = f"the commit log holds a record that no driver of this sink wrote ({e})"
        raise _damaged(message, sink_id, what) from None
    if _text(message.key()) != key_of(record):
        what = f"the commit log holds a record that belongs under the key {key_of(record)!r}"
        raise _damaged(message, sink_id, what)
    return Entry(record, message.offset() or 0, timestamp_ms)


def _text(key: bytes | str | None) -> str:
    return key.decode(errors="replace") if isinstance(key, bytes) else key or ""


def _damaged(message: Message, sink_id: str, what: str) -> CommitLogDamaged:
    key = _text(message.key())[:_KEY_SHOWN]
    return CommitLogDamaged(
        f"{what}, at offset {message.offset()} of {message.topic()} under the key {key!r}",
        f"Stop the program that wrote this record: only the sink may write to {message.topic()}. Then put the previous "
        f"record of this key in force again with exactly-once log {sink_id} --undo {message.offset()}",
    )


def blocked(admin: Admin, topic: str, position: int) -> CommitLogBlocked:
    """Return the error of a log that cannot be read beyond ``position``, with the names of those who have to end."""
    found = sorted(open_on(admin, [(topic, PARTITION)]), key=lambda h: h.start_offset)
    ids = ids_of(admin, {h.producer_id for h in found}) if found else {}
    who = ", ".join(
        f"{f'of {ids[h.producer_id]!r} ' if h.producer_id in ids else ''}(producer {h.producer_id}, epoch "
        f"{h.producer_epoch}, first offset {h.start_offset})"
        for h in found
    )
    what = f"the open transaction {who}" if found else f"a transaction that began at or before offset {position}"
    begin = found[0].start_offset if found else position
    return CommitLogBlocked(
        f"the commit log {topic} cannot be read beyond offset {position}: {what} hides the records after it",
        "Stop the other writer, because only the sink may write to this topic: its transaction then ends, at its "
        f"timeout at the latest. If the transaction has been open for more than {OLDER_THAN_S / 60:g} minutes and no "
        f"coordinator knows it, end it with exactly-once transactions abort --hanging {topic}-{PARTITION}@{begin} "
        "(in Dagster: the job exactly_once_end_hanging). Then start the stream again. Do not use "
        "kafka-transactions.sh abort on a transaction that a coordinator knows: that ends the transaction on one "
        "partition only",
    )


def timed_out(topic: str, deadline: Deadline) -> BrokerUnreachable:
    """Return the error of a log whose brokers do not answer."""
    return silent_log(topic, f"the commit log {topic} did not answer within {round(deadline.seconds, 1):g} s")


#: Longest wait of a start that is refused for another reason anyway; a hundred logs take half a second.
SEARCH_BUDGET_S = 3.0


class Holder(NamedTuple):
    """The sink that has decided batches of a query, and the newest of them."""

    sink_id: str
    batch_id: int

    @property
    def title(self) -> str:
        """Name it, in words that follow the query."""
        return f"sink {self.sink_id} holds batch {self.batch_id} of this query"


def holder_of(admin: Admin, query_id: str, but: str, budget_s: float = SEARCH_BUDGET_S) -> Holder | None:
    """Return the sink other than ``but`` that holds batches of ``query_id``; None when no log that can be read within
    the budget does. Never raises: it only makes an error clearer.
    """
    try:
        admin.renew(budget_s)
        sinks = {t: sink_of_log(t) for t in admin.topics()}
        logs = [t for t, sink in sinks.items() if sink and sink != but and t == commit_log_topic(sink)]
        return _search(admin, logs, query_id, Deadline(budget_s)) if logs else None
    except (ExactlyOnceError, KafkaException):
        return None


def _search(admin: Admin, logs: list[str], query_id: str, deadline: Deadline) -> Holder | None:
    consumer = consumer_of(admin.connection, "search", {"auto.offset.reset": "earliest"})
    waiting, holder = set(logs), None
    try:
        # from offset 0: a named beginning is looked up, and the client waits for 500 ms until it knows the leader
        consumer.assign([TopicPartition(log, PARTITION, 0) for log in logs])
        while waiting and not deadline.over:
            message = consumer.poll(0.1)
            if message is None:
                continue
            if message.error() is not None:  # its end, or a log that this principal may not read
                waiting.discard(message.topic() or "")
            elif (batch_id := _decided(message, query_id)) is not None:
                holder = Holder(sink_of_log(message.topic() or ""), max(batch_id, holder.batch_id if holder else -1))
    finally:
        consumer.close()
    return holder


def _decided(message: Message, query_id: str) -> int | None:
    """Return the batch of the query that this record decides."""
    value = message.value()
    if value is None or query_id.encode() not in value:
        return None
    try:
        record = decode(value, dict(message.headers() or ()))
    except CommitLogDamaged:  # that log's own drivers report it
        return None
    return record.batch_id if isinstance(record, Decision) and record.query_id == query_id else None
