"""The records of a day, and the backfill's share of them. Pure arithmetic on offsets and days.

**Who owns a record?** The live stream owns every offset of the input from where it first started, the backfill every
offset before that. The stream's checkpoint fixes its start once, so the two shares are disjoint and complete, they do
not change while either works, and no record has two owners.

**Which day is a record in?** The UTC day of its own time stamp. So days are disjoint and complete whatever the order of
the time stamps: a record that is late, or has a wrong time stamp, moves no other record into another day. The brokers'
look-up of offsets by time cannot say where a day begins: it counts transaction markers, which carry the time of
writing, and in a topic of old events finds the first marker for every later day. So the backfill reads the input to
find the offsets of the days (:mod:`dagster_exactly_once.backfill.spark`); the look-up only says where to begin reading.

The backfill's share lies before the stream's start, so it is completely written and no transaction in it is open: a day
has the same records in every try.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from dagster_exactly_once.streaming.source import OffsetSpan, Spans
from dagster_exactly_once.tables import next_day, ranges
from exactly_once.errors import CheckpointUnusable, ExactlyOnceError
from exactly_once.kafka.admin import Watermarks

DAY_MS = 24 * 3600 * 1000


class NoBoundary(ExactlyOnceError):
    """The live stream has not started yet, so the beginning of its share of the input is unknown."""

    code = "EO-BACKFILL-EARLY"


class DayRecords(NamedTuple):
    """The records of a day in a partition: their number, and the offsets of the first and of the last one."""

    day: str
    partition: int
    first: int
    last: int
    records: int


@dataclass(frozen=True)
class Day:
    """The records that the backfill writes for a day: those with a time stamp of that day, in these spans."""

    key: str
    spans: Spans
    records: int


def write_id(asset: str, day: str) -> str:
    """Return the name of the write of a day in the commit log."""
    return f"{asset}/{day}"


def start_ms(day: str) -> int:
    """Return the beginning of the day, in ms since the epoch."""
    return round(datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp() * 1000)


def in_ranges(days: Sequence[str]) -> str:
    """Return days as Dagster's launch dialog takes them: ``[2026-01-01...2026-01-03], 2026-01-07``."""
    return ranges(days, lambda one, other: next_day(one) == other, "[{}...{}]")


def before_stream(began: Mapping[int, int], marks: Mapping[int, Watermarks]) -> dict[int, OffsetSpan]:
    """Return the backfill's share of the input: by partition, from the first existing offset to where the stream began.

    The stream owns all of a partition that was added after its start, since it reads that partition from its beginning.

    ``began`` has the stream's first offset by partition; ``marks`` are the input now, whose first offset may be before
    the stream's start, or after it when retention deleted records.

    Raises
    ------
    NoBoundary
        ``began`` is empty: the stream has never started. It might still start at the earliest offset, and write
        everything again.
    CheckpointUnusable
        The stream began after the end of the input: the topic was recreated.
    """
    if not began:
        raise NoBoundary(
            "the stream has not started yet: the stream owns the input from where it first starts, and a backfill "
            "owns the input before that",
            "Start the stream once (start_from says where it begins: latest, or a date), then launch the backfill "
            "again",
        )
    beyond = [p for p, w in marks.items() if began.get(p, 0) > w.high]
    if beyond:
        raise CheckpointUnusable(
            f"the checkpoint says that the stream began at offset {began[beyond[0]]} of partition {beyond[0]}, which "
            f"ends at {marks[beyond[0]].high}: the topic has been recreated since",
            "Decide whether the new topic needs a new stream (a new sink id) with a backfill of its own",
        )
    return {p: OffsetSpan(w.low, max(w.low, began.get(p, 0))) for p, w in marks.items()}


def days_found(keys: Iterable[str], found: Iterable[DayRecords], share: Spans) -> list[Day]:
    """Return the work for each day of ``keys``, in their order; a day without records has no offsets."""
    by_day: dict[str, list[DayRecords]] = {}
    for one in found:
        by_day.setdefault(one.day, []).append(one)
    days = []
    for key in keys:
        parts = {f.partition: f for f in by_day.get(key, [])}
        # an empty span lies at the end of the share: retention may take the beginning away at any time
        spans = {
            p: OffsetSpan(parts[p].first, parts[p].last + 1) if p in parts else OffsetSpan(span.end, span.end)
            for p, span in share.items()
        }
        days.append(Day(key, spans, sum(f.records for f in parts.values())))
    return days


def oldest_missing(all_days: Sequence[str], materialized: Iterable[str], most: int) -> list[str]:
    """Return the oldest days without a materialization that follow each other without a gap, at most ``most``."""
    have = set(materialized)
    missing = [day for day in all_days if day not in have][:most]
    return [day for n, day in enumerate(missing) if all_days.index(day) == all_days.index(missing[0]) + n]
