"""Consumer groups and how far they are: who has committed offsets where, and the ends that a reader may get to."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from kafka.errors import KafkaError
from kafka.protocol.consumer import OffsetFetchRequest
from kafka.structs import TopicPartition

from exactly_once.kafka.admin import Admin, Partition, Watermarks
from exactly_once.kafka.errors import check

#: Groups asked for together: one request to each coordinator among them, and a short step between looks at the budget.
_GROUPS_AT_ONCE = 100

#: A group's coordinator, and what it knows: topic, partition, offset and metadata of each offset.
Committed = tuple[int, list[tuple[str, int, int, str | None]]]

#: Text beside an offset: the batch that committed it. Anybody may write there who may commit for the group.
_METADATA = re.compile(r"(?P<query>[^/]{1,200})/(?P<batch>[0-9]{1,19})")


class Readers(NamedTuple):
    """Consumer groups by the partition on which they have a committed offset; not ``complete`` when the budget ended
    first, or when some group could not be asked.
    """

    groups: Mapping[Partition, tuple[str, ...]]
    complete: bool


class Published(NamedTuple):
    """The offsets of a sink's group, by topic and partition, and of each query the last batch that committed some
    (:mod:`exactly_once.commitlog.input_offsets`).
    """

    offsets: dict[str, dict[int, int]]
    batches: dict[str, int]


def find_readers(admin: Admin, partitions: Iterable[Partition], budget_s: float) -> Readers:
    """Return the consumer groups that have committed offsets on one of ``partitions``, as far as ``budget_s`` goes. A
    group that reads without committing to Kafka (Spark's own source is one) cannot be seen.
    """
    wanted = [TopicPartition(topic, partition) for topic, partition in partitions]
    readers: dict[Partition, list[str]] = {(tp.topic, tp.partition): [] for tp in wanted}
    if not wanted:
        return Readers({}, True)
    listed = admin.renew(budget_s).call(lambda: admin.client.list_groups(broker_ids=admin.run(admin.brokers)))
    groups = sorted({g["group_id"] for g in listed if g.get("group_type") != "share"})  # a share group has no offsets
    waiting = [groups[first : first + _GROUPS_AT_ONCE] for first in range(0, len(groups), _GROUPS_AT_ONCE)]
    complete = True
    while waiting and not admin.deadline.over:
        some = waiting.pop()
        try:
            offsets = admin.client.list_group_offsets(dict.fromkeys(some, wanted))
        except KafkaError:
            if len(some) > 1:  # one of them moves, or may not be read: the others are worth knowing
                waiting += [[group] for group in some]
            else:
                complete = False
            continue
        for group, committed in offsets.items():
            for tp, position in committed.items():
                if position.offset >= 0:
                    readers[tp.topic, tp.partition].append(group)
    groups_by_partition = {where: tuple(sorted(who)) for where, who in readers.items()}
    return Readers(groups_by_partition, complete and not waiting)


def begin_published(admin: Admin, group: str) -> Awaitable[Committed]:
    """Ask for :func:`published_offsets` while its caller asks something else."""
    return admin.begin(partial(_committed, admin, group, False))


def published_offsets(
    admin: Admin, group: str, settled: bool = False, begun: Awaitable[Committed] | None = None
) -> Published:
    """Return offsets and batches of one answer: a decision commits all of its offsets at once, and names the batch in
    the group's metadata. Both are empty for a group that does not exist.

    While a decision's transaction is open, and until its end marker is in the group's partition, brokers give the
    offsets before it. With ``settled`` they are asked until there is no such transaction (KIP-447); raises
    BrokerUnreachable when it outlasts the budget. ``begun`` is what :func:`begin_published` has returned.
    """
    found = Published({}, {})
    for topic, partition, offset, metadata in admin.ask(lambda: _committed(admin, group, settled), begun)[1]:
        if offset >= 0:
            found.offsets.setdefault(topic, {})[partition] = offset
        text = (metadata or "").rstrip("\0")  # drivers with librdkafka sent a C string's end as well
        if match := _METADATA.fullmatch(text):
            found.batches[match["query"]] = max(int(match["batch"]), found.batches.get(match["query"], -1))
    return found


def answering_coordinator(admin: Admin, group: str, partition: Partition) -> int:
    """Return the broker that coordinates ``group``, once it has said what is committed for ``partition``."""
    name, index = partition
    topic = OffsetFetchRequest.OffsetFetchRequestGroup.OffsetFetchRequestTopics(name=name, partition_indexes=[index])
    return admin.ask(lambda: _committed(admin, group, False, [topic]))[0]


async def _committed(admin: Admin, group: str, settled: bool, topics: list[Any] | None = None) -> Committed:
    """Return the group's coordinator, and what it knows: topic, partition, offset and metadata of each offset, of all
    unless ``topics`` names some.
    """
    wanted = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=topics)
    request = OffsetFetchRequest(groups=[wanted], require_stable=settled, min_version=8, max_version=8)
    node = await admin.group_coordinator(group)
    try:
        [answer] = (await admin.send(request, node)).groups
        check(answer.error_code, f"offsets of {group}")
        found = [(topic.name, p) for topic in answer.topics for p in topic.partitions]
        for topic, p in found:
            check(p.error_code, f"offset of {group} on {topic}-{p.partition_index}")
    except KafkaError:
        admin.forget_group_coordinator(group)
        raise
    return node, [(topic, p.partition_index, p.committed_offset, p.metadata) for topic, p in found]


def partition_ends(admin: Admin, topics: Iterable[str]) -> dict[str, dict[int, Watermarks]]:
    """Return the ends of every partition of ``topics``, all asked at once; a topic that is gone is left out."""
    wanted = sorted(set(topics))
    found: dict[str, dict[int, Watermarks]] = {topic: {} for topic in (admin.sizes(wanted) if wanted else ())}
    for (topic, partition), marks in admin.marks(found).items() if found else ():
        found[topic][partition] = marks
    return found
