"""Record batches of format 2 (KIP-98) from columns, with no Python object for a record.

Uncompressed, they are bit for bit the Java client's. A batch does not know its producer yet, which may change when a
batch has to be sent again: :func:`seal` adds it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
from google_crc32c import extend

from exactly_once.kafka.produce.compression import Bytes, Codec
from exactly_once.kafka.produce.partitioning import split_by_partition
from exactly_once.kafka.produce.record_columns import Fields
from exactly_once.kafka.produce.records import Records
from exactly_once.kafka.produce.varints import Numbers, interleaved, sizes_of, sums, varints, zeros

#: Base offset, length of all that follows it, leader epoch, magic, checksum.
_UNSUMMED = struct.Struct(">qiibI")

#: Attributes, last offset delta, base and largest timestamp, producer id and epoch, base sequence, number of records.
_SUMMED = struct.Struct(">hiqqqhii")

HEADER_SIZE = _UNSUMMED.size + _SUMMED.size

_MAGIC = 2
_TRANSACTIONAL = 0x10

#: Before the key of a record: a length of five bytes at most, the attributes, a timestamp of ten and an offset of five.
_MOST_BEFORE = 21

#: What the Java client writes; the leader sets its own.
_NO_LEADER_EPOCH = -1


@dataclass(frozen=True, slots=True)
class Batch:
    """A record batch without its producer.

    Attributes
    ----------
    records : bytes or pa.Buffer
        As they are sent: compressed, if at all.
    count : int
    size : int
        Bytes of the batch without compression, its header included.
    codec : int
        Number of the codec.
    base_timestamp, max_timestamp : int
        Of the first record, and the largest, in ms.
    """

    records: Bytes
    count: int
    size: int
    codec: int
    base_timestamp: int
    max_timestamp: int


def seal(batch: Batch, producer_id: int, producer_epoch: int, base_sequence: int, transactional: bool = True) -> bytes:
    """Return the batch as it is sent, with header and checksum. The same batch may be sealed again."""
    summed = _SUMMED.pack(
        batch.codec | (_TRANSACTIONAL if transactional else 0),  # timestamps are of creation: that bit is 0
        batch.count - 1,
        batch.base_timestamp,
        batch.max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        batch.count,
    )
    length = HEADER_SIZE - struct.calcsize(">qi") + len(memoryview(batch.records))
    checksum = extend(extend(0, summed), batch.records)
    return b"".join((_UNSUMMED.pack(0, length, _NO_LEADER_EPOCH, _MAGIC, checksum), summed, batch.records))


def encode(records: Records, now_ms: int, codec: Codec) -> Batch:
    """Return all the records, at least one, as one batch."""
    (batch,) = encode_fields(Fields.of(records), [0], now_ms, codec)
    return batch


def encode_by_partition(
    records: Records, partitions: Numbers, now_ms: int, codec: Codec, limit: int
) -> Iterator[tuple[int, Batch]]:
    """Encode all the records, and yield the batches of each partition, in the order of the rows.

    The batches are compressed one by one, as they are asked for.

    Parameters
    ----------
    partitions : int array
        The partition of each row, 0 or more.
    now_ms : int
        Timestamp of the records, if they have none of their own.
    limit : int
        Bytes that no batch exceeds without compression, save one of a single record.
    """
    split = split_by_partition(partitions)
    fields = Fields.of(records, split.order)
    starts = chunks(fields, split.starts, limit)
    of_batches = np.searchsorted(split.starts, starts, side="right") - 1
    batches = encode_fields(fields, starts, now_ms, codec)
    for place, batch in zip(of_batches.tolist(), batches, strict=True):
        yield split.partitions[place], batch


def chunks(fields: Fields, starts: Sequence[int], limit: int) -> list[int]:
    """Divide the rows further, so that no batch exceeds ``limit`` bytes without compression.

    Parameters
    ----------
    starts : sequence of int
        Where a batch must begin, such as at another partition's first row.

    Returns
    -------
    list of int
        Where each batch begins. A row that alone is larger is a batch of its own.
    """
    rows = len(fields.sizes)
    if not _may_exceed(fields, starts, limit):
        return [*starts]
    # The offset in the rows from one start to the next is an upper bound of that in a batch, and so on.
    bodies = 1 + fields.sizes + sizes_of(_deltas(np.arange(rows), starts)) + _widest_timestamp(fields.timestamps_ms)
    ends = sums(bodies + sizes_of(bodies))
    result = []
    for start, stop in pairwise([*starts, rows]):
        while start < stop:
            result.append(start)
            fitting = int(np.searchsorted(ends, ends[start] + limit - HEADER_SIZE, side="right")) - 1
            start = max(fitting, start + 1)
    return result


def _may_exceed(fields: Fields, starts: Sequence[int], limit: int) -> bool:
    """Whether a batch from one of ``starts`` to the next may be too large: a rough look, for the usual case."""
    bounds = np.array([*starts, len(fields.sizes)])
    sizes = np.diff(sums(fields.sizes)[bounds]) + _MOST_BEFORE * np.diff(bounds)
    return bool((sizes + HEADER_SIZE > limit).any())


def encode_fields(fields: Fields, starts: Sequence[int], now_ms: int, codec: Codec) -> Iterator[Batch]:
    """Encode all the rows at once, and yield a batch from each of ``starts`` to the next."""
    data, ends = _encoded(fields, starts)
    bases, tops = _timestamps(fields.timestamps_ms, starts, now_ms)
    bounds = [*starts, len(fields.sizes)]
    for n, (start, stop) in enumerate(pairwise(bounds)):
        first, size = int(ends[start]), int(ends[stop] - ends[start])
        packed = codec.compress(data.slice(first, size))
        yield Batch(packed, stop - start, HEADER_SIZE + size, codec.number, bases[n], tops[n])


def _encoded(fields: Fields, starts: Sequence[int]) -> tuple[pa.Buffer, Numbers]:
    """The bytes of all records one behind the other, and where each ends, with a 0 before the first."""
    times = fields.timestamps_ms
    behind = [] if times is None else varints(_deltas(times, starts))
    behind += varints(_deltas(np.arange(len(fields.sizes)), starts))
    zero_bytes = 1 if behind[1:] else 2  # the attributes, and the timestamp's delta if there are no timestamps
    bodies = fields.sizes + zero_bytes
    for piece in behind:
        bodies += piece.sizes
    (length,) = varints(bodies)
    ends = sums(bodies + length.sizes)
    return interleaved([zeros(length, zero_bytes), *behind, *fields.parts], int(ends[-1])), ends


def _timestamps(times: Numbers | None, starts: Sequence[int], now_ms: int) -> tuple[list[int], list[int]]:
    """The first and the largest timestamp of each batch."""
    if times is None or not starts:
        return [now_ms] * len(starts), [now_ms] * len(starts)
    return times[list(starts)].tolist(), np.maximum.reduceat(times, starts).tolist()


def _widest_timestamp(times: Numbers | None) -> int:
    """How many bytes no timestamp's delta exceeds, in whatever batch."""
    if times is None or not len(times):
        return 1
    apart = int(times.max()) - int(times.min())
    return int(sizes_of(np.array([apart, -apart])).max())


def _deltas(numbers: Numbers, starts: Sequence[int]) -> Numbers:
    """What each number is above that of the first row of its batch."""
    firsts: Numbers = np.repeat(numbers[list(starts)], np.diff([*starts, len(numbers)]))
    return numbers - firsts
