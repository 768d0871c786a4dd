"""The digest of a part: what must change it, and what must not."""

from __future__ import annotations

import json
import random
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from exactly_once.digest import RowDigest
from exactly_once.participants.kafka.digest_scope import CHOOSE, NOW, add_read, place_of
from testkit.stream import ROOT

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


# -- the forms of a part's digest -------------------------------------------------------------------------------------

VECTORS = json.loads((ROOT / "tests" / "data" / "digests.json").read_text())


def parse(cell: str | None) -> bytes | None:
    return None if cell is None else bytes.fromhex(cell)


def headers_of(row: dict[str, Any]) -> list[tuple[str, bytes | None]]:
    return [(key, parse(value)) for key, value in row["headers"]]


@pytest.mark.parametrize("vector", VECTORS, ids=[v["name"] for v in VECTORS])
def test_what_a_reader_gets_has_the_sum_of_the_rows(vector: dict[str, Any]) -> None:
    """Guards against a verification that calls a part corrupt: a reader always gets a partition and a timestamp."""
    digest = RowDigest()
    for r in vector["rows"]:
        read = SimpleNamespace(
            key=parse(r["key"]),
            value=parse(r["value"]),
            headers=headers_of(r),
            timestamp=77 if r["timestamp_ms"] is None else r["timestamp_ms"],
        )
        add_read(digest, vector["form"], r["topic"], r["partition"] if r["partition"] >= 0 else 5, [read])
    assert digest.text == vector["digest"]


#: Of an older version: topic "t", key "k", value "v", one header.
OF_BEFORE = {
    "topic": "68e712cefe4ad48f",
    "topic+partition": "0c54269f246b5ea8",
    "topic+timestamp": "6d30703a7a1abb51",
    "topic+partition+timestamp": "d5c71acac6e6f399",
}


@pytest.mark.parametrize("form", OF_BEFORE)
def test_a_decision_of_before_is_still_verified(form: str) -> None:
    """Guards against an upgrade after which verify calls every kept part of such a stream corrupt."""
    digest = RowDigest()
    read = SimpleNamespace(key=b"k", value=b"v", headers=[("h", None)], timestamp=1_700_000_000_000)
    add_read(digest, form, "t", 3, [read])
    assert digest.text == OF_BEFORE[form]


def test_places_are_kept_apart() -> None:
    """Guards against a header that is taken for a part of another, and a null value for an empty one."""
    places = [
        [("a", b"b")],
        [("ab", b"")],
        [("ab", None)],
        [("", b"ab")],
        [("a", None), ("b", None)],
        [("a", b""), ("b", b"")],
        None,
    ]
    assert len({place_of(CHOOSE, headers, NOW) for headers in places}) == len(places)
    assert place_of(3, [("\u00e4", None)], 1) == bytes.fromhex("00000003000000000000000100000002c3a4ffffffff")
