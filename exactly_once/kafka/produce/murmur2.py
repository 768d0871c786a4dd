"""Which partition a key belongs to, for whole columns: the Java client's hash.

So a key goes where Spark's own sink puts it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from exactly_once.kafka.produce.varints import nulls_of

_SEED = 0x9747B28C
_MULTIPLIER = np.uint32(0x5BD1E995)
_MASK = 0xFFFFFFFF

#: With fewer keys left that are this long, plain integers are faster than a dozen NumPy calls for each word.
_FEW = 64

#: What belongs to a key of the four bytes at its end, by how many of them do.
_TAILS = np.array([0, 0xFF, 0xFFFF, 0xFFFFFF], np.uint32)

Words = npt.NDArray[np.uint32]
Numbers = npt.NDArray[np.int64]


def partitions_of(keys: pa.Array, partitions: int) -> npt.NDArray[np.int32]:
    """Return the partition of each key, as the Java client's partitioner chooses it; -1 for null.

    Parameters
    ----------
    keys : pa.BinaryArray or pa.LargeBinaryArray
    partitions : int
        How many the topic has, 1 or more.
    """
    positive = murmur2(keys).view(np.uint32) & np.uint32(0x7FFFFFFF)
    found = (positive - positive // np.uint32(partitions) * np.uint32(partitions)).view(np.int32)  # % is far slower
    if keys.null_count:
        found[nulls_of(keys)] = -1
    return found


def murmur2(keys: pa.Array) -> npt.NDArray[np.int32]:
    """Return the hash of each key as ``org.apache.kafka.common.utils.Utils.murmur2`` does; of null, anything.

    Parameters
    ----------
    keys : pa.BinaryArray or pa.LargeBinaryArray
        Of any lengths; a slice of a larger array as well.
    """
    starts, lengths = _places(keys)
    if not len(starts):
        return np.empty(0, np.int32)
    words, longest = _words(keys), int(lengths.max())
    if longest == lengths.min():
        hashes = _hashes(words, starts, longest)
    else:
        order = np.argsort(_descending(lengths, longest), kind="stable")
        hashes = np.empty(len(starts), np.uint32)
        hashes[order] = _hashes_by_length(words, starts[order], lengths[order])
    return _mixed(hashes, words, starts, lengths).view(np.int32)


def _places(keys: pa.Array) -> tuple[Numbers, Numbers]:
    """Where each key begins in the data, and its length."""
    width = np.int64 if pa.types.is_large_binary(keys.type) else np.int32
    buffer = keys.buffers()[1]
    if not len(keys):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    offsets = np.frombuffer(buffer, width, len(keys) + 1, keys.offset * np.dtype(width).itemsize).astype(np.int64)
    return offsets[:-1], np.diff(offsets)


def _words(keys: pa.Array) -> Words:
    """The four bytes from every byte of the data on, as little-endian words that overlap."""
    data = keys.buffers()[2]
    padded = np.zeros((data.size if data is not None else 0) + 4, np.uint8)  # the last word of the last key ends in it
    if data is not None:
        padded[:-4] = np.frombuffer(data, np.uint8)
    return np.ndarray((len(padded) - 3,), "<u4", padded.data, strides=(1,))


def _descending(lengths: Numbers, longest: int) -> npt.NDArray[np.generic]:
    """Numbers that sort the longest first; of 16 bits if possible, for which NumPy's stable sort is a radix sort."""
    return (longest - lengths).astype(np.uint16 if longest < 1 << 16 else np.int64)


def _hashes(words: Words, starts: Numbers, length: int) -> Words:
    """The state after all whole words of keys of one length."""
    hashes = np.full(len(starts), _SEED ^ length, np.uint32)
    if len(starts) < _FEW:
        _one_by_one(hashes, words, starts, np.full(len(starts), length), 0)
    else:
        first, last = int(starts[0]), int(starts[-1])  # keys of one length lie at equal distances
        for at in range(0, length & ~3, 4):
            _add(hashes, words[first + at : last + at + 1 : length].copy())
    return hashes


def _hashes_by_length(words: Words, starts: Numbers, lengths: Numbers) -> Words:
    """As :func:`_hashes`, for keys in the order of their lengths, the longest first."""
    hashes = (lengths ^ _SEED).astype(np.uint32)
    longer_than = np.searchsorted(-lengths, -np.arange(4, int(lengths[0]) + 1, 4), side="right")
    for n, count in enumerate(longer_than.tolist()):
        if count < _FEW:
            _one_by_one(hashes[:count], words, starts[:count], lengths[:count], 4 * n)
            break
        _add(hashes[:count], words[starts[:count] + 4 * n])
    return hashes


def _one_by_one(hashes: Words, words: Words, starts: Numbers, lengths: Numbers, done: int) -> Words:
    """Add the words of each key from the byte ``done`` on; in place. For few keys that may be very long."""
    multiplier = int(_MULTIPLIER)
    for n, (start, length) in enumerate(zip(starts.tolist(), lengths.tolist(), strict=True)):
        state = int(hashes[n])
        for word in _scrambled(words[start + done : start + (length & ~3) : 4].copy()).tolist():
            state = ((state * multiplier) & _MASK) ^ word
        hashes[n] = state
    return hashes


def _scrambled(words: Words) -> Words:
    words *= _MULTIPLIER
    words ^= words >> np.uint32(24)
    words *= _MULTIPLIER
    return words


def _add(hashes: Words, words: Words) -> None:
    """Add the next word of each key; in place."""
    hashes *= _MULTIPLIER
    hashes ^= _scrambled(words)


def _mixed(hashes: Words, words: Words, starts: Numbers, lengths: Numbers) -> Words:
    """Finish the hashes: the bytes that are left over, then the last mixing."""
    left = lengths & 3
    if left.any():
        tails = words[starts + (lengths - left)] & _TAILS[left]
        hashes = np.where(left != 0, (hashes ^ tails) * _MULTIPLIER, hashes)
    hashes ^= hashes >> np.uint32(13)
    hashes *= _MULTIPLIER
    hashes ^= hashes >> np.uint32(15)
    return hashes
