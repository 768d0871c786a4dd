"""The newest part of a stream's input, and where to begin reading the outputs to compare them with it.

Output offsets say nothing about input offsets, so this uses the order in which a stream writes: all of batch N is
committed before anything of batch N+1 is written. A record of a batch before the window's oldest one therefore shows
that everything of the window lies behind it in that output partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from exactly_once.kafka.admin import Admin, Partition, Watermarks
from exactly_once.txn.scan import batches
from exactly_once.verify.by_origin.origin import Place, Places, SaysOrigin, Unreadable

Positions = Mapping[Partition, int]

#: The first step back from the end of an output partition; each further step is four times as long.
FIRST_STEP = 5_000

#: Of the outputs, at most this many times the window is read: they may hold markers, and records of a backfill.
OUTPUTS_PER_INPUT = 4

#: A step reads on from its first offset until it meets a record of the stream: mostly the very first one.
_FETCH_BYTES = 64 * 1024


@dataclass(frozen=True)
class Window:
    """The newest part of the input.

    Attributes
    ----------
    first : mapping
        By partition, the first offset to compare.
    since : mapping
        By partition, the beginning of the oldest batch with a record in the window.
    batches : tuple of int
        The oldest and the newest batch in it.
    offsets, last : int
        The number of offsets in it, markers and aborted records included; and the number that was asked for.
    cut : str
        Why the window is smaller; empty when it is not.
    """

    first: Positions
    since: Positions
    batches: tuple[int, int]
    offsets: int
    last: int
    cut: str = ""

    def __str__(self) -> str:
        oldest, newest = self.batches
        return f"{self.offsets:,} offsets, batches {oldest} to {newest}" + (f"; {self.cut}" if self.cut else "")


def newest_window(ends: Iterable[tuple[int, Positions]], began: Positions, last: int) -> Window:
    """Return the newest batches with at most ``last`` offsets together; of a longer newest batch, its newest part.

    Parameters
    ----------
    ends : iterable of (int, mapping)
        Batch number and end offsets by partition, newest first, without a gap; read no further than needed.
    began : mapping
        Where the stream began.

    Returns
    -------
    Window
        Empty without a batch.
    """
    found = iter(ends)
    newest = next(found, None)
    if newest is None:
        return Window(began, began, (0, 0), 0, last, "no batch is completed yet")
    number, end = newest
    oldest, cut, since = number, "", end
    while number >= 0:
        _, before = next(found, (-1, None)) if number else (-1, began)
        if before is None:
            cut = f"neither commit log nor checkpoint says where batch {number} began"
            break
        # a partition that was added later is read from its first offset
        start = {p: before.get(p, began.get(p, 0)) for p in end}
        fits = sum(end[p] - start[p] for p in end) <= last
        if not fits and number < newest[0]:
            break
        oldest, since = number, start
        if not fits:  # the newest batch is taken whatever its length
            cut = f"batch {number} alone is longer: only its newest {last:,} offsets"
            break
        number -= 1
    first = since
    if cut and oldest == number:
        first = {p: max(since[p], end[p] - last // len(end)) for p in end}
    return Window(first, since, (oldest, newest[0]), sum(end[p] - first[p] for p in end), last, cut)


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
    """Find where to begin reading each output partition, so that everything of the window lies behind that.

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
) -> Place | None:
    """Return the origin of the first record of the stream from ``start`` to ``stop``; None without one."""
    text = origin.of(where)
    for batch in batches(admin, where, start, stop, stop, _FETCH_BYTES):
        for record in batch.records() if batch.marker is None and not batch.hidden else ():
            said = text(record) if start <= record.offset < stop else None
            try:
                place = places.read(said) if said is not None else None
            except Unreadable:
                continue
            if place is not None and place.offset >= began.get(place.partition, 0):
                return place
    return None
