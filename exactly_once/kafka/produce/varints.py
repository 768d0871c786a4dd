"""Kafka's varints for whole columns, and columns of bytes put together row by row.

A varint has up to eight bytes here, or it is two pieces: each piece is a little-endian word, of which the first bytes
count. Pieces lie eight bytes apart, with a gap behind each, so that nothing has to be moved together before Arrow's
``take`` copies pieces, keys and values into their places.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Words = npt.NDArray[np.uint64]
Sizes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]

#: Numbers from -1 to below this come from tables: lengths and offsets of a usual batch. The tables stay in the
#: processor's cache.
_TABLE = (1 << 13) - 1

#: Lengths and offsets below this take one byte.
_ONE_BYTE = 64

#: Bytes of a word, in which seven bits each hold a number.
_WORD = 8

#: The highest bit of each byte of a word: another byte follows.
_MORE = 0x8080808080808080

#: The most data of an Arrow array with offsets of 32 bits.
_MOST_DATA = (1 << 31) - 1


class Piece(NamedTuple):
    """Up to eight bytes of each row: the lowest ``sizes`` bytes of ``words``, ``widest`` at most; the others are 0."""

    words: Words
    sizes: Sizes
    widest: int

    @property
    def column(self) -> Column:
        """The same as bytes, with gaps between them."""
        rows = len(self.words)
        offsets = np.empty(2 * rows + 1, np.int32 if rows * _WORD <= _MOST_DATA else np.int64)
        offsets[0::2] = np.arange(0, (rows + 1) * _WORD, _WORD)
        np.add(offsets[0:-1:2], self.sizes, out=offsets[1::2])
        return Column(_array(offsets, pa.py_buffer(self.words.astype("<u8", copy=False))), np.arange(0, 2 * rows, 2))


class Column(NamedTuple):
    """Bytes of any lengths: those at ``places`` of the array, one for each row; null is nothing."""

    array: pa.Array
    places: Numbers


def varints(numbers: Numbers) -> list[Piece]:
    """Encode each number, as Java's ``writeVarint`` and ``writeVarlong`` do: one piece, or two for huge numbers."""
    if _in_tables(numbers):
        return [Piece(_WORDS.take(numbers), _SIZES.take(numbers), 1 if numbers.max(initial=0) < _ONE_BYTE else 2)]
    unsigned = _zigzag(numbers)
    top = _size(int(unsigned.max()))
    low = Piece(*_computed(unsigned, min(top, _WORD)), min(top, _WORD))
    return [low] if top <= _WORD else [low, _rest(low, unsigned >> np.uint64(7 * _WORD))]


def sizes_of(numbers: Numbers) -> Sizes:
    """Return how many bytes each number takes as a varint."""
    if _in_tables(numbers):
        return _SIZES.take(numbers)
    unsigned = _zigzag(numbers)
    return _sizes(unsigned, _size(int(unsigned.max())))


def zeros(piece: Piece, count: int) -> Piece:
    """Put ``count`` zero bytes behind a piece; with them, it has eight bytes at most."""
    return Piece(piece.words, piece.sizes + np.uint8(count), piece.widest + count)


def sums(sizes: Numbers) -> Numbers:
    """Return where each row ends, with a 0 before the first."""
    ends = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=ends[1:])
    return ends


def binary(ends: Numbers, data: pa.Buffer) -> pa.Array:
    """Return the bytes from each end to the next as an array."""
    return _array(ends.astype(np.int32) if int(ends[-1]) <= _MOST_DATA else ends, data)


def offsets_of(array: pa.Array) -> npt.NDArray[Any]:
    """Where each element of a (large) binary array begins in its data, and where the last one ends."""
    if not len(array):
        return np.zeros(1, np.int32)
    kind = np.dtype(np.int64 if pa.types.is_large_binary(array.type) else np.int32)
    return np.frombuffer(array.buffers()[1], kind, len(array) + 1, array.offset * kind.itemsize)


def nulls_of(array: pa.Array) -> npt.NDArray[np.bool_]:
    """Which elements of an array are null, that has some.

    Its own ``is_null().to_numpy()`` imports pandas, as :func:`pa.array` does: half a second of the first batch, in each
    process.
    """
    valid = np.unpackbits(np.frombuffer(array.buffers()[0], np.uint8), bitorder="little")
    found: npt.NDArray[np.bool_] = valid[array.offset : array.offset + len(array)] == 0
    return found


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
    indices = pa.Array.from_buffers(pa.from_numpy_dtype(places.dtype), places.size, [None, pa.py_buffer(places)])
    taken = pc.take(pa.concat_arrays(arrays), indices, boundscheck=False)
    data: pa.Buffer = taken.buffers()[2]
    assert data.size == size, f"{data.size} bytes instead of {size}"
    return data


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
        words = piece.words << (last.sizes << np.uint8(3))
        words |= last.words
        result[-1] = Piece(words, last.sizes + piece.sizes, last.widest + piece.widest)
    return result


def _of_one_type(arrays: list[pa.Array], size: int) -> list[pa.Array]:
    """Convert all to offsets of 64 bits if one of them has such, or they have too much data together."""
    if not any(pa.types.is_large_binary(a.type) for a in arrays):
        ends = (offsets_of(a) for a in arrays)
        if size + sum(int(e[-1]) - int(e[0]) for e in ends) <= _MOST_DATA:
            return arrays
    return [a.cast(pa.large_binary()) for a in arrays]


def _array(offsets: npt.NDArray[Any], data: pa.Buffer) -> pa.Array:
    kind = pa.binary() if offsets.dtype == np.int32 else pa.large_binary()
    return pa.Array.from_buffers(kind, len(offsets) - 1, [None, pa.py_buffer(offsets), data])


def _in_tables(numbers: Numbers) -> bool:
    return not len(numbers) or (int(numbers.max()) < _TABLE and int(numbers.min()) >= -1)


def _zigzag(numbers: Numbers) -> Words:
    return ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)


def _size(unsigned: int) -> int:
    return max(1, -(-unsigned.bit_length() // 7))


def _sizes(unsigned: Words, widest: int) -> Sizes:
    sizes = np.ones(len(unsigned), np.uint8)
    for n in range(1, widest):
        sizes += (unsigned >> np.uint64(7 * n)) != 0
    return sizes


def _computed(unsigned: Words, widest: int) -> tuple[Words, Sizes]:
    """The first ``widest`` bytes of each varint, and how many of them count."""
    words = unsigned & np.uint64(0x7F)
    for n in range(1, widest):
        words |= ((unsigned >> np.uint64(7 * n)) & np.uint64(0x7F)) << np.uint64(8 * n)
    sizes = _sizes(unsigned, widest)
    followed = (np.uint64(1) << ((sizes - np.uint8(1)) << np.uint8(3)).astype(np.uint64)) - np.uint64(1)
    return words | (np.uint64(_MORE) & followed), sizes


def _rest(low: Piece, high: Words) -> Piece:
    """The ninth and tenth byte of varints; the bit that announces them is set in ``low``, in place."""
    words, sizes = _computed(high, 2)
    longer = high != 0
    low.words[longer] |= np.uint64(0x80 << 8 * (_WORD - 1))
    return Piece(words, sizes * longer, 2)


#: By number; that of -1, the length of null, stands at the end.
_WORDS, _SIZES = _computed(_zigzag(np.append(np.arange(_TABLE), -1)), 2)
