"""Counts of the outputs of each input record: a byte for each, block by block, in memory that is bounded. Pure.

A block that is complete becomes a flag.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from exactly_once.verify.by_origin.blocks import BLOCK, InputBlock, Memory, by_block
from exactly_once.verify.by_origin.content import Offsets
from exactly_once.verify.by_origin.origin import MOST_OUTPUTS, PerInput

Bytes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]

#: Kinds of input offsets. UNKNOWN: nothing tells whether there is (or was) a record; it may be in the outputs.
NO_RECORD, RECORD, ABORTED, UNKNOWN = range(4)

#: Verdicts on output records, by what they came from.
FINE, DUPLICATE, OF_NO_RECORD, OF_ABORTED, BEFORE, BEYOND, TOO_MANY = range(7)

#: ``kinds(start, stop)`` of input offsets.
KindsOf = Callable[[int, int], Bytes]


class Counts:
    """The counts of one input partition in the outputs.

    Parameters
    ----------
    first, end, reach : int
        The stream began at ``first``; every record before ``end`` must be in the outputs; those from there to
        ``reach`` may be, as their batches are decided or under way.
    outputs : PerInput
    numbered : bool
        Each output says which of its input's outputs it is.
    kinds_of : callable
        The kinds of offsets from ``wanted`` to ``end``.
    wanted : int, optional
        Records before it may be in the outputs, once, and need not be; by default ``first``.

    Attributes
    ----------
    records : int
        Records before ``end`` in the blocks that were looked at: all of them after :meth:`missing`.
    """

    def __init__(
        self,
        first: int,
        end: int,
        reach: int,
        outputs: PerInput,
        numbered: bool,
        kinds_of: KindsOf,
        memory: Memory,
        wanted: int | None = None,
    ):
        self.first, self.end, self.reach = first, end, max(end, reach)
        self._wanted = first if wanted is None else wanted
        self._width = (outputs.most or MOST_OUTPUTS) if numbered else 1
        self._capacity = 1 if numbered else outputs.most
        self._kinds_of, self._memory = kinds_of, memory
        self._want = (self._capacity or 1) * self._width
        self._offsets = BLOCK // self._width  # of a block
        self.records = 0
        self._complete: set[int] = set()
        self._touched: set[int] = set()

    def add(self, offsets: Offsets, ks: Offsets | None = None) -> Bytes:
        """Count outputs of these input records; returns the verdict on each."""
        verdicts = np.full(len(offsets), FINE, np.uint8)
        verdicts[offsets < self.first] = BEFORE
        verdicts[offsets >= self.reach] = BEYOND
        if ks is not None:
            verdicts[(verdicts == FINE) & (ks >= self._width)] = TOO_MANY
        inside = np.flatnonzero(verdicts == FINE)
        for number, which, local in by_block(offsets[inside], self.first, self._offsets):
            some = inside[which]
            verdicts[some] = self._count(number, local, None if ks is None else ks[some])
        return verdicts

    def missing(self) -> Iterator[tuple[Offsets, int]]:
        """Yield the offsets of records with outputs that are not there, in order, a block at a time, with the number
        of these outputs.
        """
        oldest = (self._wanted - self.first) // self._offsets
        for number in range(oldest, -(-(self.end - self.first) // self._offsets)):
            if number in self._complete:
                continue
            fresh = number not in self._touched
            block = self._block(number)
            lacking = self._lacking(block)
            found = np.flatnonzero(lacking)
            if len(found):
                yield found + (self.first + number * self._offsets), int(lacking.sum())
            if fresh:  # nothing is in it
                self._memory.drop((self, number))

    def present(self, start: int, stop: int) -> tuple[int, int]:
        """Return how many records there are from ``start`` to ``stop``, and how many of them have all their outputs."""
        records = whole = 0
        for number in range((start - self.first) // self._offsets, -(-(stop - self.first) // self._offsets)):
            base = self.first + number * self._offsets
            cut = slice(max(0, start - base), stop - base)
            block = self._block(number)
            there = block.columns[0][cut] == RECORD
            records += int(there.sum())
            whole += int((there & (self._lacking(block)[cut] == 0)).sum())
        return records, whole

    def seen(self, offsets: Offsets) -> Flags:
        """Return whether each of these records has an output."""
        found = np.zeros(len(offsets), np.bool_)
        for number, some, local in by_block(offsets, self.first, self._offsets):
            _, its = self._block(number).columns
            found[some] = its.reshape(-1, self._width).max(axis=1)[local] > 0
        return found

    @classmethod
    def of_any(cls, first: int, reach: int, memory: Memory) -> Counts:
        """Return counts for :meth:`seen` alone: of input records from ``first`` to ``reach``, however many outputs."""

        def unknown(start: int, stop: int) -> Bytes:
            return np.full(stop - start, UNKNOWN, np.uint8)

        return cls(first, first, reach, PerInput(None, False), False, unknown, memory)

    # -- blocks ---------------------------------------------------------------------------------------------------

    def _count(self, number: int, local: Offsets, ks: Offsets | None) -> Bytes:
        block = self._block(number)
        all_kinds, seen = block.columns
        kinds = all_kinds[local]
        verdicts = np.full(len(local), FINE, np.uint8)
        verdicts[kinds == NO_RECORD] = OF_NO_RECORD
        verdicts[kinds == ABORTED] = OF_ABORTED
        todo = np.flatnonzero(verdicts == FINE)
        slots = local[todo] if ks is None else local[todo] * self._width + ks[todo]
        if self._capacity is None:
            seen[slots] = 1
            return verdicts
        again = _surplus(seen, slots, self._capacity)
        verdicts[todo[again]] = DUPLICATE
        fresh = todo[~again]
        np.add.at(seen, slots[~again], 1)
        block.left -= int((kinds[fresh] == RECORD).sum())
        if not block.left and not (all_kinds == UNKNOWN).any():
            self._complete.add(number)
            self._memory.drop((self, number))
        return verdicts

    def _block(self, number: int) -> InputBlock:
        block = self._memory.get((self, number))
        if block is None:
            start = self.first + number * self._offsets
            stop = min(start + self._offsets, self.reach)
            kinds = np.full(stop - start, UNKNOWN, np.uint8)
            known = max(start, self._wanted), min(stop, self.end)
            if known[0] < known[1]:
                kinds[known[0] - start : known[1] - start] = self._kinds_of(*known)
            seen = np.zeros(len(kinds) * self._width, np.uint8)
            if number in self._complete:
                seen[:] = self._capacity or 1
            records = int((kinds == RECORD).sum())
            self.records += records if number not in self._touched else 0
            block = InputBlock((kinds, seen), 0 if number in self._complete else records * self._want)
            self._memory.put((self, number), block)
        self._touched.add(number)
        return block

    def _lacking(self, block: InputBlock) -> npt.NDArray[np.int64]:
        """Return, by offset of a block, the number of missing outputs."""
        kinds, seen = block.columns
        have = seen.reshape(-1, self._width).sum(axis=1, dtype=np.int64)
        return np.where(kinds == RECORD, self._want - have, 0)


def _surplus(seen: Bytes, slots: Offsets, capacity: int) -> Flags:
    """Return which of these outputs are one too many, in their order; ``seen`` has those before."""
    order = np.argsort(slots, kind="stable")
    ordered = slots[order]
    begins = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    rank = np.arange(len(slots)) - np.repeat(begins, np.diff(np.r_[begins, len(slots)]))
    surplus = np.empty(len(slots), np.bool_)
    surplus[order] = seen[ordered] + rank >= capacity
    return surplus
