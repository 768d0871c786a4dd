"""A digest of the rows of a part that does not depend on their order.

A part that is written again after a loss must hold the same rows. Their order may differ after a shuffle (blocks arrive
in any order), so the digest is the sum of a hash of each row: 64 bits of XXH3. With the number of rows, it detects
mistakes, not tampering.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice, repeat
from typing import TYPE_CHECKING

from xxhash import xxh3_64_intdigest

if TYPE_CHECKING:
    import pyarrow as pa

_MASK = (1 << 64) - 1

#: The cell of a null. No value of a user equals it or has its hash.
_NULL_CELL = b"\xffexactly-once null"
_NULL = xxh3_64_intdigest(_NULL_CELL)

Cell = bytes | None


class RowDigest:
    """The running digest of a part's rows; a handle holds its ``text``."""

    __slots__ = ("_sum",)

    def __init__(self) -> None:
        self._sum = 0

    @property
    def text(self) -> str:
        """The digest of all rows so far, 16 hex digits."""
        return f"{self._sum & _MASK:016x}"

    def add(self, *cells: Cell) -> None:
        """Add one row."""
        seed = 0
        for cell in cells:
            seed = _hash(cell, seed)
        self._sum += seed

    def join(self, other: RowDigest) -> None:
        """Add all rows of another digest."""
        self._sum += other._sum

    def add_pairs(self, keys: Sequence[Cell], values: Sequence[Cell]) -> None:
        """Add many rows of two cells: the hash of the key seeds that of the value."""
        unkeyed = bool(keys) and keys[0] is None and keys.count(None) == len(keys)
        try:  # nearly always there are no other nulls; a map without a Python frame for each row keeps this cheap
            seeds: Iterable[int] = repeat(_NULL) if unkeyed else map(xxh3_64_intdigest, keys)  # type: ignore[arg-type]
            self._sum += sum(map(xxh3_64_intdigest, values, seeds))  # type: ignore[arg-type]
        except TypeError:
            self._sum += sum(map(_pair, keys, values))

    def add_batch(self, rows: pa.RecordBatch) -> None:
        """Add the rows of an Arrow batch, every column of them, in the order of the columns."""
        if not rows.num_columns:
            return
        seeds: Iterable[int] = repeat(0)
        for column in rows.columns:
            seeds = map(xxh3_64_intdigest, _cells(column), seeds)
        self._sum += sum(islice(seeds, rows.num_rows))


def _pair(key: Cell, value: Cell) -> int:
    seed = xxh3_64_intdigest(key) if key is not None else _NULL
    return xxh3_64_intdigest(value, seed) if value is not None else seed ^ _NULL


def _hash(cell: Cell, seed: int) -> int:
    return xxh3_64_intdigest(cell, seed) if cell is not None else xxh3_64_intdigest(b"", seed ^ _NULL)


def _cells(column: pa.Array) -> list[bytes]:
    """Convert the column to bytes; null becomes a value that no user writes."""
    import pyarrow as pa  # imported here: processes that only read and write decisions have no rows

    if not (pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)):
        try:
            column = column.cast(pa.large_string()).cast(pa.large_binary())
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):  # nested
            column = pa.array([None if v is None else repr(v).encode() for v in column.to_pylist()], pa.large_binary())
    cells: list[bytes] = column.fill_null(_NULL_CELL).to_pylist()
    return cells
