"""The outputs that two sinks have of the same input, side by side, and what they differ in. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from exactly_once.inspection.words import plural
from exactly_once.verify.anomalies import Anomaly
from exactly_once.verify.by_origin.blocks import BLOCK, InputBlock, Memory, by_block
from exactly_once.verify.by_origin.content import MASK, Content, Hashes, Offsets
from exactly_once.verify.by_origin.counts import Flags

#: Of a key, a value or a header in a report: records may hold what not every reader of a report may see.
MOST_SHOWN = 40

#: Shown before the first byte that differs.
_SHARED = 12


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
        """Return some of them."""
        return Unlike(self.offsets[which], self.old[which], self.new[which])


class Pairs:
    """The outputs of one input partition: of each record a number for either sink, and the difference of the sums of
    their hashes, which is 0 where both have the same records in any order.

    Parameters
    ----------
    first, end : int
        Other input is left out.

    Attributes
    ----------
    records, same : int
        How many input records have an output, and how many of them the same in both; known after :meth:`unlike`.
    """

    def __init__(self, first: int, end: int, memory: Memory):
        self._first, self._end, self._memory = first, end, memory
        self._touched: set[int] = set()
        self.records = self.same = 0

    def inside(self, offsets: Offsets) -> Flags:
        """Return which of these input records are compared."""
        return (offsets >= self._first) & (offsets < self._end)

    def add(self, new: bool, offsets: Offsets, hashes: Hashes) -> None:
        """Count outputs of one of the sinks, of input records that are :meth:`inside`."""
        for number, some, local in by_block(offsets, self._first, BLOCK):
            sums, old_counts, new_counts = self._block(number).columns
            np.add.at(new_counts if new else old_counts, local, 1)
            (np.add if new else np.subtract).at(sums, local, hashes[some])

    def replace(self, new: bool, offset: int, replaced: int, hashes: Hashes) -> None:
        """Count records of one of the sinks in place of an output with the hash ``replaced`` that was counted."""
        number, local = divmod(offset - self._first, BLOCK)
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
                base = self._first + number * BLOCK
                yield Unlike(found + base, old[found].astype(np.int64), new[found].astype(np.int64))

    def _block(self, number: int) -> InputBlock:
        block = self._memory.get((self, number))
        if block is None:
            length = min(BLOCK, self._end - self._first - number * BLOCK)
            block = InputBlock((np.zeros(length, np.uint64), np.zeros(length, np.uint16), np.zeros(length, np.uint16)))
            self._memory.put((self, number), block)
            self._touched.add(number)
        return block


def difference(old: Sequence[Content], new: Sequence[Content], values: bool = True) -> str:
    """Return in a few words where the outputs of an input record begin to differ.

    Parameters
    ----------
    values : bool
        Also show what either has there, cut short.
    """
    if not old or not new:
        (one, *_) = [*old, *new, None]
        return f"value {_shown(one.value)}" if one is not None and values else ""
    if len(old) != len(new):
        return f"old {plural(len(old), 'record')}, new {len(new):,}"
    first, other = (next(iter((Counter(a) - Counter(b)).elements()), None) for a, b in ((old, new), (new, old)))
    if first is None or other is None:
        return ""
    what, *both = _first_difference(first, other)
    return f"{what}: {_both(*both)}" if values else what


def _first_difference(old: Content, new: Content) -> tuple[str, bytes | None, bytes | None]:
    """Return the part of a record that differs, and what either has there."""
    if old.key != new.key:
        return "key", old.key, new.key
    if old.value != new.value:
        return "value", old.value, new.value
    for (name, value), (named, valued) in zip(old.headers, new.headers, strict=False):
        if name == named and value != valued:
            return f"header {name}", value, valued
    return "headers", _names(old), _names(new)


def _names(content: Content) -> bytes:
    return ", ".join(name for name, _ in content.headers).encode()


def _both(old: bytes | None, new: bytes | None) -> str:
    shared = next((n for n, (a, b) in enumerate(zip(old or b"", new or b"", strict=False)) if a != b), None)
    if shared is None:
        shared = min(len(old or b""), len(new or b""))
    start = max(0, shared - _SHARED)
    return f"old {_shown(old, start)}, new {_shown(new, start)}"


def _shown(value: bytes | None, start: int = 0) -> str:
    if value is None:
        return "null"
    cut = value[start : start + MOST_SHOWN].decode(errors="replace")
    return f"{'...' if start else ''}{cut!r}{'...' if len(value) > start + MOST_SHOWN else ''}"
