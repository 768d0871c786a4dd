"""Kafka's varints for whole columns, and columns of bytes put together row by row.

A varint has up to eight bytes here, or it is two pieces: each piece is a little-endian word, of which the first bytes
count. Pieces lie eight bytes apart, with a gap behind each, so that nothing has to be moved together before Arrow's
``take`` copies pieces, keys and values into their places.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Words = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int64]

#: Varints below this come from a table: lengths and offsets of a usual batch. It stays in the processor's cache.
_TABLE = 1 << 14

#: Bytes of a word, in which seven bits each hold a number.
_WORD = 8

#: The highest bit of each byte of a word: another byte follows.
_MORE = 0x8080808080808080

#: The data of one Arrow array with offsets of 32 bits.
_MOST_DATA = (1 << 31) - 1


class Piece(NamedTuple):
    """Up to eight bytes of each row: the lowest ``sizes`` bytes of ``words``, the others are 0."""

    words: Words
    sizes: Words
    widest: int

    @property
    def column(self) -> Column:
        """The same as bytes; the places between them are gaps."""
        rows = len(self.words)
        offsets = np.arange(0, 8 * rows + 1, 4) // _WORD * _WORD
        offsets[1::2] += self.sizes.view(np.int64)
        return Column(binary(offsets, pa.py_buffer(self.words.astype("<u8", copy=False))), np.arange(0, 2 * rows, 2))


class Column(NamedTuple):
    """Bytes of any lengths: those at ``places`` of the array, one for each row; null is nothing."""

    array: pa.Array
    places: Numbers


def varints(numbers: Numbers) -> list[Piece]:
    """Encode each number, as Java's ``writeVarint`` and ``writeVarlong`` do: one piece, or two for huge numbers."""
    unsigned = _zigzag(numbers)
    top = int(unsigned.max(initial=0))
    if top < _TABLE:
        return [Piece(np.take(_WORDS, unsigned), np.take(_SIZES, unsigned), _size(top))]
    words, sizes = _computed(unsigned, min(_size(top), _WORD))
    pieces = [Piece(words, sizes, min(_size(top), _WORD))]
    if top >> 7 * _WORD:
        pieces.append(_rest(pieces[0], unsigned >> np.uint64(7 * _WORD)))
    return pieces


def sizes_of(numbers: Numbers) -> Numbers:
    """Return how many bytes each number takes as a varint."""
    unsigned = _zigzag(numbers)
    top = int(unsigned.max(initial=0))
    if top < _TABLE:
        return np.take(_SIZES, unsigned).view(np.int64)
    return 1 + sum(((unsigned >> np.uint64(7 * n)) != 0).astype(np.int64) for n in range(1, _size(top)))


def zeros(piece: Piece, count: int) -> Piece:
    """Put ``count`` zero bytes behind a piece; with them, it has eight bytes at most."""
    return Piece(piece.words, piece.sizes + np.uint64(count), piece.widest + count)


def total(columns: Sequence[Numbers]) -> Numbers:
    """Return the sum of the columns in each row."""
    result = columns[0]
    for column in columns[1:]:
        result = result + column
    return result


def sums(sizes: Numbers) -> Numbers:
    """Return where each row ends, with a 0 before the first."""
    ends = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=ends[1:])
    return ends


def binary(offsets: Numbers, data: pa.Buffer) -> pa.Array:
    """Return the bytes between one offset and the next as an array."""
    small = int(offsets[-1]) <= _MOST_DATA
    kind = pa.binary() if small else pa.large_binary()
    return pa.Array.from_buffers(
        kind, len(offsets) - 1, [None, pa.py_buffer(offsets.astype(np.int32) if small else offsets), data]
    )


def interleaved(parts: Sequence[Piece | Column], size: int) -> pa.Buffer:
    """Return the bytes of all parts, row by row; ``size`` is how many there are."""
    if not size:
        return pa.py_buffer(b"")
    columns = list(_columns(parts))
    arrays = _of_one_type([c.array for c in columns], size)
    rows, before = len(columns[0].places), 0
    places = np.empty((rows, len(columns)), np.int32 if sum(map(len, arrays)) <= _MOST_DATA else np.int64)
    for n, (column, array) in enumerate(zip(columns, arrays, strict=True)):
        np.add(column.places, before, out=places[:, n], casting="same_kind")
        before += len(array)
    taken = pc.take(pa.concat_arrays(arrays), pa.array(places.ravel()), boundscheck=False)
    data: pa.Buffer = taken.buffers()[2]
    return data.slice(0, size)


def _columns(parts: Sequence[Piece | Column]) -> Iterator[Column]:
    """Join the pieces that stand side by side: each column that is left is copied on its own."""
    for are_pieces, some in groupby(parts, lambda part: isinstance(part, Piece)):
        if are_pieces:
            yield from (piece.column for piece in _joined([p for p in some if isinstance(p, Piece)]))
        else:
            yield from (c for c in some if isinstance(c, Column))


def _joined(pieces: Sequence[Piece]) -> list[Piece]:
    """As few pieces with the same bytes."""
    result = [pieces[0]]
    for piece in pieces[1:]:
        last = result[-1]
        if last.widest + piece.widest > _WORD:
            result.append(piece)
            continue
        words = last.words | (piece.words << (last.sizes << np.uint64(3)))
        result[-1] = Piece(words, last.sizes + piece.sizes, last.widest + piece.widest)
    return result


def _of_one_type(arrays: list[pa.Array], size: int) -> list[pa.Array]:
    """Convert all to offsets of 64 bits if one of them has such, or they have too much data together."""
    data = size + sum(a.nbytes for a in arrays)
    if data <= _MOST_DATA and not any(pa.types.is_large_binary(a.type) for a in arrays):
        return arrays
    return [a.cast(pa.large_binary()) for a in arrays]


def _zigzag(numbers: Numbers) -> Words:
    signed = np.ascontiguousarray(numbers, np.int64)
    return ((signed << 1) ^ (signed >> 63)).view(np.uint64)


def _size(unsigned: int) -> int:
    return max(1, -(-unsigned.bit_length() // 7))


def _computed(unsigned: Words, widest: int) -> tuple[Words, Words]:
    """The first ``widest`` bytes of each varint, and how many of them count."""
    words, sizes = unsigned & np.uint64(0x7F), np.ones(len(unsigned), np.uint64)
    for n in range(1, widest):
        words |= ((unsigned >> np.uint64(7 * n)) & np.uint64(0x7F)) << np.uint64(8 * n)
        sizes += (unsigned >> np.uint64(7 * n)) != 0
    return words | (np.uint64(_MORE) & ((np.uint64(1) << ((sizes - np.uint64(1)) << np.uint64(3))) - np.uint64(1))), sizes


def _rest(low: Piece, high: Words) -> Piece:
    """The ninth and tenth byte of varints; the bit that announces them is set in ``low``, in place."""
    words, sizes = _computed(high, 2)
    longer = high != 0
    low.words[longer] |= np.uint64(0x80 << 8 * (_WORD - 1))
    return Piece(np.where(longer, words, np.uint64(0)), np.where(longer, sizes, np.uint64(0)), 2)


_WORDS, _SIZES = _computed(np.arange(_TABLE, dtype=np.uint64), 2)
