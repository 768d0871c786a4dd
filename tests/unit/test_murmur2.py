"""The hash that chooses partitions: the Java client's, for columns of keys of all lengths."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from kafka.partitioner.default import murmur2 as of_kafka_python

from exactly_once.kafka.produce.murmur2 import murmur2, partitions_of

#: From the Java client's own UtilsTest.
JAVA = {
    "21": -973932308,
    "foobar": -790332482,
    "a-little-bit-long-string": -985981536,
    "a-little-bit-longer-string": -1486304829,
    "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    "abc": 479470107,
}


def expected(key: bytes) -> int:
    """kafka-python's hash, with a sign as Java's."""
    return ((of_kafka_python(key) & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000


def keys_of(seed: int, count: int, longest: int) -> list[bytes]:
    rng = random.Random(seed)
    return [rng.randbytes(rng.randint(0, longest)) for _ in range(count)]


def test_the_hashes_are_those_of_the_java_clients_own_test() -> None:
    """Guards against a hash that agrees only with another copy of the same mistake."""
    assert murmur2(pa.array([key.encode() for key in JAVA])).tolist() == list(JAVA.values())


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()], ids=str)
@pytest.mark.parametrize("longest", [3, 8, 40, 300])
def test_keys_of_mixed_lengths_hash_as_one_by_one(kind: pa.DataType, longest: int) -> None:
    """Guards against a key that reads into its neighbour, or loses its last bytes."""
    keys = keys_of(longest, 500, longest)
    assert murmur2(pa.array(keys, kind)).tolist() == [expected(key) for key in keys]


@pytest.mark.parametrize("length", range(14))
def test_keys_of_one_length_hash_as_one_by_one(length: int) -> None:
    """Guards against a fast path of its own hash."""
    rng = random.Random(length)
    keys = [rng.randbytes(length) for _ in range(100)]
    assert murmur2(pa.array(keys)).tolist() == [expected(key) for key in keys]


def test_a_few_keys_and_very_long_ones_hash_the_same() -> None:
    """Guards against a way for long keys that begins at the wrong word."""
    rng = random.Random(5)
    for keys in ([b"x"], [b""], [b"", b"a"], [rng.randbytes(100_001)], [rng.randbytes(4_000), *keys_of(6, 200, 20)]):
        assert murmur2(pa.array(keys)).tolist() == [expected(key) for key in keys]


def test_a_slice_of_a_column_hashes_its_own_keys() -> None:
    """Guards against the keys of other rows: Arrow's slices share the data of the whole column."""
    keys = keys_of(7, 300, 30)
    for start, count in ((0, 0), (0, 300), (1, 299), (17, 100), (299, 1)):
        found = murmur2(pa.array(keys).slice(start, count)).tolist()
        assert found == [expected(key) for key in keys[start : start + count]]


def test_a_partition_is_that_of_the_java_client_and_null_has_none() -> None:
    """Guards against a key that changes its partition with the sink that writes it."""
    keys: list[bytes | None] = [*keys_of(8, 200, 20), None, b"", None]
    for partitions in (1, 2, 3, 8, 100, 1_000):
        of_java = [-1 if key is None else (expected(key) & 0x7FFFFFFF) % partitions for key in keys]
        assert partitions_of(pa.array(keys), partitions).tolist() == of_java
