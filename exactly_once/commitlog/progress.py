"""The topic that tells readers which batches of a sink are whole: one compacted record for each sink, under its id.

The record goes into the transaction of the completed mark. So whoever completes a batch writes it, it is there as soon
as the mark is, and a driver that was replaced cannot put an older one after a newer one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from kafka.structs import TopicPartition

from exactly_once.commitlog import log_topic
from exactly_once.deadline import Deadline
from exactly_once.errors import InvalidOption, UnknownTopic
from exactly_once.kafka import new_topic
from exactly_once.kafka.admin import LATEST, Admin
from exactly_once.kafka.new_topic import NewTopic
from exactly_once.protocol.records import Decision


class ProgressRecord(NamedTuple):
    """The record of a whole batch, and the topic that it goes to."""

    topic: str
    value: bytes


def ensure(admin: Admin, topic: str, deadline: Deadline) -> None:
    """Create the topic when it is not there, and :func:`check` it."""
    with suppress(UnknownTopic):
        return check(admin, topic)
    log_topic.create(admin, _wanted(admin, topic), deadline)
    check(admin, topic)


def check_start(admin: Admin, topic: str) -> None:
    """Raise what :func:`ensure` would, and warn as it would; nothing is created."""
    try:
        check(admin, topic)
    except UnknownTopic:
        new_topic.warn_left_out(topic, new_topic.create(admin, _wanted(admin, topic), validate_only=True))


def _wanted(admin: Admin, topic: str) -> NewTopic:
    # readers take the newest record of a sink: no clock decides anything
    return log_topic.compacted(admin, topic, f"the topic {topic} of sink.progress.topic", ["cleanup.policy"])


def check(admin: Admin, topic: str) -> None:
    """Refuse a topic that would not keep the record of a sink, or that this principal may not write.

    Raises UnknownTopic, NotAuthorized or InvalidOption.
    """
    check_writable(admin, topic)
    check_config(topic, admin.topic_config(topic))


def check_config(topic: str, config: Mapping[str, str]) -> None:
    """Raise InvalidOption for a topic that would not keep the record of a sink."""
    policy = config.get("cleanup.policy", "compact")
    if policy != "compact":
        raise InvalidOption(
            f"the topic {topic} of sink.progress.topic has cleanup.policy={policy}: the brokers would delete the "
            "record of a sink that has not written for a while",
            f"Name a topic of its own, which the sink creates, or set cleanup.policy=compact on {topic}",
        )


def check_writable(admin: Admin, topic: str) -> None:
    """Raise UnknownTopic or NotAuthorized unless the topic is there and this principal may write to it."""
    admin.check_rights(topic, ("WRITE",))
    try:
        admin.topic_partitions([topic])
    except UnknownTopic as e:
        raise UnknownTopic(
            f"the topic {topic} of sink.progress.topic does not exist, or this principal may not describe it",
            "Create it with one partition and cleanup.policy=compact, and grant WRITE on it; or start the stream, "
            "which creates it. To do without it, remove sink.progress.topic",
        ) from e


def progress_of(admin: Admin, topic: str, decision: Decision) -> ProgressRecord:
    """Return the record that ``decision`` is whole, when all its parts are committed and no later batch has begun: for
    each partition of the sink's topics, the high watermark.

    All that the sink has written there before it is of whole batches, and all that it writes later comes after it,
    since the next batch begins only when the completed mark is written. Topics that are gone, or that this principal
    may no longer describe, are left out.

    Raises UnknownTopic, NotAuthorized or BrokerUnreachable.
    """
    check_writable(admin, topic)
    sizes = admin.sizes(sorted({*decision.topics, *decision.topic_ids}))
    places = [TopicPartition(name, p) for name, size in sizes.items() for p in range(size)]
    ends = admin.list_offsets(places, LATEST, "read_uncommitted") if places else {}
    topics = {name: {str(p): ends[TopicPartition(name, p)].offset for p in range(size)} for name, size in sizes.items()}
    told = {"batch": decision.batch_id, "topics": topics}
    return ProgressRecord(topic, json.dumps(told, separators=(",", ":")).encode())
