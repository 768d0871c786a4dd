"""The parts of the outputs to read: where readers come to an end, and where to begin for the newest part of the input;
and which records these parts may lack, because retention or compaction has removed them.

Output offsets say nothing about input offsets, so this uses the order in which a stream writes: all of batch N is
committed before anything of batch N+1 is written. A record of a batch before the window's oldest one therefore shows
that everything of the window lies after it in that output partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from exactly_once.deadline import Deadline
from exactly_once.error_headers import replaced_in
from exactly_once.kafka.admin import Admin, Partition, Watermarks
from exactly_once.tools.verify.by_origin.content import Arrivals, Offsets
from exactly_once.tools.verify.by_origin.origin import OriginPlace, Places, SaysOrigin, Unreadable, inputs_of, named
from exactly_once.tools.verify.expected import BatchRange, Expected, Positions
from exactly_once.txn.scan import batches

#: The first step back from the end of an output partition; each further step is four times as long.
FIRST_STEP = 5_000

#: Most outputs that are read, in multiples of the window: they may hold markers, and records of a backfill.
OUTPUTS_PER_INPUT = 4

#: Bytes of a step's fetch: it ends at the first record of the stream, mostly the very first one.
_FETCH_BYTES = 64 * 1024


@dataclass(frozen=True)
class Tails:
    """The parts of the output partitions to read: ``marks`` has the ends of each, with ``low`` where to begin. Of those
    that are ``truncated``, retention has removed the first records; in those that are ``short``, more of the window may
    lie before ``low``.
    """

    marks: Mapping[Partition, Watermarks]
    truncated: frozenset[Partition]
    short: frozenset[Partition] = frozenset()


def tails(
    admin: Admin,
    marks: Mapping[Partition, Watermarks],
    expected: Expected,
    end: Positions,
    origin: SaysOrigin,
    budget_s: float,
) -> Tails:
    """Find where to begin reading each output partition of a sink, so that everything of its window lies after that;
    without a window, all is read. ``end`` is where the input ends that is compared.
    """
    window, began, places = expected.window, expected.first, Places(inputs_of(expected.end))
    if window is None:
        return Tails(marks, frozenset(where for where, w in marks.items() if w.low > 0))
    last = window.last + sum(expected.end[p] - stop for p, stop in end.items())  # what only this sink has read so far
    starts = {where: w.last_stable for where, w in marks.items()}
    left, step = OUTPUTS_PER_INPUT * max(last, FIRST_STEP), FIRST_STEP
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
            if place is not None and place.offset >= began.get(place.partition, 0):  # a backfill writes at any time
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


class Removed:
    """By input partition, the offset before which a record without an output proves nothing.

    Retention has removed the first records of the output partitions in ``truncated``; ``ends`` is where the input ends
    that is compared. No record that is missing proves anything ``everywhere`` (a topic is compacted), nor in what was
    read where that is ``short``, for more of it may lie before that.
    """

    def __init__(
        self,
        truncated: Iterable[Partition],
        batches: Sequence[BatchRange],
        ends: Positions,
        everywhere: bool,
        short: bool = False,
    ):
        self._truncated, self._batches, self._ends, self.everywhere = frozenset(truncated), batches, ends, everywhere
        self._short = short
        self._before: dict[Partition, int] = {}
        self._entered: dict[Partition, set[Partition]] = {}  # input partitions by output partition

    def enter(self, some: Arrivals, offsets: Offsets) -> None:
        """Note what the first records of an output say, whose older ones are gone: a stream writes batch after batch,
        so those were of the batch of the first one, or of batches before it.
        """
        if some.where not in self._truncated or not len(offsets):
            return
        seen = self._entered.setdefault(some.where, set())
        if not seen:
            batch = batch_of(self._batches, some.source, int(offsets[0]))
            if batch is not None:
                seen |= set(self._ends)
                for source in self._ends:
                    self._raise(source, batch.offsets.get(source, (0, 0))[1])
        if some.source not in seen:  # no decision tells: what came in one go will be a batch or more
            seen.add(some.source)
            self._raise(some.source, int(offsets.max()) + 1)

    def before(self, source: Partition) -> int:
        """Return the offset of an input partition, by what was entered."""
        entered = all(source in self._entered.get(where, ()) for where in self._truncated)
        sure = entered and not (self.everywhere or self._short)
        return self._before.get(source, 0) if sure else self._ends[source]

    def _raise(self, source: Partition, offset: int) -> None:
        self._before[source] = max(self._before.get(source, 0), offset)


def batch_of(batches: Iterable[BatchRange], source: Partition, offset: int) -> BatchRange | None:
    """Return the batch that read this record; None when that is not known."""
    for batch in batches:
        start, stop = batch.offsets.get(source, (0, 0))
        if start <= offset < stop:
            return batch
    return None
