"""Counts of the outputs of each input record: a byte for each, block by block, in memory that is bounded. Pure.

A stream works through its input in order, so at any moment only a few blocks are half done. A block that is complete
becomes a flag. Of the others, those that were not touched for the longest are packed: what is left of a block is
mostly one byte over and over.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from exactly_once.verify.by_origin.origin import MOST_OUTPUTS, PerInput

Offsets = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]

#: Kinds of input offsets. UNKNOWN: nothing tells whether there is (or was) a record; it may be in the outputs.
NO_RECORD, RECORD, ABORTED, UNKNOWN = range(4)

#: Verdicts on output records, by what they came from.
FINE, DUPLICATE, OF_NO_RECORD, OF_ABORTED, BEFORE, BEYOND, TOO_MANY = range(7)

#: Outputs in a block: small against what is in memory at once, large against what a call of numpy costs.
BLOCK = 1 << 18

#: Of all blocks in work. The rest is packed.
MOST_BYTES = 128 * 1024 * 1024

#: ``kinds(start, stop)`` of input offsets.
KindsOf = Callable[[int, int], Bytes]


@dataclass(slots=True)
class _Block:
    kinds: Bytes
    seen: Bytes
    left: int
    """Outputs that are still to come."""

    @property
    def nbytes(self) -> int:
        return self.kinds.nbytes + self.seen.nbytes


class _Packed(NamedTuple):
    kinds: bytes
    seen: bytes
    left: int


class Memory:
    """The blocks in work, of all partitions of the input together."""

    def __init__(self, most_bytes: int = MOST_BYTES):
        self.most_bytes = most_bytes
        self.bytes = 0
        self._blocks: OrderedDict[tuple[Counts, int], _Block] = OrderedDict()
        self._packed: dict[tuple[Counts, int], _Packed] = {}

    def get(self, key: tuple[Counts, int]) -> _Block | None:
        """Return a block that was put here before."""
        block = self._blocks.get(key)
        if block is not None:
            self._blocks.move_to_end(key)
            return block
        packed = self._packed.pop(key, None)
        if packed is None:
            return None
        kinds, seen = (np.frombuffer(bytearray(zlib.decompress(p)), np.uint8) for p in packed[:2])
        block = _Block(kinds, seen, packed.left)
        self.put(key, block)
        return block

    def put(self, key: tuple[Counts, int], block: _Block) -> None:
        """Add a block, and pack others where there is no more room."""
        self._blocks[key] = block
        self.bytes += block.nbytes
        while self.bytes > self.most_bytes and len(self._blocks) > 1:
            oldest, cold = self._blocks.popitem(last=False)
            self.bytes -= cold.nbytes
            kinds, seen = (zlib.compress(a.tobytes(), 1) for a in (cold.kinds, cold.seen))
            self._packed[oldest] = _Packed(kinds, seen, cold.left)

    def drop(self, key: tuple[Counts, int]) -> None:
        """Forget a block, packed or not."""
        block = self._blocks.pop(key, None)
        if block is not None:
            self.bytes -= block.nbytes
        self._packed.pop(key, None)


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
        blocks = (offsets[inside] - self.first) // self._offsets
        for number in np.unique(blocks):
            some = inside[blocks == number]
            local = offsets[some] - (self.first + int(number) * self._offsets)
            verdicts[some] = self._count(int(number), local, None if ks is None else ks[some])
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
            there = block.kinds[cut] == RECORD
            records += int(there.sum())
            whole += int((there & (self._lacking(block)[cut] == 0)).sum())
        return records, whole

    def seen(self, offsets: Offsets) -> Flags:
        """Return whether each of these records has an output."""
        found = np.zeros(len(offsets), np.bool_)
        blocks = (offsets - self.first) // self._offsets
        for number in np.unique(blocks):
            some = blocks == number
            local = offsets[some] - (self.first + int(number) * self._offsets)
            by_record = self._block(int(number)).seen.reshape(-1, self._width).max(axis=1) > 0
            found[some] = by_record[local]
        return found

    # -- blocks ---------------------------------------------------------------------------------------------------

    def _count(self, number: int, local: Offsets, ks: Offsets | None) -> Bytes:
        block = self._block(number)
        kinds = block.kinds[local]
        verdicts = np.full(len(local), FINE, np.uint8)
        verdicts[kinds == NO_RECORD] = OF_NO_RECORD
        verdicts[kinds == ABORTED] = OF_ABORTED
        todo = np.flatnonzero(verdicts == FINE)
        slots = local[todo] if ks is None else local[todo] * self._width + ks[todo]
        if self._capacity is None:
            block.seen[slots] = 1
            return verdicts
        again = _surplus(block.seen, slots, self._capacity)
        verdicts[todo[again]] = DUPLICATE
        fresh = todo[~again]
        np.add.at(block.seen, slots[~again], 1)
        block.left -= int((kinds[fresh] == RECORD).sum())
        if not block.left and not (block.kinds == UNKNOWN).any():
            self._complete.add(number)
            self._memory.drop((self, number))
        return verdicts

    def _block(self, number: int) -> _Block:
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
            block = _Block(kinds, seen, 0 if number in self._complete else records * self._want)
            self._memory.put((self, number), block)
        self._touched.add(number)
        return block

    def _lacking(self, block: _Block) -> npt.NDArray[np.int64]:
        """Return, by offset of a block, the number of missing outputs."""
        have = block.seen.reshape(-1, self._width).sum(axis=1, dtype=np.int64)
        return np.where(block.kinds == RECORD, self._want - have, 0)


def _surplus(seen: Bytes, slots: Offsets, capacity: int) -> Flags:
    """Return which of these outputs are one too many, in their order; ``seen`` has those before."""
    order = np.argsort(slots, kind="stable")
    ordered = slots[order]
    begins = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    rank = np.arange(len(slots)) - np.repeat(begins, np.diff(np.r_[begins, len(slots)]))
    surplus = np.empty(len(slots), np.bool_)
    surplus[order] = seen[ordered] + rank >= capacity
    return surplus
