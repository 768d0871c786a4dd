"""What an inspection asks a cluster beyond its transactions: which topics there are, and which groups read where."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from kafka.errors import KafkaError
from kafka.structs import TopicPartition

from exactly_once.kafka.control import Control

#: Groups asked for together: one request to each coordinator among them, and a short step between looks at the budget.
_GROUPS_AT_ONCE = 100


class Readers(NamedTuple):
    """Consumer groups by the partition on which they have a committed offset.

    ``complete`` is False when the budget ended first, or when some group could not be asked.
    """

    groups: Mapping[tuple[str, int], tuple[str, ...]]
    complete: bool


class Survey(Control):
    """A :class:`~exactly_once.kafka.control.Control` that also sees topics and consumer groups."""

    def topics(self) -> list[str]:
        """The names of all topics that the principal may describe."""
        metadata = self._retry(lambda: self._admin._get_cluster_metadata(None))
        return sorted(t["name"] for t in metadata["topics"] if not t["error_code"])

    def readers(self, partitions: Iterable[tuple[str, int]], budget_s: float) -> Readers:
        """The consumer groups that have committed an offset on one of ``partitions``, as far as ``budget_s`` reaches.

        A group that reads without committing to Kafka (Spark's own source is one) cannot be seen.
        """
        wanted = [TopicPartition(topic, partition) for topic, partition in partitions]
        found: dict[tuple[str, int], list[str]] = {(tp.topic, tp.partition): [] for tp in wanted}
        if not wanted:
            return Readers({}, True)
        self.renew(budget_s)
        groups = self._retry(self._list_groups)
        waiting = [groups[first : first + _GROUPS_AT_ONCE] for first in range(0, len(groups), _GROUPS_AT_ONCE)]
        complete = True
        while waiting and not self._deadline.over:
            some = waiting.pop()
            try:
                offsets = self._offsets(some, wanted)
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

    async def _list_groups(self) -> list[str]:
        groups = await self._admin._async_list_groups(broker_ids=await self._brokers())
        return sorted({g["group_id"] for g in groups if g.get("group_type") != "share"})  # share groups have no offsets

    def _offsets(self, groups: list[str], wanted: list[TopicPartition]) -> Any:
        return self._admin._manager.run(self._admin._async_list_group_offsets, dict.fromkeys(groups, wanted))
