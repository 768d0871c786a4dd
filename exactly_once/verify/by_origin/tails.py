"""The parts of the outputs to read: where readers come to an end, and where to begin for the newest part of the input.

Output offsets say nothing about input offsets, so this uses the order in which a stream writes: all of batch N is
committed before anything of batch N+1 is written. A record of a batch before the window's oldest one therefore shows
that everything of the window lies after it in that output partition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from exactly_once.deadline import Deadline
from exactly_once.error_headers import replaced_in
from exactly_once.kafka.admin import Admin, Partition, Watermarks
from exactly_once.txn.scan import batches
from exactly_once.verify.by_origin.origin import OriginPlace, Places, SaysOrigin, Unreadable, named
from exactly_once.verify.window import Positions, Window

#: The first step back from the end of an output partition; each further step is four times as long.
FIRST_STEP = 5_000

#: Of the outputs, at most this many times the window is read: they may hold markers, and records of a backfill.
OUTPUTS_PER_INPUT = 4

#: A step reads on from its first offset until it meets a record of the stream: mostly the very first one.
_FETCH_BYTES = 64 * 1024


@dataclass(frozen=True)
class Tails:
    """The parts of the output partitions to read.

    Attributes
    ----------
    marks : mapping
        The ends of each partition; ``low`` is where to begin.
    truncated : frozenset
        Partitions whose first records retention has removed, and that are read from there.
    short : frozenset
        Partitions in which more of the window may lie before ``low``.
    """

    marks: Mapping[Partition, Watermarks]
    truncated: frozenset[Partition]
    short: frozenset[Partition] = frozenset()

    @classmethod
    def whole(cls, marks: Mapping[Partition, Watermarks]) -> Tails:
        """Return all of the partitions."""
        return cls(marks, frozenset(where for where, w in marks.items() if w.low > 0))


def tails(
    admin: Admin,
    marks: Mapping[Partition, Watermarks],
    window: Window,
    began: Positions,
    origin: SaysOrigin,
    places: Places,
    budget_s: float,
) -> Tails:
    """Find where to begin reading each output partition, so that everything of the window lies after that.

    Parameters
    ----------
    began : mapping
        Where the stream began: a backfill wrote records from before at any time, so they show nothing.
    """
    starts = {where: w.last_stable for where, w in marks.items()}
    left, step = OUTPUTS_PER_INPUT * max(window.last, FIRST_STEP), FIRST_STEP
    todo = {where for where, w in marks.items() if w.low < w.last_stable}
    while todo and left > 0:
        step = min(step, max(FIRST_STEP, left // len(todo)))
        left -= step * len(todo)
        for where in sorted(todo):
            stop, starts[where] = starts[where], max(marks[where].low, starts[where] - step)
            place = _first_place(admin.renew(budget_s), where, starts[where], stop, began, origin, places)
            older = place is not None and place.offset < window.since.get(place.partition, 0)
            if older or starts[where] == marks[where].low:
                todo.discard(where)
        step *= 4
    return Tails(
        {where: w._replace(low=starts[where]) for where, w in marks.items()},
        frozenset(where for where, w in marks.items() if 0 < w.low == starts[where]),
        frozenset(todo),
    )


def _first_place(
    admin: Admin, where: Partition, start: int, stop: int, began: Positions, origin: SaysOrigin, places: Places
) -> OriginPlace | None:
    """Return the origin of the first record of the stream from ``start`` to ``stop``; None without one."""
    text = origin.of(where)
    for batch in batches(admin, where, start, stop, stop, _FETCH_BYTES):
        for record in batch.records() if batch.marker is None and not batch.hidden else ():
            if not start <= record.offset < stop or replaced_in(record.headers) is not None:  # sent again at any time
                continue
            try:
                place = named(record, text, places)
            except Unreadable:
                continue
            if place is not None and place.offset >= began.get(place.partition, 0):
                return place
    return None


def settled(admin: Admin, topics: Sequence[str], settle_s: float, budget_s: float) -> dict[Partition, Watermarks]:
    """Wait until readers come to where the outputs end now, and return those ends."""
    first = admin.renew(budget_s).marks(topics)
    now = first
    for _ in Deadline(settle_s).tries():
        if all(now[where].last_stable >= w.high for where, w in first.items()):
            break
        now = admin.renew(budget_s).marks(topics)
    return {
        where: Watermarks(now[where].low, min(now[where].last_stable, w.high), w.high) for where, w in first.items()
    }


def compacted(admin: Admin, topics: Sequence[str]) -> bool:
    """Return whether a missing record proves nothing in one of these topics."""
    return any("compact" in admin.topic_config(topic).get("cleanup.policy", "") for topic in topics)
