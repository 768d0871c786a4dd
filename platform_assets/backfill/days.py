"""Which records a day holds, and which of them are the backfill's to write. Pure arithmetic on offsets and days.

**Whose record it is.** The live stream owns every offset of the input from where it first started, the backfill every
offset before that. Where the stream started is fixed once, in its checkpoint, so the two shares are disjoint and
complete, they do not change while either works, and no record has two owners.

**Which day it belongs to.** A record belongs to the UTC day of its own time stamp. So days are disjoint and together
complete whatever the order of the time stamps: a record that came late, or whose clock was wrong, moves no other record
into another day. The brokers' look-up of offsets by time cannot say where a day begins: it counts the markers of
transactions, which carry the time of writing, and in a topic of old events finds the first marker for every later day.
So the offsets of the days are found by reading (:mod:`platform_assets.backfill.spark`), and the look-up only says from
where on reading is worth while.

The share of the backfill lies before the stream's start, so it is all written by now and no transaction in it is open:
a day has the same records in every try.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple

from exactly_once.errors import CheckpointUnusable, ExactlyOnceError
from exactly_once.kafka.admin import Watermarks
from platform_assets.flights.spans import Span, Spans

#: The first and the last day with departures. In UTC, New York's last evening of 2013 is the first of January.
FIRST_DAY, LAST_DAY = date(2013, 1, 1), date(2014, 1, 1)

DAY_MS = 24 * 3600 * 1000


class NoBoundary(ExactlyOnceError):
    """The live stream has not started yet, so nobody knows where its share of the input begins."""

    code = "EO-BACKFILL-EARLY"


class Found(NamedTuple):
    """The records of a day in a partition: how many, and the offsets of the first and of the last one."""

    day: str
    partition: int
    first: int
    last: int
    records: int


@dataclass(frozen=True)
class Day:
    """What the backfill writes for a day: the records with a time stamp of that day, in these spans."""

    key: str
    spans: Spans
    records: int

    @property
    def write_id(self) -> str:
        """The name of the write in the commit log."""
        return write_id(self.key)


def write_id(day: str) -> str:
    """The name under which a day is written once."""
    return f"flight_delays_by_day/{day}"


def start_ms(day: str) -> int:
    """When the day begins, in ms since the epoch."""
    return round(datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp() * 1000)


def next_day(day: str) -> str:
    """The day after."""
    return (date.fromisoformat(day) + timedelta(days=1)).isoformat()


def before_stream(began: Mapping[int, int], marks: Mapping[int, Watermarks]) -> dict[int, Span]:
    """The backfill's share of the input: by partition, from the first offset there is to where the stream began.

    A partition that the stream did not know when it started was added later: the stream reads it from its beginning, so
    all of it is the stream's.

    Parameters
    ----------
    began : mapping
        The stream's first offset by partition; empty when the stream has never started.
    marks : mapping
        The input now. Its first offset may be behind the stream's start, or beyond it after a retention.

    Raises
    ------
    NoBoundary
        The stream has never started. It might still start at the earliest offset, and write everything again.
    CheckpointUnusable
        The stream began behind the end of the input: the topic was made again.
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
    return {p: Span(w.low, max(w.low, began.get(p, 0))) for p, w in marks.items()}


def days_found(keys: Iterable[str], found: Iterable[Found], share: Spans) -> list[Day]:
    """What to write for each day of ``keys``, in their order; a day without records has no offsets."""
    by_day: dict[str, list[Found]] = {}
    for one in found:
        by_day.setdefault(one.day, []).append(one)
    days = []
    for key in keys:
        parts = {f.partition: f for f in by_day.get(key, [])}
        # an empty span lies at the end of the share: retention may take the beginning away at any time
        spans = {
            p: Span(parts[p].first, parts[p].last + 1) if p in parts else Span(span.end, span.end)
            for p, span in share.items()
        }
        days.append(Day(key, spans, sum(f.records for f in parts.values())))
    return days


def oldest_missing(all_days: Sequence[str], materialized: Iterable[str], most: int) -> list[str]:
    """The oldest days without a materialization that follow one another without a gap, at most ``most``."""
    have = set(materialized)
    missing = [day for day in all_days if day not in have][:most]
    return [day for n, day in enumerate(missing) if all_days.index(day) == all_days.index(missing[0]) + n]
