"""Reads a partition batch by batch, as its leader keeps it: producers, epochs, end markers, and what readers see of it.

A read_committed reader filters by a list of aborted transactions that the leader sends; the end markers in the log say
what really happened. This module tells both, so that a caller can compare them. Reads with kafka-python.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from kafka.record.default_records import DefaultRecordBatch

from exactly_once.errors import BrokerRefused
from exactly_once.kafka.admin import Admin, Partition
from exactly_once.txn.fetch import READ_COMMITTED, READ_UNCOMMITTED, fetch

#: Bytes that are read at once: large enough that the round trip does not count, small enough that memory stays flat.
MANY_BYTES = 8 * 1024 * 1024

#: Budget of one such answer.
_FETCH_S = 30.0

#: Places in a batch of records: of its size, of its format, of its attributes (with the bits in these that name the
#: codec), and of its first record (KIP-98).
_SIZE, _MAGIC, _ATTRIBUTES, _CODEC_BITS, _HEADER = 8, 16, 21, 0x07, 61
_SNAPPY, _CODECS = 2, {1: "gzip", 3: "lz4", 4: "zstd"}

#: Beginning of snappy-java's stream, and the number of bytes before its blocks.
_XERIAL, _XERIAL_HEADER = b"\x82SNAPPY\x00", 16


@dataclass(frozen=True, slots=True)
class LogBatch:
    """A batch of records of one producer, or an end marker.

    Attributes
    ----------
    topic, partition
    base_offset, last_offset : int
    producer_id, epoch : int
        -1 without an idempotent producer.
    transactional : bool
    marker : bool or None
        None: records. True: the end marker of a commit, False: of an abort.
    hidden : bool
        A read_committed reader leaves these records out, or does not come to them yet.
    stable : bool
        The batch is before the last stable offset.
    timestamp_ms : int
        The largest in the batch; of a marker the time at which its partition's leader wrote it.
    dated_by_broker : bool
        The topic's leaders replace the timestamps of records (LogAppendTime).
    count : int
        The number of its records.
    """

    topic: str
    partition: int
    base_offset: int
    last_offset: int
    producer_id: int
    epoch: int
    transactional: bool
    marker: bool | None
    hidden: bool
    stable: bool
    timestamp_ms: int
    dated_by_broker: bool
    count: int
    raw: bytes = field(repr=False)

    @property
    def where(self) -> Partition:
        """Its topic and partition."""
        return self.topic, self.partition

    def records(self) -> Iterator[Any]:
        """Decode the records: kafka-python's, with ``offset``, ``timestamp``, ``key``, ``value`` and ``headers``; raise
        BrokerRefused when this process lacks the codec.
        """
        head = bytearray(self.raw[:_HEADER])
        (attributes,) = struct.unpack_from(">h", head, _ATTRIBUTES)
        struct.pack_into(">h", head, _ATTRIBUTES, attributes & ~_CODEC_BITS)
        yield from DefaultRecordBatch(bytes(head) + self.payload())

    def payload(self) -> bytes:
        """Return the bytes of the records, one after the other, decompressed; raise BrokerRefused when this process
        lacks the codec.
        """
        codec, packed = self.raw[_ATTRIBUTES + 1] & _CODEC_BITS, self.raw[_HEADER:]
        if not codec:
            return packed
        try:
            if codec == _SNAPPY:
                return _unsnap(packed)
            with pa.input_stream(pa.py_buffer(packed), compression=_CODECS[codec]) as stream:
                return bytes(stream.read())
        except (KeyError, pa.ArrowNotImplementedError) as e:
            raise BrokerRefused(
                f"{self.topic}-{self.partition} holds records compressed with a codec that Arrow cannot read here "
                f"({e})",
                "Install pyarrow as PyPI has it, and run the command again",
            ) from e


def batches(
    admin: Admin, where: Partition, start: int, stable: int, end: int, at_once: int = MANY_BYTES
) -> Iterator[LogBatch]:
    """Yield the batches of a partition in their order, from the one that holds ``start`` on.

    Parameters
    ----------
    stable, end : int
        The last stable offset and the high watermark that the caller knows; nothing at or after ``end`` is yielded.
    at_once : int
        Bytes in memory: for a caller that reads many partitions at the same time.

    Raises BrokerUnreachable, NotAuthorized or UnknownTopic.
    """
    hides = _Hidden()
    for until, isolation in ((min(stable, end), READ_COMMITTED), (end, READ_UNCOMMITTED)):
        while start < until:
            answer = fetch(admin.renew(_FETCH_S), where, start, isolation, at_once)
            hides.learn(answer.aborted_transactions)
            before = start
            for raw, head in _behind(answer, start):
                if head.base_offset >= until:
                    start = until
                    break
                start = head.next_offset
                yield _batch(where, head, raw, hides, isolation == READ_COMMITTED)
            if start == before:  # compaction has removed all records to the end
                start = until


def committed(admin: Admin, where: Partition, start: int) -> Iterator[tuple[list[LogBatch], int]]:
    """Yield what a read_committed reader can see from ``start`` on, answer by answer: the batches, hidden ones and end
    markers too, and the offset up to which it has seen all; with the last one, the last stable offset. Has the budget
    and the errors of ``admin``.
    """
    hides, ended = _Hidden(), False
    while not ended:
        answer = fetch(admin, where, start, READ_COMMITTED, MANY_BYTES)
        hides.learn(answer.aborted_transactions)
        before, stable, seen = start, int(answer.last_stable_offset), list[LogBatch]()
        for raw, head in _behind(answer, start):
            start = head.next_offset
            seen.append(_batch(where, head, raw, hides, True))
        ended = start >= stable or start == before  # compaction may have removed all records to the end
        yield seen, max(start, stable) if ended else start


class _Hidden:
    """The transactions that a read_committed reader leaves out.

    As Kafka's consumer does, by the leader's list of aborted ones.
    """

    def __init__(self) -> None:
        self._listed: set[tuple[int, int]] = set()  # (first offset, producer id)
        self._aborted: set[int] = set()

    def learn(self, aborted: Any) -> None:
        self._listed |= {(t.first_offset, t.producer_id) for t in aborted or ()}

    def hides(self, head: Any, marker: bool | None) -> bool:
        """Return whether the reader leaves the batch out; call it once for each batch, in their order."""
        if self._listed:
            begun = {entry for entry in self._listed if entry[0] <= head.last_offset}
            self._listed -= begun
            self._aborted |= {producer_id for _, producer_id in begun}
        if marker is not None:
            if not marker:
                self._aborted.discard(head.producer_id)
            return False
        return head.is_transactional and head.producer_id in self._aborted


def _behind(answer: Any, start: int) -> Iterator[tuple[bytes, DefaultRecordBatch]]:
    """Yield the batches of an answer of which something is at or after ``start``: a leader begins with a whole one."""
    for raw in _slices(bytes(answer.records or b"")):
        head = DefaultRecordBatch(raw)
        if head.next_offset > start:
            yield raw, head


def _slices(answer: bytes) -> Iterator[bytes]:
    """Yield the whole batches of an answer, which may end within one.

    Batches of before Kafka 0.11 know no producer.
    """
    at = 0
    while at + _HEADER <= len(answer):
        (size,) = struct.unpack_from(">i", answer, at + _SIZE)
        end = at + _SIZE + 4 + size
        if end > len(answer):
            return
        if answer[at + _MAGIC] == 2:
            yield answer[at:end]
        at = end


def _batch(where: Partition, head: Any, raw: bytes, hides: _Hidden, stable: bool) -> LogBatch:
    marker = bool(next(iter(DefaultRecordBatch(raw))).commit) if head.is_control_batch else None
    return LogBatch(
        *where,
        base_offset=head.base_offset,
        last_offset=head.last_offset,
        producer_id=head.producer_id,
        epoch=head.producer_epoch,
        transactional=head.is_transactional,
        marker=marker,
        hidden=hides.hides(head, marker) or (not stable and marker is None),
        stable=stable,
        timestamp_ms=head.max_timestamp,
        dated_by_broker=bool(head.timestamp_type),
        count=head.records_count,
        raw=raw,
    )


def _unsnap(packed: bytes) -> bytes:
    if not packed.startswith(_XERIAL):
        return _one_block(packed)
    blocks, at = [], _XERIAL_HEADER
    while at < len(packed):
        size = int.from_bytes(packed[at : at + 4], "big")
        blocks.append(_one_block(packed[at + 4 : at + 4 + size]))
        at += 4 + size
    return b"".join(blocks)


def _one_block(block: bytes) -> bytes:
    size, shift = 0, 0
    for byte in block:  # a varint has the unpacked length
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    unpacked: bytes = pa.Codec("snappy").decompress(block, size, asbytes=True)
    return unpacked
