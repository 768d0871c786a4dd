"""Positions of readers: partition ends for a read_committed reader, and the committed offsets of a consumer group."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kafka.structs import TopicPartition

from exactly_once.kafka.control import Control
from exactly_once.kafka.raw import LATEST


class Ends(NamedTuple):
    """Ends of a partition: of what a read_committed reader sees, and of everything."""

    last_stable: int
    high: int


class LagSurvey(Control):
    """A :class:`~exactly_once.kafka.control.Control` that also sees how far readers are."""

    def ends(self, topics: Iterable[str]) -> dict[str, dict[int, Ends]]:
        """The ends of every partition of ``topics``, all asked at once; a topic that is gone is left out."""
        wanted = sorted(set(topics))
        if not wanted:
            return {}
        sizes = self._sizes(wanted)
        partitions = [TopicPartition(topic, p) for topic, size in sizes.items() for p in range(size)]
        found: dict[str, dict[int, Ends]] = {topic: {} for topic in sizes}
        if not partitions:
            return found
        # in this order: what is committed in between is not taken for a reader that waits for less than nothing
        stable, high = (
            self._list_offsets(partitions, LATEST, level) for level in ("read_committed", "read_uncommitted")
        )
        for tp in partitions:
            found[tp.topic][tp.partition] = Ends(stable[tp].offset, high[tp].offset)
        return found

    def group_offsets(self, group: str) -> dict[str, dict[int, int]]:
        """The committed offsets of ``group``, by topic and partition; empty for a group that is not there."""
        offsets = self._retry(lambda: self._admin._async_list_group_offsets({group: None}))
        found: dict[str, dict[int, int]] = {}
        for tp, position in offsets.get(group, {}).items():
            if position.offset >= 0:
                found.setdefault(tp.topic, {})[tp.partition] = position.offset
        return found
