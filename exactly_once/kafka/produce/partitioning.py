"""The rows of each partition, and partitions for rows that name none and have no key."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from exactly_once.kafka.produce.varints import Numbers

#: ``batch.size`` of the Java client: rows without a key stay on one partition for so many bytes.
STICKY_BYTES = 16_384


@dataclass(frozen=True, slots=True)
class Split:
    """Rows in the order of their partitions; within one, as they were.

    Attributes
    ----------
    partitions : list of int
        Those that have rows, ascending.
    starts : list of int
        Where the rows of each begin in ``order``.
    order : int array
    """

    partitions: list[int]
    starts: list[int]
    order: Numbers

    def __iter__(self) -> Iterator[tuple[int, Numbers]]:
        """Yield each partition and its rows."""
        bounds = pairwise([*self.starts, len(self.order)])
        return ((p, self.order[start:stop]) for p, (start, stop) in zip(self.partitions, bounds, strict=True))


def split_by_partition(partitions: npt.NDArray[np.integer]) -> Split:
    """Group the rows by partition.

    Parameters
    ----------
    partitions : int array
        The partition of each row, 0 or more.

    Raises
    ------
    ValueError
        When a row has no partition.
    """
    if not len(partitions):
        return Split([], [], np.empty(0, np.int64))
    lowest, highest = int(partitions.min()), int(partitions.max())
    if lowest < 0:
        raise ValueError("a row has no partition")
    if lowest == highest:
        return Split([lowest], [0], np.arange(len(partitions)))
    # of 16 bits, if possible: for these NumPy's stable sort is a radix sort
    short = partitions.astype(np.uint16 if highest < 1 << 16 else np.int64)
    order = np.argsort(short, kind="stable")
    in_order = short[order]
    starts = np.concatenate(([0], np.flatnonzero(in_order[1:] != in_order[:-1]) + 1))
    return Split(in_order[starts].tolist(), starts.tolist(), order)


def spread(rows: int, size: int, partitions: int, last: int) -> tuple[npt.NDArray[np.int32], int]:
    """Choose partitions for rows that leave it to the client: runs of rows, as long as the Java client's.

    Parameters
    ----------
    rows, size : int
        How many, and the bytes of their values.
    partitions : int
        How many the topic has.
    last : int
        The last partition so chosen: the first run gets the next one. At first, a random one.

    Returns
    -------
    The partition of each row, and the last one.
    """
    runs = min(partitions, max(1, size // STICKY_BYTES), max(1, rows))
    chosen = (last + 1 + np.arange(rows, dtype=np.int64) * runs // max(1, rows)) % partitions
    return chosen.astype(np.int32), int(chosen[-1]) if rows else last
