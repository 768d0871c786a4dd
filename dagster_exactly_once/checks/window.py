"""Compare the newest part of the input with the newest part of the outputs, by key: no loss, no duplicate. Pure.

Output positions say nothing about input positions, so the proof uses the order in which the stream writes: all of batch
N is committed before anything of batch N+1 is written. A reader that goes backwards through an output partition, and
finds a record of a batch before the window, has therefore seen all of the window's records in that partition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field

from dagster_exactly_once.declare.origin import InputPlace, Partition, Record

#: By partition of the input.
Positions = Mapping[Partition, int]

#: The finding names this many places for each kind of fault.
EXAMPLES = 5


@dataclass(frozen=True)
class InputWindow:
    """The part of the input to compare.

    Attributes
    ----------
    first : mapping
        By partition, the first offset to compare.
    end : mapping
        By partition, the end of the last batch that Spark committed.
    since : mapping
        By partition, the beginning of the oldest batch with a part of the window: all of the window's records are after
        an output record from before it.
    batches : tuple of int
        The oldest and the newest batch of the window.
    cut : str
        Why it is smaller than requested; empty when it is not.
    """

    first: Positions
    end: Positions
    since: Positions
    batches: tuple[int, int]
    cut: str = ""

    @property
    def offsets(self) -> int:
        """The number of offsets in it, including markers and aborted records."""
        return sum(max(0, self.end[p] - self.first[p]) for p in self.end)


def newest_window(
    ends: Iterable[tuple[int, Positions]], began: Positions, low: Positions, limit: int
) -> InputWindow | None:
    """Return the newest batches with at most ``limit`` offsets together; of a longer newest batch, its newest part.

    Parameters
    ----------
    ends : iterable of (int, mapping)
        Batch number and end offsets by partition, newest first; read no further than needed.
    began : mapping
        Where the stream began.
    low : mapping
        The first offsets that the input still holds.

    Returns
    -------
    Window or None
        None before the first committed batch.
    """
    found = iter(ends)
    newest = next(found, None)
    if newest is None:
        return None
    last, end = newest
    number, oldest, cut = last, last, ""
    since: Positions | None = None
    while True:
        before = next(found, None) if number else (-1, began)
        if before is None or before[0] != number - 1:
            cut = f"the checkpoint no longer says where batch {number} began"
            break
        # a partition that was added later is read from its first offset
        start = {p: before[1].get(p, began.get(p, 0)) for p in end}
        fits = sum(end[p] - start[p] for p in end) <= limit
        if since is not None and not fits:
            break
        since, oldest = start, number
        if not fits or number == 0:  # the newest batch is taken whatever its length
            break
        number -= 1
    since = end if since is None else since
    first = {p: min(end[p], max(since[p], low.get(p, 0))) for p in end}
    if sum(end[p] - first[p] for p in end) > limit:
        first = {p: max(first[p], end[p] - limit // len(end)) for p in end}
        cut = f"batch {last} alone has more offsets: only its newest {limit:,} were compared"
    elif any(low.get(p, 0) > since[p] for p in end):
        cut = "older input was deleted by retention"
    return InputWindow(first, end, since, (oldest, last), cut)


@dataclass
class WindowOutputs:
    """The tails of the output partitions.

    Parameters
    ----------
    window : InputWindow
    began : mapping
        Where the stream began: a backfill wrote the records from before, at any time, so they prove nothing about the
        stream's order.
    origin : callable
        ``origin(topic, record)`` returns the input record that an output record came from; None when it does not say.
    """

    window: InputWindow
    began: Positions
    origin: Callable[[str, Record], InputPlace | None]
    seen: Counter[InputPlace] = field(default_factory=Counter)
    reached: set[tuple[str, int]] = field(default_factory=set)
    records: int = 0
    unplaced: list[str] = field(default_factory=list)

    def add(self, topic: str, record: Record) -> None:
        """Add a record of the tail of ``topic``."""
        self.records += 1
        place = self.origin(topic, record)
        if place is None:
            self.unplaced.append(f"{topic}-{record.partition} at {record.offset}")
            return
        self.seen[place] += 1
        partition, offset = place
        if self.began.get(partition, 0) <= offset < self.window.since.get(partition, 0):
            self.reached.add((topic, record.partition))

    def read_from_the_start(self, topic: str, partition: int) -> None:
        """Note that the tail of this partition is all of it."""
        self.reached.add((topic, partition))

    def far_enough(self, topic: str, partition: int) -> bool:
        """Return whether the tail of this partition holds all of its records of the window."""
        return (topic, partition) in self.reached


@dataclass(frozen=True)
class Comparison:
    """The result of the comparison; ``unproven`` are the output partitions that were not read back far enough."""

    compared: int
    lost: tuple[InputPlace, ...]
    duplicated: tuple[InputPlace, ...]
    invented: tuple[InputPlace, ...]
    unplaced: tuple[str, ...]
    unproven: tuple[str, ...]

    @property
    def faults(self) -> dict[str, int]:
        """The kinds of faults, with their counts."""
        kinds = {name: len(getattr(self, name)) for name in ("lost", "duplicated", "invented", "unplaced")}
        return {name: count for name, count in kinds.items() if count}

    def examples(self) -> list[str]:
        """Examples of the faults."""
        named = [f"{kind}: {topic}-{p} at {o}" for kind in ("lost", "duplicated", "invented")
                 for (topic, p), o in getattr(self, kind)[:EXAMPLES]]  # fmt: skip
        return named + [f"without a source position: {where}" for where in self.unplaced[:EXAMPLES]]


def compare(
    inputs: set[InputPlace],
    outputs: WindowOutputs,
    partitions: Iterable[tuple[str, int]],
    held_back: Container[tuple[str, int]],
) -> Comparison:
    """Compare: all outputs together must hold every input record of the window exactly once, and no others.

    Parameters
    ----------
    inputs : set
        The input records of the window, as a read_committed reader sees them: no markers, no aborted records.
    partitions : iterable
        Every partition of the output topics. A record may be in one that was not read back far enough, and then does
        not count as lost.
    held_back : container
        Partitions that a read_committed reader cannot read to their end.
    """
    window, seen = outputs.window, outputs.seen
    unproven = tuple(f"{t}-{p}" for t, p in partitions if (t, p) in held_back or not outputs.far_enough(t, p))
    lost = sorted(inputs - seen.keys()) if not unproven else []
    # in any partition: one input record, two output records
    duplicated = sorted(place for place, count in seen.items() if count > 1)
    invented = sorted(
        (p, o) for p, o in seen if window.first.get(p, 0) <= o < window.end.get(p, 0) and (p, o) not in inputs
    )
    return Comparison(len(inputs), tuple(lost), tuple(duplicated), tuple(invented), tuple(outputs.unplaced), unproven)
