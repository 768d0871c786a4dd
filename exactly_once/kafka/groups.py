"""Consumer groups and how far they are: who has committed offsets where, and the ends that a reader may get to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from kafka.errors import KafkaError
from kafka.structs import TopicPartition

from exactly_once.kafka.admin import Admin, Partition, Watermarks

#: Groups asked for together: one request to each coordinator among them, and a short step between looks at the budget.
_GROUPS_AT_ONCE = 100

#: Beside an offset: the batch that committed it. Anybody may write there who may commit for the group.
_WORD = re.compile(r"(?P<query>[^/]{1,200})/(?P<batch>[0-9]{1,19})")


class Readers(NamedTuple):
    """Consumer groups by the partition on which they have a committed offset.

    ``complete`` is False when the budget ended first, or when some group could not be asked.
    """

    groups: Mapping[Partition, tuple[str, ...]]
    complete: bool


class Published(NamedTuple):
    """The contents of a sink's group.

    Its offsets, by topic and partition, and of each query the last batch that committed some
    (:mod:`exactly_once.commitlog.input_offsets`).
    """

    offsets: Mapping[str, Mapping[int, int]]
    batches: Mapping[str, int]


def find_readers(admin: Admin, partitions: Iterable[Partition], budget_s: float) -> Readers:
    """Return the consumer groups that have committed offsets on one of ``partitions``, as far as ``budget_s`` goes.

    A group that reads without committing to Kafka (Spark's own source is one) cannot be seen.
    """
    wanted = [TopicPartition(topic, partition) for topic, partition in partitions]
    found: dict[Partition, list[str]] = {(tp.topic, tp.partition): [] for tp in wanted}
    if not wanted:
        return Readers({}, True)
    groups = _groups(admin.renew(budget_s))
    waiting = [groups[first : first + _GROUPS_AT_ONCE] for first in range(0, len(groups), _GROUPS_AT_ONCE)]
    complete = True
    while waiting and not admin.deadline.over:
        some = waiting.pop()
        try:
            offsets = admin.client.list_group_offsets(dict.fromkeys(some, wanted))
        except KafkaError:
            if len(some) > 1:  # one that moves, or that may not be read: the others are worth knowing
                waiting += [[group] for group in some]
            else:
                complete = False
            continue
        for group, committed in offsets.items():
            for tp, position in committed.items():
                if position.offset >= 0:
                    found[tp.topic, tp.partition].append(group)
    groups_by_partition = {where: tuple(sorted(who)) for where, who in found.items()}
    return Readers(groups_by_partition, complete and not waiting)


def group_offsets(admin: Admin, group: str) -> dict[str, dict[int, int]]:
    """Return the committed offsets of ``group``, by topic and partition; empty for a group that does not exist."""
    return _offsets(_positions(admin, group))


def published_batches(admin: Admin, group: str) -> dict[str, int]:
    """Return the last batch of each query whose offsets a decision has committed to the sink's ``group``.

    The group's metadata names the batch (:mod:`exactly_once.commitlog.input_offsets`); empty when it names none.
    """
    return _batches(_positions(admin, group))


def published_offsets(admin: Admin, group: str) -> Published:
    """Return offsets and batches of one answer: a decision commits all of its offsets at once."""
    positions = _positions(admin, group)
    return Published(_offsets(positions), _batches(positions))


def partition_ends(admin: Admin, topics: Iterable[str]) -> dict[str, dict[int, Watermarks]]:
    """Return the ends of every partition of ``topics``, all asked at once; a topic that is gone is left out."""
    wanted = sorted(set(topics))
    found: dict[str, dict[int, Watermarks]] = {topic: {} for topic in (admin.sizes(wanted) if wanted else ())}
    for (topic, partition), marks in admin.marks(found).items() if found else ():
        found[topic][partition] = marks
    return found


def _offsets(positions: Mapping[TopicPartition, Any]) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for tp, position in positions.items():
        if position.offset >= 0:
            found.setdefault(tp.topic, {})[tp.partition] = position.offset
    return found


def _batches(positions: Mapping[TopicPartition, Any]) -> dict[str, int]:
    found: dict[str, int] = {}
    for position in positions.values():
        if word := _WORD.fullmatch((position.metadata or "").rstrip("\0")):  # librdkafka sends a C string's end as well
            found[word["query"]] = max(int(word["batch"]), found.get(word["query"], -1))
    return found


def _positions(admin: Admin, group: str) -> Mapping[TopicPartition, Any]:
    """Return what ``group`` has committed, by partition; empty for a group that does not exist."""
    offsets = admin.call(lambda: admin.client.list_group_offsets({group: None}))
    positions: Mapping[TopicPartition, Any] = offsets.get(group, {})
    return positions


def _groups(admin: Admin) -> list[str]:
    """Return the ids of all groups; share groups have no offsets."""
    groups = admin.call(lambda: admin.client.list_groups(broker_ids=admin.run(admin.brokers)))
    return sorted({g["group_id"] for g in groups if g.get("group_type") != "share"})
