"""The ends of the outputs for readers, and whether a record that is not there proves anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from exactly_once.deadline import Deadline
from exactly_once.kafka.admin import Admin, Partition, Watermarks


def settled(admin: Admin, topics: Sequence[str], settle_s: float, budget_s: float) -> dict[Partition, Watermarks]:
    """Wait until readers come to where the outputs end now, and return those ends."""
    first = _marks(admin.renew(budget_s), topics)
    now = first
    for _ in Deadline(settle_s).tries():
        if all(now[where].last_stable >= w.high for where, w in first.items()):
            break
        now = _marks(admin.renew(budget_s), topics)
    return {
        where: Watermarks(now[where].low, min(now[where].last_stable, w.high), w.high) for where, w in first.items()
    }


def of_topics(marks: Mapping[Partition, Watermarks], topics: Sequence[str]) -> dict[Partition, Watermarks]:
    """Return the ends of these topics alone."""
    return {where: w for where, w in marks.items() if where[0] in topics}


def compacted(admin: Admin, topics: Sequence[str]) -> bool:
    """Return whether a missing record proves nothing in one of these topics."""
    return any("compact" in admin.topic_config(topic).get("cleanup.policy", "") for topic in topics)


def _marks(admin: Admin, topics: Sequence[str]) -> dict[Partition, Watermarks]:
    return {(topic, p): w for topic in topics for p, w in admin.watermarks(topic).items()}
