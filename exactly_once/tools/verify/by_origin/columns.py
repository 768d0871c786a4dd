"""The records of many batches as columns: where key, value and headers of each stand in their bytes, and what input
their texts name. Pure.

Decodes what KIP-98 calls a record, 20,000 of them in as many steps as kafka-python takes for a few.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from kafka.errors import CorruptRecordError

from exactly_once.kafka.admin import Partition
from exactly_once.tools.verify.by_origin.content import Flags, Hashes, Offsets
from exactly_once.tools.verify.by_origin.origin import MOST_DIGITS, OriginPlace
from exactly_once.txn.scan import LogBatch

#: Lengths of fields that have no bytes: null, and a header that the record lacks.
NULL, ABSENT = -1, -2

#: Zeros before and behind the bytes: a step may look at this many that belong to no record.
_MARGIN = 32

#: Longest key, in bytes, that is hashed together with others; longer ones are hashed one by one.
_LONGEST_BY_WORDS = 256

#: Odd numbers whose products spread over all bits (MurmurHash3's, SplitMix64's).
_SPREAD = np.array([0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53, 0xBF58476D1CE4E5B9], np.uint64)
_HALF = np.uint64(32)


class FieldBytes(NamedTuple):
    """The beginning of a field in each record, and its length: of one without bytes :data:`NULL` or :data:`ABSENT`."""

    at: Offsets
    length: Offsets

    def of(self, rows: Offsets | Flags) -> FieldBytes:
        return FieldBytes(self.at[rows], self.length[rows])


class RecordColumns:
    """The records of ``batches``, in their order: ``offsets``, ``keys``, ``values``, and in ``headers``, by name, the
    first header of each of ``names``.

    Raises CorruptRecordError for bytes that are no records.
    """

    def __init__(self, batches: Sequence[LogBatch], names: Sequence[str] = ()):
        payloads = [batch.payload() for batch in batches]
        self.raw = b"".join((bytes(_MARGIN), *payloads, bytes(_MARGIN)))
        self._bytes = np.frombuffer(self.raw, np.uint8)
        self._words = np.ndarray((len(self.raw) - 7,), "<u8", self.raw, 0, (1,))
        bases = np.repeat([b.base_offset for b in batches], [b.count for b in batches]).astype(np.int64)
        try:
            self._decode(*self._starts(batches, payloads), bases, names)
        except IndexError as e:
            raise CorruptRecordError(f"the last of {len(bases)} records does not end where its batch says") from e

    def text(self, spans: FieldBytes, row: int) -> bytes | None:
        """Return the bytes of one field; None without any."""
        at, length = int(spans.at[row]), int(spans.length[row])
        return None if length < 0 else self.raw[at : at + length]

    def equal(self, spans: FieldBytes, wanted: bytes) -> Flags:
        """Return which of these fields are ``wanted``."""
        same: Flags = spans.length == len(wanted)
        rows = np.flatnonzero(same)
        padded = wanted + bytes(-len(wanted) % 8)
        for begin in range(0, len(wanted), 8):
            word = np.uint64(int.from_bytes(padded[begin : begin + 8], "little"))
            matches = (self._words[spans.at[rows] + begin] ^ word) & _mask(len(wanted) - begin) == 0
            same[rows[~matches]] = False
            rows = rows[matches]
        return same

    def byte(self, at: Offsets) -> npt.NDArray[np.uint8]:
        """Return the bytes at these places."""
        found: npt.NDArray[np.uint8] = self._bytes[at]
        return found

    def hashes(self, spans: FieldBytes) -> Hashes:
        """Return a hash of each of these fields in 64 bits, the same in every call of this process."""
        hashes = _mixed(spans.length.astype(np.uint64))
        rows, done = np.flatnonzero((spans.length > 0) & (spans.length <= _LONGEST_BY_WORDS)), 0
        while len(rows):
            left = spans.length[rows] - done
            words = self._words[spans.at[rows] + done]
            partial = np.flatnonzero(left < 8)
            words[partial] &= (np.uint64(1) << (left[partial] * 8).astype(np.uint64)) - np.uint64(1)
            hashes[rows] = (hashes[rows] ^ _mixed(words)) * _SPREAD[2]
            hashes[rows] ^= hashes[rows] >> _HALF
            rows, done = rows[left > 8], done + 8
        for row in np.flatnonzero(spans.length > _LONGEST_BY_WORDS).tolist():
            hashes[row] = hash(self.text(spans, row)) & 0xFFFFFFFFFFFFFFFF
        return hashes

    def _starts(self, batches: Sequence[LogBatch], payloads: Sequence[bytes]) -> tuple[Offsets, Offsets]:
        """Return where each record begins, behind its length, and where it ends."""
        starts, ends, end = list[int](), list[int](), _MARGIN
        for batch, payload in zip(batches, payloads, strict=True):
            at, base, end = 0, end, end + len(payload)
            for _ in range(batch.count):
                length = payload[at]
                at += 1
                if length > 127:  # the second byte is the last one of all records below 8 KiB
                    length, shift = length & 127, 7
                    while (more := payload[at]) > 127:
                        length |= (more & 127) << shift
                        at, shift = at + 1, shift + 7
                    length |= more << shift
                    at += 1
                starts.append(base + at)
                at += length >> 1
                ends.append(base + at)
            if base + at != end:
                raise CorruptRecordError(f"{batch.where}@{batch.base_offset}: its records do not end where it ends")
        return np.array(starts, np.int64), np.array(ends, np.int64)

    def _decode(self, starts: Offsets, ends: Offsets, bases: Offsets, names: Sequence[str]) -> None:
        _, at = self._number(starts + 1)  # behind the attributes: the timestamp
        deltas, at = self._number(at)
        self.offsets = bases + deltas
        self.keys, at = self._field(at)
        self.values, at = self._field(at)
        left, at = self._number(at)
        none = np.full(len(starts), ABSENT, np.int64)
        self.headers = {name: FieldBytes(np.zeros(len(starts), np.int64), none.copy()) for name in names}
        rows = np.flatnonzero(left)
        while len(rows):
            name, behind = self._field(at[rows])
            value, at[rows] = self._field(behind)
            for wanted, found in self.headers.items():
                its = np.flatnonzero(self.equal(name, wanted.encode()))
                its = its[found.length[rows[its]] == ABSENT]
                found.at[rows[its]], found.length[rows[its]] = value.of(its)
            left[rows] -= 1
            rows = rows[left[rows] > 0]
        if (at != ends).any() or (left != 0).any():
            raise CorruptRecordError(f"{int((at != ends).sum())} records of {len(starts)} do not end where they say")

    def _field(self, at: Offsets) -> tuple[FieldBytes, Offsets]:
        """Return the fields that begin with their lengths here, and where they end."""
        length, at = self._number(at)
        return FieldBytes(at, length), at + np.maximum(length, 0)

    def _number(self, at: Offsets) -> tuple[Offsets, Offsets]:
        """Return the zigzag varints that begin here, and where they end."""
        byte = self._bytes[at].astype(np.int64)
        value, at = byte & 127, at + 1
        rows, shift = np.flatnonzero(byte > 127), 7
        while len(rows):
            byte = self._bytes[at[rows]].astype(np.int64)
            value[rows] |= (byte & 127) << shift
            at[rows] += 1
            rows, shift = rows[byte > 127], shift + 7
        return (value >> 1) ^ -(value & 1), at


class OriginColumns(NamedTuple):
    """The input records that records name: ``topics`` has the index of the input topic, -1 where that is not known;
    ``ks`` is -1 where nothing says which output of its input record it is.
    """

    topics: Offsets
    partitions: Offsets
    offsets: Offsets
    ks: Offsets

    @classmethod
    def of(cls, records: RecordColumns, texts: FieldBytes, topics: Sequence[str]) -> OriginColumns:
        """Read the plain texts, as :meth:`Places.read` reads each; any other it leaves to that."""
        low, stop = texts.at, texts.at + np.maximum(texts.length, 0)
        offsets, at = _digits(records, low, stop)
        ks = np.full(len(low), -1, np.int64)
        numbered = np.flatnonzero((records.byte(at) == ord("#")) & (at >= low) & (at < stop - 1))
        ks[numbered], stop[numbered] = offsets[numbered], at[numbered]
        offsets[numbered], at[numbered] = _digits(records, low[numbered], stop[numbered])
        separator = records.byte(at)
        plain = (at >= low) & (at < stop - 1) & ((separator == ord("-")) | (separator == ord("/")))
        partitions, before = _digits(records, low, at)
        plain &= before < at - 1
        found = np.full(len(low), -1, np.int64)
        if len(topics) == 1:
            found[plain & (before < low)] = 0
        plain &= (before >= low) & (records.byte(before) == separator)
        for number, topic in enumerate(topics):
            found[plain & records.equal(FieldBytes(low, before - low), topic.encode())] = number
        return cls(found, partitions, offsets, ks)

    def put(self, row: int, place: OriginPlace, topics: Sequence[str]) -> None:
        """Note what one record names."""
        topic, self.partitions[row] = place.partition
        self.topics[row], self.offsets[row], self.ks[row] = topics.index(topic), place.offset, place.k

    def by_partition(self, topics: Sequence[str]) -> Iterator[tuple[Partition, Offsets]]:
        """Yield the partitions that are named, each with its rows, in the order of their first ones."""
        left = np.flatnonzero(self.topics >= 0)
        while len(left):
            topic, partition = self.topics[left[0]], self.partitions[left[0]]
            mine = (self.topics[left] == topic) & (self.partitions[left] == partition)
            yield (topics[topic], int(partition)), left[mine]
            left = left[~mine]


def _digits(records: RecordColumns, low: Offsets, stop: Offsets) -> tuple[Offsets, Offsets]:
    """Return the numbers whose last digits stand before ``stop``, and where the bytes before them are."""
    value, at, power = np.zeros(len(low), np.int64), stop - 1, 1
    for _ in range(MOST_DIGITS):
        digit = records.byte(at) - np.uint8(ord("0"))
        more = (digit < 10) & (at >= low)
        if not more.any():
            break
        value += np.where(more, digit, np.uint8(0)) * np.int64(power)
        at, power = at - more, power * 10
    return value, at


def _mixed(words: Hashes) -> Hashes:
    """Return words each of whose bits depends on all bits of its word."""
    words = words * _SPREAD[0]
    words ^= words >> _HALF
    words *= _SPREAD[1]
    return words ^ (words >> _HALF)


def _mask(length: int) -> np.uint64:
    return np.uint64((1 << 8 * min(length, 8)) - 1)
