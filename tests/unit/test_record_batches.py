"""Record batches from columns: the bytes of kafka-python's builder, and what its reader finds in them."""

from __future__ import annotations

import random
import struct
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords
from kafka.record.util import calc_crc32c

from exactly_once.kafka.produce import varints as varints_module
from exactly_once.kafka.produce.compression import NUMBERS, Codec
from exactly_once.kafka.produce.partitioning import split_by_partition, spread
from exactly_once.kafka.produce.record_batches import HEADER_SIZE, Batch, encode, encode_by_partition, seal
from exactly_once.kafka.produce.records import Records
from exactly_once.kafka.produce.varints import sizes_of, varints
from tests.support.record_rows import NOW_MS, Row, as_records, random_rows

PRODUCER = (4711, 3, 77)

#: A batch of one row, some, and so many that offsets take two bytes and three.
COUNTS = (1, 7, 100, 9_000)


def of_kafka_python(rows: list[Row]) -> bytes:
    """The same batch, record by record."""
    builder = DefaultRecordBatchBuilder(2, 0, True, *PRODUCER, batch_size=1 << 30)
    for offset, row in enumerate(rows):
        time = NOW_MS if row.timestamp_ms is None else row.timestamp_ms
        builder.append(offset, time, row.key, row.value, row.headers or [])
    built = bytearray(builder.build())
    built[12:16] = b"\xff" * 4  # the leader epoch that the Java client writes; not in the checksum
    return bytes(built)


def read(sealed: bytes) -> list[Row]:
    """What kafka-python's reader finds, after a check of the checksum."""
    batch = next(iter(MemoryRecords(sealed)))
    assert isinstance(batch, DefaultRecordBatch) and batch.validate_crc()
    assert batch.is_transactional and batch.timestamp_type == 0
    return [Row(r.key, r.value, r.headers, r.timestamp) for r in batch]


def as_read(rows: list[Row]) -> list[Row]:
    """The rows with what a reader cannot tell apart: no headers and null, no timestamp and that of sending."""
    return [Row(r.key, r.value, r.headers or [], NOW_MS if r.timestamp_ms is None else r.timestamp_ms) for r in rows]


def plain(batch: Batch, codec: str) -> bytes:
    """Undo the compression by the means of the tests: kafka-python has no snappy and zstd of its own."""
    packed = bytes(memoryview(batch.records))
    if codec == "zstd":
        return bytes(pa.CompressedInputStream(pa.BufferReader(packed), "zstd").read())
    assert packed[:8] == b"\x82SNAPPY\0" and struct.unpack(">ii", packed[8:16]) == (1, 1)
    blocks, at = [], 16
    while at < len(packed):
        size = int.from_bytes(packed[at : at + 4], "big")
        block = packed[at + 4 : at + 4 + size]
        length = _varint(block)
        blocks.append(pa.Codec("snappy").decompress(block, length, asbytes=True))
        at += 4 + size
    return b"".join(blocks)


def _varint(data: bytes) -> int:
    number = 0
    for n, byte in enumerate(data):
        number |= (byte & 0x7F) << 7 * n
        if byte < 0x80:
            break
    return number


@pytest.mark.parametrize("large", [False, True], ids=["32 bits", "64 bits"])
@pytest.mark.parametrize("seed", range(40))
def test_an_uncompressed_batch_is_byte_for_byte_that_of_another_client(seed: int, large: bool) -> None:
    """Guards against a batch that the broker takes and a consumer reads otherwise."""
    rows = random_rows(seed, COUNTS[seed % len(COUNTS)] if seed < 8 else 60)
    assert seal(encode(as_records(rows, large), NOW_MS, Codec()), *PRODUCER) == of_kafka_python(rows)


@pytest.mark.parametrize("seed", range(4))
def test_more_data_than_offsets_of_32_bits_hold_gives_the_same_batch(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against offsets that overflow where 2 GiB of rows come together; here the border is 50 bytes."""
    rows = random_rows(seed, 60)
    monkeypatch.setattr(varints_module, "_MOST_DATA", 50)
    assert seal(encode(as_records(rows), NOW_MS, Codec()), *PRODUCER) == of_kafka_python(rows)


@pytest.mark.parametrize("codec", ["none", "gzip", "lz4"])
@pytest.mark.parametrize("seed", range(6))
def test_a_batch_is_read_back_as_it_was(codec: str, seed: int) -> None:
    """Guards against a codec that only its own library reads."""
    rows = random_rows(seed, 300)
    assert read(seal(encode(as_records(rows), NOW_MS, Codec(codec)), *PRODUCER)) == as_read(rows)


@pytest.mark.parametrize("codec", ["snappy", "zstd"])
def test_what_is_compressed_is_the_uncompressed_batch(codec: str) -> None:
    """Guards against a block that is lost at a border; Kafka's own reader reads these in test_java_batches.py."""
    for seed in range(6):
        records = as_records(random_rows(seed, 300))
        batch = encode(records, NOW_MS, Codec(codec))
        assert plain(batch, codec) == bytes(memoryview(encode(records, NOW_MS, Codec()).records))
        assert batch.codec == NUMBERS[codec]


def test_an_lz4_frame_has_independent_blocks_of_64_kib() -> None:
    """Guards against linked blocks, which Kafka's Java reader refuses, and so every Java consumer."""
    frame = encode(Records(None, pa.array([b"x" * 300_000])), NOW_MS, Codec("lz4")).records
    magic, flags, size = struct.unpack_from("<IBB", frame)
    assert magic == 0x184D2204
    assert flags == 0b01_1_00000  # version 1, independent, no checksum of blocks or content, no size
    assert size >> 4 == 4


@pytest.mark.parametrize(
    ("name", "level"), [("gzip", 1), ("gzip", 9), ("gzip", -1), ("lz4", 1), ("lz4", 9), ("lz4", 17), ("zstd", -5)]
)
def test_every_level_of_kafka_is_taken(name: str, level: int) -> None:
    """Guards against a level that is Kafka's and not the library's."""
    records = as_records(random_rows(3, 100))
    assert encode(records, NOW_MS, Codec(name, level)).size == encode(records, NOW_MS, Codec()).size


@pytest.mark.parametrize(("name", "level"), [("brotli", None), ("gzip", 0), ("lz4", 18), ("zstd", 23), ("snappy", 1)])
def test_a_codec_or_level_that_kafka_does_not_have_is_refused(name: str, level: int | None) -> None:
    """Guards against a mistake in an option that shows only in the first task."""
    with pytest.raises(ValueError, match=r"codec|levels"):
        Codec(name, level)


def test_the_same_batch_may_be_sealed_for_another_producer() -> None:
    """Guards against a checksum or a sequence of the first try in the second."""
    batch = encode(as_records(random_rows(1, 50)), NOW_MS, Codec("lz4"))
    for producer in ((1, 0, 0), (2**40, 32_767, 2**31 - 1)):
        found = next(iter(MemoryRecords(seal(batch, *producer))))
        assert found.validate_crc()
        assert (found.producer_id, found.producer_epoch, found.base_sequence) == producer
    assert not next(iter(MemoryRecords(seal(batch, *PRODUCER, transactional=False)))).is_transactional


def test_sliced_columns_give_their_own_rows() -> None:
    """Guards against the rows of a neighbour: Arrow's slices share their data."""
    rows = random_rows(2, 200)
    for start, count in ((0, 1), (13, 150), (199, 1)):
        sealed = seal(encode(as_records(rows).slice(start, count), NOW_MS, Codec()), *PRODUCER)
        assert sealed == of_kafka_python(rows[start : start + count])
    order = np.random.default_rng(1).permutation(200)
    sealed = seal(encode(as_records(rows).take(order), NOW_MS, Codec()), *PRODUCER)
    assert sealed == of_kafka_python([rows[n] for n in order])


@pytest.mark.parametrize("seed", range(20))
def test_each_partition_gets_its_rows_in_order_and_no_batch_is_too_large(seed: int) -> None:
    """Guards against rows that change places or partitions, and a batch that the broker refuses for its size."""
    rng = random.Random(seed)
    rows = random_rows(seed, rng.choice([1, 50, 500]))
    partitions = np.array([rng.randrange(rng.choice([1, 5, 70_000])) for _ in rows], np.int32)
    limit = rng.choice([100, 1_000, 5_000, 1 << 20])
    written: dict[int, list[Row]] = {}
    for partition, batch in encode_by_partition(as_records(rows), partitions, NOW_MS, Codec(), limit):
        sealed = seal(batch, *PRODUCER)
        assert len(sealed) == batch.size and (batch.size <= limit or batch.count == 1)
        found = read(sealed)
        assert sealed == of_kafka_python(found)
        written.setdefault(partition, []).extend(found)
    expected: dict[int, list[Row]] = {}
    for partition, row in zip(partitions.tolist(), as_read(rows), strict=True):
        expected.setdefault(partition, []).append(row)
    assert written == expected


def test_batches_are_as_large_as_the_limit_lets_them_be() -> None:
    """Guards against many small batches, for each of which the broker works as long as for a large one."""
    records = Records(None, pa.array([b"x" * 100] * 1_000))
    sizes = [b.size for _, b in encode_by_partition(records, np.zeros(1_000, np.int32), NOW_MS, Codec(), 10_000)]
    assert all(size > 9_800 for size in sizes[:-1]) and len(sizes) == 12  # of 90 rows


def test_a_row_without_a_partition_is_refused() -> None:
    """Guards against the -1 of a row without a key, written as the last partition."""
    with pytest.raises(ValueError, match="no partition"):
        split_by_partition(np.array([0, -1], np.int32))


def test_no_rows_are_no_batches() -> None:
    """Guards against an empty batch, which the broker refuses."""
    none = Records(None, pa.array([], pa.binary()))
    assert list(encode_by_partition(none, np.array([], np.int32), NOW_MS, Codec(), 1_000)) == []


def test_a_split_names_the_rows_of_each_partition() -> None:
    split = split_by_partition(np.array([2, 0, 2, 1, 0]))
    assert [(p, rows.tolist()) for p, rows in split] == [(0, [1, 4]), (1, [3]), (2, [0, 2])]


def test_few_rows_without_a_key_stay_in_one_batch_and_many_go_everywhere() -> None:
    """Guards against a batch for each row: on a slow topic, or on one of many partitions."""
    few, last = spread(10, 1_000, 8, 3)
    assert few.tolist() == [4] * 10 and last == 4
    some, last = spread(9, 3 * 16_384, 8, 6)
    assert some.tolist() == [7] * 3 + [0] * 3 + [1] * 3 and last == 1
    many, last = spread(100, 1 << 30, 4, 0)
    assert np.bincount(many).tolist() == [25] * 4 and (np.diff(many) != 0).sum() == 3 and last == 0
    assert spread(0, 0, 4, 2)[1] == 2


@pytest.mark.parametrize("bits", range(64))
def test_varints_of_every_width_are_java_s(bits: int) -> None:
    """Guards against timestamps far apart, whose varints do not fit in one word."""
    top = (1 << bits) - 1
    numbers = [n for n in (0, -1, top, -top, top // 2, -(top // 2) - 1) if -(1 << 63) <= n < 1 << 63]
    columns = [[p.column.array[2 * n].as_py() for n in range(len(numbers))] for p in varints(np.array(numbers))]
    for n, number in enumerate(numbers):
        unsigned, expected = (number << 1) ^ (number >> 63), bytearray()
        while unsigned > 0x7F:
            expected.append(unsigned & 0x7F | 0x80)
            unsigned >>= 7
        expected.append(unsigned)
        assert b"".join(column[n] for column in columns) == bytes(expected)
        assert sizes_of(np.array(numbers))[n] == len(expected)


def test_timestamps_far_apart_are_kept() -> None:
    """Guards against a varint of nine bytes that is cut to eight."""
    rows = [Row(b"k", b"v", None, t) for t in (1, 2**62, 0, 2**62 + 5)]
    assert seal(encode(as_records(rows), NOW_MS, Codec()), *PRODUCER) == of_kafka_python(rows)


def test_headers_hidden_behind_a_null_are_not_sent() -> None:
    """Guards against what Arrow may keep below a null: its bytes are nobody's."""
    offsets = pa.array([0, 1, 2, 3], pa.int32())
    elements = pa.array(
        [{"key": k, "value": k.encode()} for k in "abc"], pa.struct([("key", "string"), ("value", "binary")])
    )
    headers = pa.ListArray.from_arrays(offsets, elements, mask=pa.array([False, True, False]))
    records = Records(None, pa.array([b"1", b"2", b"3"]), headers)
    rows = [Row(None, b"1", [("a", b"a")]), Row(None, b"2"), Row(None, b"3", [("c", b"c")])]
    assert seal(encode(records, NOW_MS, Codec()), *PRODUCER) == of_kafka_python(rows)


def test_the_checksum_covers_all_from_the_attributes_on() -> None:
    """Guards against a checksum that happens to agree with the reader of the tests alone."""
    sealed = seal(encode(as_records(random_rows(4, 20)), NOW_MS, Codec()), *PRODUCER)
    assert struct.unpack_from(">I", sealed, 17)[0] == calc_crc32c(memoryview(sealed)[21:])
    assert HEADER_SIZE == 61


PROBE = """
import sys
import numpy as np
import pyarrow as pa
from exactly_once.digest import RowDigest
from exactly_once.kafka.produce.compression import Codec
from exactly_once.kafka.produce.murmur2 import partitions_of
from exactly_once.kafka.produce.record_batches import encode_by_partition, seal
from exactly_once.kafka.produce.records import Records, digest_columns
offsets, data = pa.py_buffer(np.array([0, 1, 3], np.int32)), pa.py_buffer(b"abc")
for valid in (None, pa.py_buffer(b"\\x01")):
    cells = pa.Array.from_buffers(pa.binary(), 2, [valid, offsets, data])
    rows = Records(cells, cells)
    digest_columns(RowDigest(), "t", rows)
    batches = encode_by_partition(rows, partitions_of(rows.keys, 3) % 3, 1, Codec("lz4"), 100_000)
    print(rows.bytes, sum(len(seal(batch, 1, 1, 0)) for _, batch in batches) > 0, "pandas" in sys.modules)
"""


def test_keys_and_values_are_encoded_without_pandas() -> None:
    """Guards against half a second of imports in each worker process before its first record: an innocent call of
    Arrow's, such as ``fill_null``, imports pandas.
    """
    said = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=60, check=True).stdout
    assert said.splitlines() == ["6 True False", "2 True False"]
