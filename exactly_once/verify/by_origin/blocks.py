"""Memory for numbers of each input record: block by block, and bounded. Pure.

A stream works through its input in order, so at any moment only a few blocks are half done. Of the others, those that
were not touched for the longest are packed: what is left of a block is mostly one byte over and over.
"""

from __future__ import annotations

import pickle
import zlib
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

#: Input records in a block, or outputs of them: small against what is in memory at once, large against what a call of
#: numpy costs.
BLOCK = 1 << 18

#: Of all blocks in work. The rest is packed.
MOST_BYTES = 128 * 1024 * 1024

#: Whose block it is, and its number.
Key = tuple[Hashable, int]


@dataclass(slots=True)
class InputBlock:
    """Columns of numbers.

    Attributes
    ----------
    left : int
        Outputs that are still to come.
    """

    columns: tuple[npt.NDArray[Any], ...]
    left: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all columns."""
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


def by_block(
    offsets: npt.NDArray[np.int64], first: int, size: int
) -> Iterator[tuple[int, npt.NDArray[np.intp], npt.NDArray[np.int64]]]:
    """Yield the number of each block of ``size`` offsets, from ``first`` on, that some of ``offsets`` are in; the
    indices of these, and where they stand in the block.
    """
    numbers = (offsets - first) // size
    for number in map(int, np.unique(numbers)):
        some = np.flatnonzero(numbers == number)
        yield number, some, offsets[some] - (first + number * size)
