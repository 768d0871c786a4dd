"""Check that the outputs keep the order of the input: by key, or by partition of the input. Pure.

Within one partition of an output, the records of one key that came from one partition of the input must stand in the
order of the input. The table of keys is bounded: the order of keys for which it has no room is not looked at.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from exactly_once.tools.verify.by_origin.content import Hashes, Offsets

#: Keys that are remembered: 32 MB.
KEYS = 1 << 21

#: Places that are tried for a key.
_PROBES = 16


class Descent(NamedTuple):
    """The number of a record that stands after one of later input, and the offset of that input."""

    record: int
    after: int


class Order:
    """The last input offset of each key; ``unchecked`` counts records of keys for which there was no room."""

    def __init__(self, keys: int = KEYS):
        self._keys = np.zeros(keys, np.uint64)
        self._last = np.zeros(keys, np.int64)
        self._mask = np.uint64(keys - 1)
        self.unchecked = 0

    def add(self, keys: Hashes, offsets: Offsets) -> list[Descent]:
        """Take records in the order of their output partition; returns those out of order. ``keys`` are hashes of key,
        input partition and output partition, never 0; ``offsets`` are the records' input offsets.
        """
        if not len(keys):
            return []
        order = np.argsort(keys, kind="stable")
        ordered, at = keys[order], offsets[order]
        begins = np.r_[True, ordered[1:] != ordered[:-1]]
        heads = np.flatnonzero(begins)
        slots = self._slots(ordered[heads])
        before = np.empty(len(at), np.int64)
        before[1:] = at[:-1]
        before[heads] = np.where(slots >= 0, self._last[slots], -1)
        known = slots >= 0
        tails = np.r_[heads[1:], len(at)] - 1
        self._last[slots[known]] = at[tails[known]]
        self.unchecked += int((tails - heads + 1)[~known].sum())
        found = np.flatnonzero(at < before)
        return sorted(Descent(int(order[i]), int(before[i])) for i in found)

    def _slots(self, keys: Hashes) -> Offsets:
        """Return the place of each of these different keys in the table; -1 without room."""
        slots = np.full(len(keys), -1, np.int64)
        todo = np.arange(len(keys))
        for probe in range(_PROBES):
            tried = ((keys[todo] + np.uint64(probe)) & self._mask).astype(np.int64)
            empty = self._keys[tried] == 0
            self._keys[tried[empty]] = keys[todo[empty]]  # of several keys for one place, the last one has it
            mine = self._keys[tried] == keys[todo]
            slots[todo[mine]] = tried[mine]
            todo = todo[~mine]
            if not len(todo):
                break
        return slots
