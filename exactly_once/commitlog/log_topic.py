"""The topic of a commit log: created with the settings that the protocol needs, and checked for them."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from exactly_once.commitlog.log_reader import PARTITION
from exactly_once.deadline import Deadline
from exactly_once.errors import BrokerRefused, CommitLogDamaged, InvalidOption, UnknownTopic
from exactly_once.kafka import new_topic
from exactly_once.kafka.admin import START_S, Admin
from exactly_once.kafka.new_topic import MIN_IN_SYNC, NewTopic
from exactly_once.protocol.names import sink_of_log

log = logging.getLogger(__name__)

#: Bytes of a part in a decision as the brokers get it, compressed (measured: 36 to 38, whatever the length of names;
#: 62 to 65 with lz4, as older drivers write it).
BYTES_OF_A_PART = 40

#: Largest batch of records that a new log takes, in bytes: room for 200,000 parts.
_LARGEST_BATCH = 8 * 1024 * 1024

#: Largest batch of records that brokers take by default, in bytes: room for 25,000 parts. Less is worth a word at the
#: start.
SMALL_BATCH = 1_000_000

#: Settings without which the protocol does not hold, and what comes of it.
NEEDED = {
    "cleanup.policy": "the brokers would delete decisions by age",
    "message.timestamp.type": "the driver's own clock would decide whether a transaction is still alive",
}

#: Settings that a new log is asked for with, the most important one first; where the brokers refuse one that is not
#: :data:`NEEDED`, the log has theirs.
TOPIC_CONFIG = {
    "cleanup.policy": "compact",
    "message.timestamp.type": "LogAppendTime",  # the broker's clock is the one that transactions expire by
    "max.message.bytes": str(_LARGEST_BATCH),
    # compaction never touches the active segment, so this bounds what a claim has to read; a record must fit into one
    "segment.bytes": str(_LARGEST_BATCH),
    "min.cleanable.dirty.ratio": "0.1",
}

#: Rights on the log of whoever drives the sink.
RIGHTS = ("READ", "WRITE")

_LIMITS = ("max.message.bytes", "segment.bytes")


class Limit(NamedTuple):
    """The size of one record, after compression, that the topic takes, and the setting that makes it."""

    size: int
    setting: str


def ensure(admin: Admin, topic: str, deadline: Deadline, judged: bool = True) -> Limit | None:
    """Create the topic when it is not there, and see, if it is to be ``judged``, that it keeps decisions, dated by the
    brokers, in one partition.

    Returns
    -------
    Limit or None
        None when the principal may not read the topic's settings.

    Raises CommitLogDamaged, NotAuthorized, InvalidOption, BrokerRefused or BrokerUnreachable.
    """
    try:
        partitions = admin.topic_partitions([topic], RIGHTS)[topic]
    except UnknownTopic:
        with _similar_refused(admin, topic):
            partitions = create(admin, _log(admin, topic), deadline, RIGHTS)
    config = admin.topic_config(topic)
    if judged:
        check_config(topic, config)
    if judged and partitions > 1:
        _check_other_partitions(admin, topic, partitions)
    return limit_of(config)


def check_config(topic: str, config: Mapping[str, str]) -> None:
    """Raise CommitLogDamaged if the protocol does not hold with these settings, those that this principal may read."""
    for name, otherwise in NEEDED.items():
        if config.get(name, TOPIC_CONFIG[name]) != TOPIC_CONFIG[name]:
            raise CommitLogDamaged(
                f"the commit log {topic} has {name}={config[name]}: {otherwise}",
                f"Set {name}={TOPIC_CONFIG[name]} on {topic}",
            )


def limit_of(config: Mapping[str, str]) -> Limit | None:
    """Return what the topic takes; None when the principal may not read its settings."""
    return min((Limit(int(config[name]), f"{name}={config[name]}") for name in _LIMITS if name in config), default=None)


def create(admin: Admin, wanted: NewTopic, deadline: Deadline, operations: Collection[str] = ()) -> int:
    """Create a topic, warn of what the brokers refuse of it, and return the number of its partitions as soon as they
    know it; raise NotAuthorized unless this principal may do ``operations`` on it.
    """
    new_topic.warn_left_out(wanted.name, new_topic.create(admin, wanted))
    return deadline.repeat(lambda: admin.topic_partitions([wanted.name], operations)[wanted.name], UnknownTopic)


def left_out(admin: Admin, topic: str) -> list[str]:
    """Return what the brokers would refuse of a log that does not exist, and :func:`ensure` would leave out; nothing is
    created.

    Raises NotAuthorized, InvalidOption or BrokerRefused, as :func:`ensure` would.
    """
    with _similar_refused(admin, topic):
        return new_topic.create(admin, _log(admin, topic, START_S), validate_only=True)


def compacted(admin: Admin, topic: str, called: str, needed: Collection[str], old_s: float = 0.0) -> NewTopic:
    """Return a compacted topic of one partition that outlives the loss of a broker where there are three, as they were
    ``old_s`` seconds ago or less, and is of no use without the settings ``needed``.
    """
    replication = min(3, admin.broker_count(old_s))
    wished = {MIN_IN_SYNC: str(max(1, replication - 1)), **TOPIC_CONFIG}
    return NewTopic(topic, called, 1, replication, {name: wished.pop(name) for name in needed}, wished)


def _log(admin: Admin, topic: str, old_s: float = 0.0) -> NewTopic:
    return compacted(admin, topic, f"the commit log {topic}", NEEDED, old_s)


@contextmanager
def _similar_refused(admin: Admin, topic: str) -> Iterator[None]:
    try:
        yield
    except BrokerRefused as e:
        like = [t for t in admin.topics() if t != topic and t.replace(".", "_") == topic.replace(".", "_")]
        if not like:
            raise
        raise InvalidOption(
            f"sink.id {sink_of_log(topic)!r} is too similar to that of sink {sink_of_log(like[0])!r}: Kafka does not "
            "distinguish '.' from '_' in the names of metrics, so it refuses two topics whose names differ only in "
            f"these characters ({like[0]} exists)",
            f"Choose a sink.id that differs from {sink_of_log(like[0])!r} in another character than '.' and '_'",
        ) from e


def warn_if_small(topic: str, limit: Limit | None) -> None:
    """Warn when a batch with many parts would not fit."""
    if limit is not None and limit.size < SMALL_BATCH:
        log.warning(
            "EO-WARN-LOG the commit log %s has %s: the sink will refuse a batch with more than about %d parts "
            "(EO-LOG-SIZE)",
            topic,
            limit.setting,
            limit.size // BYTES_OF_A_PART,
        )


def _check_other_partitions(admin: Admin, topic: str, partitions: int) -> None:
    """Accept a topic with more partitions if the others are empty."""
    foreign = [p for p, w in admin.watermarks(topic).items() if p != PARTITION and w.high]
    if foreign:
        raise CommitLogDamaged(
            f"the commit log {topic} has {partitions} partitions, and records in partition {foreign[0]}, which the "
            "sink neither reads nor writes",
            f"Find out what wrote these records. If partition {PARTITION} is empty, delete the topic and start "
            "again: the sink creates it. Otherwise start with a new sink.id; that start fails with EO-REWOUND, "
            "which names the value of sink.adopt to set for one start",
        )
