"""Reading a commit log: all of its partition, up to where a reader may, or up to its very end.

A read_committed reader stops at the last stable offset, so another application's open transaction hides every claim and
decision behind it. Behind an init of the log's own producer nothing of ours is open: whoever goes on to write reads up
to the high watermark, or not at all.
"""

from __future__ import annotations

from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from exactly_once.deadline import Deadline
from exactly_once.errors import (
    BrokerUnreachable,
    CommitLogBlocked,
    CommitLogDamaged,
)
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection, librdkafka_log
from exactly_once.kafka.errors import of_commit_log
from exactly_once.kafka.leaders import OLDER_THAN_S, open_on
from exactly_once.kafka.transactions import ids_of
from exactly_once.protocol.encoding import decode
from exactly_once.protocol.records import Entry, is_own_key

#: For asking who blocks the log, when the budget for waiting is spent.
_WHO_S = 5.0

#: A commit log is this partition of its topic; a topic with more has nothing in the others.
PARTITION = 0


class Reading(NamedTuple):
    """What was read, and the offset at which the reader stands."""

    entries: list[Entry]
    position: int


def read(
    connection: Connection, topic: str, deadline: Deadline, start: int | None = None, until: int | None = None
) -> Reading:
    """The committed records of the log, in order.

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
    consumer = Consumer(
        {
            **connection.librdkafka(),
            "group.id": f"exactly-once-{topic}",  # required by the client; nothing joins or commits it
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 20,  # the end of the log is asked for, not waited for
            "fetch.message.max.bytes": 16 * 1024 * 1024,
            "logger": librdkafka_log,
        }
    )
    stray: dict[bytes | None, CommitLogDamaged] = {}
    entries: list[Entry] = []
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
                _take(message, entries, stray)
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
    if stray:
        raise next(iter(stray.values()))
    if position < 0:
        raise timed_out(topic, deadline)
    if until is not None and position < until:
        with Admin(connection, _WHO_S) as admin:
            raise blocked(admin, topic, position)
    return Reading(entries, position)


def _take(message: Message, entries: list[Entry], stray: dict[bytes | None, CommitLogDamaged]) -> None:
    """As compaction does, the last record of a key counts: a tombstone settles the stray record before it."""
    key, value = message.key(), message.value()
    stray.pop(key, None)
    if value is None:
        return
    _, timestamp_ms = message.timestamp()
    try:
        entries.append(Entry(decode(value, dict(message.headers() or ())), message.offset() or 0, timestamp_ms))
    except CommitLogDamaged as e:
        stray[key] = _with_its_key(message, e)


def _with_its_key(message: Message, e: CommitLogDamaged) -> CommitLogDamaged:
    if "newer version" in e.what:
        return e
    raw = message.key()
    key = raw.decode(errors="replace") if raw is not None else None
    what = f"{e.what}, at offset {message.offset()} of {message.topic()} under the key {key!r}"
    if key is not None and not is_own_key(key):
        then = f"Then write a tombstone (a null value) for the key {key!r}"
    else:
        then = (
            "The sink's own record of this key may be lost: find out from the output what the last batch wrote, then "
            "start with a new sink.id, and with the sink.adopt that EO-REWOUND names"
        )
    return CommitLogDamaged(what, f"Stop the program that wrote this record: only the sink may write here. {then}")


def blocked(admin: Admin, topic: str, position: int) -> CommitLogBlocked:
    """The error of a log that cannot be read beyond ``position``, with the names of those who have to end."""
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
        "Only the sink may write to this topic: stop the other writer to end its transaction, or wait for that "
        "transaction's timeout. If the transaction stays open, end it with kafka-transactions.sh abort --topic "
        f"{topic} --partition {PARTITION} --start-offset {begin}, or, if it has been open for more than "
        f"{OLDER_THAN_S / 60:g} minutes and no coordinator knows it, with exactly-once transactions abort --hanging "
        f"{topic}-{PARTITION}@{begin} (in Dagster: the job end_hanging); then start again",
    )


def timed_out(topic: str, deadline: Deadline) -> BrokerUnreachable:
    """The error of a log whose brokers are silent."""
    return BrokerUnreachable(
        f"the commit log {topic} did not answer within {deadline.seconds:g} s",
        "Check the brokers, and start again when they answer",
    )
