"""The digest of a part: what must change it, and what must not."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from exactly_once.digest import RowDigest
from exactly_once.kafka.produce.records import CHOOSE, NOW, Records, digest_columns
from exactly_once.kafka.transaction import PartTransaction
from tests.support.record_rows import HEADERS

ROWS = [(f"k{n % 7}".encode(), f"v{n}".encode()) for n in range(100)]


def of(rows: list[tuple[bytes | None, bytes | None]], chunk: int = 100) -> str:
    digest = RowDigest()
    for first in range(0, len(rows), chunk):
        keys, values = zip(*rows[first : first + chunk], strict=True)
        digest.add_pairs(keys, values)
    return digest.text


def test_the_order_of_rows_and_their_chunks_do_not_change_it() -> None:
    """Guards against a replay that is refused only because shuffle blocks arrived in another order."""
    shuffled = random.Random(7).sample(ROWS, len(ROWS))
    assert of(ROWS) == of(shuffled) == of(shuffled, chunk=13)


@pytest.mark.parametrize(
    "other",
    [
        ROWS[1:],
        [*ROWS, ROWS[0]],
        [*ROWS[:-1], (ROWS[-1][0], b"other")],
        [(ROWS[1][0], ROWS[0][1]), (ROWS[0][0], ROWS[1][1]), *ROWS[2:]],
        [(None, ROWS[0][1]), *ROWS[1:]],
        [(ROWS[0][0], None), *ROWS[1:]],
        [(b"", ROWS[0][1]), *ROWS[1:]],
    ],
    ids=["a row less", "a row twice", "another value", "keys exchanged", "a null key", "a tombstone", "an empty key"],
)
def test_any_other_rows_have_another_digest(other: list[tuple[bytes | None, bytes | None]]) -> None:
    """Guards against a replay that writes other rows than were decided, unseen."""
    assert of(other) != of(ROWS)


def test_rows_without_any_key_have_one_too_and_null_is_not_empty() -> None:
    """Guards against a fast path for streams without keys that sums up other numbers than the slow one."""
    unkeyed: list[tuple[bytes | None, bytes | None]] = [(None, v) for _, v in ROWS]
    slow = RowDigest()
    for key, value in unkeyed:
        slow.add_pairs([key, b"x"], [value, b"x"])
    fast = RowDigest()
    keys, values = zip(*unkeyed, strict=True)
    fast.add_pairs(keys, values)
    for _ in unkeyed:
        fast.add_pairs([b"x"], [b"x"])
    assert fast.text == slow.text
    assert of([(None, b"")]) != of([(None, None)]) != of([(b"", None)])


def test_cells_of_a_row_are_kept_apart() -> None:
    """Guards against ("ab", "c") taken for ("a", "bc"), and a null in one column for a null in the next."""
    texts = set()
    for cells in [(b"ab", b"c"), (b"a", b"bc"), (b"abc", None), (None, b"abc"), (None, None), (b"", b"")]:
        digest = RowDigest()
        digest.add(*cells)
        texts.add(digest.text)
    assert len(texts) == 6


def test_an_arrow_batch_counts_every_column() -> None:
    """Guards against a column that is left out."""

    def batch(n: int) -> str:
        digest = RowDigest()
        digest.add_batch(pa.RecordBatch.from_pydict({"a": [1, 2], "b": ["x", None], "n": [0, n]}))
        return digest.text

    assert batch(1) != batch(2)


def cells(seed: int, count: int, nulls: float) -> list[bytes | None]:
    rng = random.Random(seed)
    return [None if rng.random() < nulls else rng.randbytes(rng.randint(0, 300)) for _ in range(count)]


@pytest.mark.parametrize("nulls", [0, 0.1, 1])
@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()], ids=str)
def test_columns_have_the_digest_of_their_rows(nulls: float, kind: pa.DataType) -> None:
    """Guards against a replay that is refused because it took another way to the producer than the lost part."""
    for count in (0, 1, 5_000):
        keys, values = cells(1, count, nulls), cells(2, count, nulls / 2)
        pairs, columns = RowDigest(), RowDigest()
        pairs.add_pairs(keys, values)
        columns.add_columns(pa.array([b"x", *keys], kind).slice(1), pa.array(values, kind))
        assert columns.text == pairs.text
    pairs, columns = RowDigest(), RowDigest()
    pairs.add_pairs([None] * len(values), values)
    columns.add_columns(None, pa.array(values, kind))
    assert columns.text == pairs.text


@pytest.mark.parametrize("nulls", [0, 0.1, 1])
def test_rows_with_places_have_the_digest_of_one_by_one(nulls: float) -> None:
    """Guards against the same, for rows with headers, partitions or timestamps."""
    keys, values = cells(3, 4_500, nulls), cells(4, 4_500, nulls / 2)
    places = [repr((n % 5 - 1, [("k", b"v")] if n % 3 else None, n)).encode() for n in range(4_500)]
    for absent in (False, True):
        slow, fast = RowDigest(), RowDigest()
        for key, value, place in zip(keys, values, places, strict=True):
            slow.add(b"topic", None if absent else key, value, place)
        fast.add_rows(b"topic", None if absent else pa.array(keys), pa.array(values), places)
        assert fast.text == slow.text


def test_rows_sent_as_columns_have_the_digest_of_rows_sent_one_by_one() -> None:
    """Guards against a lost part that is refused as different because it is written again by the other producer."""
    headers = pa.array([[{"key": "h", "value": b"1"}, {"key": "h", "value": None}], [], None], HEADERS)
    keys, values = pa.array([b"k", None, b""]), pa.array([b"v", b"", None])
    for rows in (
        Records(keys, values, headers, np.array([5, NOW, NOW]), np.array([3, CHOOSE, 0])),
        Records(None, values, None, None, np.array([CHOOSE, CHOOSE, 1])),
        Records(keys, values),
    ):
        columns, librdkafka = RowDigest(), object.__new__(PartTransaction)
        digest_columns(columns, "t", rows)
        librdkafka._digest, librdkafka.records, librdkafka.bytes = RowDigest(), 0, 0
        librdkafka._form = ""
        librdkafka._producer = SimpleNamespace(produce=lambda *_, **__: None)  # type: ignore[assignment]
        librdkafka.send_columns("t", rows)
        assert columns.text == librdkafka._digest.text
