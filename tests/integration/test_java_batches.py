"""Kafka's own Java client takes our record batches for its own: no broker, only its classes in a JVM."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from exactly_once.kafka.produce.compression import LEVELS, NUMBERS, Codec
from exactly_once.kafka.produce.murmur2 import partitions_of
from exactly_once.kafka.produce.record_batches import encode, encode_by_partition, seal
from tests.support.java import running_java
from tests.support.record_rows import NOW_MS, Row, as_records, random_rows

PRODUCER = (4711, 3, 77)
SEEDS = range(6)
ROWS = 40


@pytest.fixture(scope="module")
def jvm() -> Iterator[Any]:
    with running_java() as java:
        yield java


def builder(jvm: Any) -> Any:
    """The Java client's builder of a batch without compression, as its producer makes one."""
    java = jvm.jvm
    return java.org.apache.kafka.common.record.internal.MemoryRecords.builder(
        java.java.nio.ByteBuffer.allocate(1 << 16),
        java.org.apache.kafka.common.compress.Compression.NONE,
        0,
        *PRODUCER,
        True,
    )


def built(jvm: Any, by: Any) -> bytes:
    return bytes(jvm.jvm.org.apache.kafka.common.utils.Utils.toArray(by.build().buffer()))


def of_java(jvm: Any, rows: list[Row]) -> bytes:
    """The batch that the Java client makes of the rows."""
    header = jvm.jvm.org.apache.kafka.common.header
    result = builder(jvm)
    for row in rows:
        headers = jvm.new_array(header.Header, len(row.headers or []))
        for n, (key, value) in enumerate(row.headers or []):
            headers[n] = header.internals.RecordHeader(key, value)
        result.append(NOW_MS if row.timestamp_ms is None else row.timestamp_ms, row.key, row.value, headers)
    return built(jvm, result)


def copied_by_java(jvm: Any, sealed: bytes) -> bytes:
    """Read a batch with the Java client, which checks it, and write its records as a batch without compression."""
    java = jvm.jvm
    records = java.org.apache.kafka.common.record.internal.MemoryRecords.readableRecords(
        java.java.nio.ByteBuffer.wrap(sealed)
    )
    batches = records.batches().iterator()
    batch = batches.next()
    assert not batches.hasNext()
    batch.ensureValid()
    result, found = builder(jvm), batch.iterator()
    while found.hasNext():
        result.append(found.next())
    return built(jvm, result)


@pytest.mark.parametrize("seed", SEEDS)
def test_an_uncompressed_batch_is_bit_for_bit_the_java_clients(jvm: Any, seed: int) -> None:
    """Guards against a batch that consumers of another language read otherwise."""
    rows = random_rows(seed, ROWS)
    assert seal(encode(as_records(rows), NOW_MS, Codec()), *PRODUCER) == of_java(jvm, rows)


@pytest.mark.parametrize(
    ("codec", "level"),
    [*((codec, None) for codec in NUMBERS), *((codec, level) for codec in LEVELS for level in (1, 6))],
)
def test_the_java_client_reads_every_codec(jvm: Any, codec: str, level: int | None) -> None:
    """Guards against a batch that the broker refuses, or that no Java consumer gets past."""
    for seed in SEEDS:
        records = as_records(random_rows(seed, ROWS))
        plain = seal(encode(records, NOW_MS, Codec()), *PRODUCER)
        packed = seal(encode(records, NOW_MS, Codec(codec, level)), *PRODUCER)
        assert copied_by_java(jvm, packed) == plain


@pytest.mark.parametrize("codec", NUMBERS)
def test_the_java_client_reads_batches_of_many_blocks(jvm: Any, codec: str) -> None:
    """Guards against a mistake at the border of a block: of 32 KiB with Snappy, of 64 with LZ4."""
    rng = random.Random(9)
    rows = [Row(rng.randbytes(8), rng.randbytes(3_000) + b"x" * 3_000) for _ in range(70)]
    plain = seal(encode(as_records(rows), NOW_MS, Codec()), *PRODUCER)
    assert copied_by_java(jvm, seal(encode(as_records(rows), NOW_MS, Codec(codec)), *PRODUCER)) == plain


def test_the_java_client_reads_each_of_several_batches_at_once(jvm: Any) -> None:
    """Guards against one batch's bytes in the next: all are parts of one buffer."""
    rows = random_rows(2, 120)
    partitions = np.array([n % 3 for n in range(len(rows))])
    for partition, batch in encode_by_partition(as_records(rows), partitions, NOW_MS, Codec(), 1 << 20):
        assert seal(batch, *PRODUCER) == of_java(jvm, rows[partition::3])


def test_the_java_client_chooses_the_same_partitions(jvm: Any) -> None:
    """Guards against a key on one partition by this sink, on another by Spark's own."""
    rng = random.Random(4)
    keys = [rng.randbytes(rng.randint(0, 50)) for _ in range(200)]
    choose = jvm.jvm.org.apache.kafka.clients.producer.internals.BuiltInPartitioner.partitionForKey
    found = partitions_of(as_records([Row(key, None) for key in keys]).keys, 7)
    assert found.tolist() == [choose(key, 7) for key in keys]
