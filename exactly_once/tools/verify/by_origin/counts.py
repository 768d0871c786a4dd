"""Numbers of each input record, block by block, in memory that is bounded: counts of its outputs, which are complete
then, or the outputs that two sinks have of it. Pure.

A stream works through its input in order, so at any moment only a few blocks are half done. Of the others, those that
were not touched for the longest are packed: what is left of a block is mostly one byte over and over.
"""

from __future__ import annotations

import pickle
import zlib
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from exactly_once.tools.verify.anomalies import Anomaly
from exactly_once.tools.verify.by_origin.content import MASK, Flags, Hashes, Offsets
from exactly_once.tools.verify.by_origin.origin import MOST_OUTPUTS, PerInput

Bytes = npt.NDArray[np.uint8]

#: Input records in a block, or outputs of them: small against what is in memory at once, large against what a call of
#: numpy costs.
BLOCK = 1 << 18

#: Most memory of all blocks in work; the rest is packed.
MOST_BYTES = 128 * 1024 * 1024

#: Kinds of input offsets. UNKNOWN: nothing tells whether there is (or was) a record; it may be in the outputs.
NO_RECORD, RECORD, ABORTED, UNKNOWN = range(4)

#: Verdicts on output records, by what they came from.
FINE, DUPLICATE, OF_NO_RECORD, OF_ABORTED, BEFORE, BEYOND, TOO_MANY = range(7)

#: ``kinds(start, stop)`` of input offsets.
KindsOf = Callable[[int, int], Bytes]


#: The owner of a block, and the block's number.
Key = tuple[Hashable, int]


@dataclass(slots=True)
class InputBlock:
    """Columns of numbers; ``left`` outputs are still to come."""

    columns: tuple[npt.NDArray[Any], ...]
    left: int = 0

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for column in self.columns)


class Memory:
    """The blocks in work, of all partitions of the input together."""

    def __init__(self, most_bytes: int = MOST_BYTES):
        self.most_bytes = most_bytes
        self.bytes = 0
        self._blocks: OrderedDict[Key, InputBlock] = OrderedDict()
        self._packed: dict[Key, bytes] = {}

    def get(self, key: Key) -> InputBlock | None:
        """Return a block that was put here before."""
        block = self._blocks.get(key)
        if block is not None:
            self._blocks.move_to_end(key)
            return block
        packed = self._packed.pop(key, None)
        if packed is None:
            return None
        opened: InputBlock = pickle.loads(zlib.decompress(packed))
        self.put(key, opened)
        return opened

    def put(self, key: Key, block: InputBlock) -> None:
        """Add a block, and pack others where there is no more room."""
        self._blocks[key] = block
        self.bytes += block.nbytes
        while self.bytes > self.most_bytes and len(self._blocks) > 1:
            oldest, cold = self._blocks.popitem(last=False)
            self.bytes -= cold.nbytes
            self._packed[oldest] = zlib.compress(pickle.dumps(cold, pickle.HIGHEST_PROTOCOL), 1)

    def drop(self, key: Key) -> None:
        """Forget a block, packed or not."""
        block = self._blocks.pop(key, None)
        if block is not None:
            self.bytes -= block.nbytes
        self._packed.pop(key, None)


class Blocks:
    """The blocks of one input partition."""

    def __init__(self, first: int, memory: Memory, size: int):
        self.first, self._memory, self._size = first, memory, size
        self._touched: set[int] = set()

    def _block(self, number: int) -> InputBlock:
        block = self._memory.get((self, number))
        if block is None:
            block = self._new(number)
            self._memory.put((self, number), block)
        self._touched.add(number)
        return block

    def _new(self, number: int) -> InputBlock:
        raise NotImplementedError

    def _split(self, offsets: Offsets) -> Iterator[tuple[int, npt.NDArray[np.intp], Offsets]]:
        """Yield the number of each block that some of ``offsets`` are in, the indices of these, and where they stand in
        the block.
        """
        numbers = (offsets - self.first) // self._size
        for number in map(int, np.unique(numbers)):
            some = np.flatnonzero(numbers == number)
            yield number, some, offsets[some] - (self.first + number * self._size)


class Counts(Blocks):
    """The counts of one input partition in the outputs.

    The stream began at ``first``; every record from ``wanted`` (by default ``first``) to ``end`` must be in the
    outputs; those before ``wanted``, and from ``end`` to ``reach`` (their batches are decided or under way), may be.
    Each output says which of its input's outputs it is when they are ``numbered``. ``kinds_of`` returns the kinds of
    offsets from ``wanted`` to ``end``. ``records`` counts those before ``end`` in the blocks that were looked at: all
    of them after :meth:`missing`, but for those in blocks that are known to be ``complete``.
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
        complete: Iterable[int] = (),
    ):
        self._width = width_of(outputs, numbered)
        super().__init__(first, memory, block_size(self._width))
        self.end, self.reach, self._kinds_of = end, max(end, reach), kinds_of
        self._wanted = first if wanted is None else wanted
        self._capacity = 1 if numbered else outputs.most
        self._want = (self._capacity or 1) * self._width
        self.records = 0
        self._complete = set(complete)

    def add(self, offsets: Offsets, ks: Offsets | None = None) -> Bytes:
        """Count outputs of these input records; returns the verdict on each."""
        verdicts = np.full(len(offsets), FINE, np.uint8)
        verdicts[offsets < self.first] = BEFORE
        verdicts[offsets >= self.reach] = BEYOND
        if ks is not None:
            verdicts[(verdicts == FINE) & (ks >= self._width)] = TOO_MANY
        inside = np.flatnonzero(verdicts == FINE)
        for number, which, local in self._split(offsets[inside]):
            some = inside[which]
            verdicts[some] = self._count(number, local, None if ks is None else ks[some])
        return verdicts

    def missing(self) -> Iterator[tuple[Offsets, int]]:
        """Yield the offsets of records with outputs that are not there, in order, a block at a time, with the number
        of these outputs.
        """
        oldest = (self._wanted - self.first) // self._size
        for number in range(oldest, -(-(self.end - self.first) // self._size)):
            if number in self._complete:
                continue
            fresh = number not in self._touched
            block = self._block(number)
            lacking = self._lacking(block)
            found = np.flatnonzero(lacking)
            if len(found):
                yield found + (self.first + number * self._size), int(lacking.sum())
            if fresh:  # nothing is in it
                self._memory.drop((self, number))

    def present(self, start: int, stop: int) -> tuple[int, int]:
        """Return how many records there are from ``start`` to ``stop``, and how many of them have all their outputs."""
        records = whole = 0
        for number in range((start - self.first) // self._size, -(-(stop - self.first) // self._size)):
            base = self.first + number * self._size
            cut = slice(max(0, start - base), stop - base)
            block = self._block(number)
            there = block.columns[0][cut] == RECORD
            records += int(there.sum())
            whole += int((there & (self._lacking(block)[cut] == 0)).sum())
        return records, whole

    def seen(self, offsets: Offsets) -> Flags:
        """Return whether each of these records has an output."""
        found = np.zeros(len(offsets), np.bool_)
        for number, some, local in self._split(offsets):
            _, its = self._block(number).columns
            found[some] = its.reshape(-1, self._width).max(axis=1)[local] > 0
        return found

    @classmethod
    def of_any(cls, first: int, reach: int, memory: Memory) -> Counts:
        """Return counts for :meth:`seen` alone: of input records from ``first`` to ``reach``, however many outputs."""
        known = np.empty(0, np.uint8)  # of the offsets before ``end``: none
        return cls(first, first, reach, PerInput(None, False), False, lambda start, stop: known, memory)

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

    def _new(self, number: int) -> InputBlock:
        start = self.first + number * self._size
        stop = min(start + self._size, self.reach)
        kinds = np.full(stop - start, UNKNOWN, np.uint8)
        known = max(start, self._wanted), min(stop, self.end)
        if known[0] < known[1]:
            kinds[known[0] - start : known[1] - start] = self._kinds_of(*known)
        records, complete = int((kinds == RECORD).sum()), number in self._complete
        self.records += records if number not in self._touched and not complete else 0
        seen = np.zeros(len(kinds) * self._width, np.uint8)
        if complete:
            seen[:] = self._capacity or 1
        return InputBlock((kinds, seen), 0 if complete else records * self._want)

    def _lacking(self, block: InputBlock) -> npt.NDArray[np.int64]:
        """Return, by offset of a block, the number of missing outputs."""
        kinds, seen = block.columns
        have = seen.reshape(-1, self._width).sum(axis=1, dtype=np.int64)
        return np.where(kinds == RECORD, self._want - have, 0)


def width_of(outputs: PerInput, numbered: bool) -> int:
    """Return how many outputs of an input record are told apart."""
    return (outputs.most or MOST_OUTPUTS) if numbered else 1


def block_size(width: int) -> int:
    """Return how many input records are in a block."""
    return BLOCK // width


def _surplus(seen: Bytes, slots: Offsets, capacity: int) -> Flags:
    """Return which of these outputs are one too many, in their order; ``seen`` has those before."""
    order = np.argsort(slots, kind="stable")
    ordered = slots[order]
    begins = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    rank = np.arange(len(slots)) - np.repeat(begins, np.diff(np.r_[begins, len(slots)]))
    surplus = np.empty(len(slots), np.bool_)
    surplus[order] = seen[ordered] + rank >= capacity
    return surplus


class Unlike(NamedTuple):
    """Input records whose outputs are not the same, with the number of outputs that each sink has of them."""

    offsets: Offsets
    old: Offsets
    new: Offsets

    def flags(self, anomaly: Anomaly) -> Flags:
        """Return which of them are ``differs``, ``only old`` or ``only new``."""
        old, new = self.old > 0, self.new > 0
        if anomaly is Anomaly.DIFFERS:
            return old & new
        return ~new if anomaly is Anomaly.ONLY_OLD else ~old

    def only(self, which: Flags) -> Unlike:
        return Unlike(self.offsets[which], self.old[which], self.new[which])


class Pairs(Blocks):
    """The outputs of one input partition, from ``first`` to ``end``: of each record a number for either sink, and the
    difference of the sums of their hashes, which is 0 where both have the same records in any order.

    ``records`` and ``same`` are how many input records have an output, and how many the same in both; known after
    :meth:`unlike`.
    """

    def __init__(self, first: int, end: int, memory: Memory):
        super().__init__(first, memory, BLOCK)
        self._end = end
        self.records = self.same = 0

    def inside(self, offsets: Offsets) -> Flags:
        """Return which of these input records are compared."""
        return (offsets >= self.first) & (offsets < self._end)

    def add(self, new: bool, offsets: Offsets, hashes: Hashes) -> None:
        """Count outputs of one of the sinks, of input records that are :meth:`inside`."""
        for number, some, local in self._split(offsets):
            sums, old_counts, new_counts = self._block(number).columns
            np.add.at(new_counts if new else old_counts, local, 1)
            (np.add if new else np.subtract).at(sums, local, hashes[some])

    def replace(self, new: bool, offset: int, replaced: int, hashes: Hashes) -> None:
        """Count records of one of the sinks in place of an output with the hash ``replaced`` that was counted."""
        number, local = divmod(offset - self.first, self._size)
        sums, old_counts, new_counts = self._block(number).columns
        added = np.uint64((int(hashes.sum()) - replaced) & MASK)
        (np.add if new else np.subtract).at(sums, local, added)
        (new_counts if new else old_counts)[local] += len(hashes) - 1

    def unlike(self) -> Iterator[Unlike]:
        """Yield what is not the same, in order, a block at a time."""
        self.records = self.same = 0
        for number in sorted(self._touched):
            sums, old, new = self._block(number).columns
            there = (old > 0) | (new > 0)
            found = np.flatnonzero(there & ((sums != 0) | (old != new)))
            self.records += int(there.sum())
            self.same += int(there.sum()) - len(found)
            if len(found):
                base = self.first + number * self._size
                yield Unlike(found + base, old[found].astype(np.int64), new[found].astype(np.int64))

    def _new(self, number: int) -> InputBlock:
        length = min(self._size, self._end - self.first - number * self._size)
        return InputBlock((np.zeros(length, np.uint64), np.zeros(length, np.uint16), np.zeros(length, np.uint16)))
