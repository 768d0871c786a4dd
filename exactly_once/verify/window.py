"""The newest part of a stream's input: the window that a comparison with the outputs is limited to. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from exactly_once.kafka.admin import Partition

Positions = Mapping[Partition, int]


def flat(topics: Mapping[str, Mapping[int, int]]) -> dict[Partition, int]:
    """Return offsets by topic and partition as positions."""
    return {(topic, p): offset for topic, partitions in topics.items() for p, offset in partitions.items()}


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
        first = {p: max(since[p], end[p] - last // max(1, len(end))) for p in end}
    return Window(first, since, (oldest, newest[0]), sum(end[p] - first[p] for p in end), last, cut)


def until(ends: Iterable[tuple[int, Positions]], stop: Positions) -> Iterator[tuple[int, Positions]]:
    """Yield batches, newest first, as if the input ended at ``stop``: without those that read nothing before it, and
    without the partitions that it does not name.
    """
    newest: tuple[int, Positions] | None = None
    for number, end in ends:
        cut = {p: min(end[p], offset) for p, offset in stop.items() if p in end}
        if newest is not None and cut != stop:
            yield newest
        newest = number, cut
    if newest is not None:
        yield newest
