"""Random rows for the encoder of record batches, as Python values and as columns."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from exactly_once.kafka.produce.records import Records

NOW_MS = 1_767_225_600_000

Headers = list[tuple[str, bytes | None]]

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
LARGE_HEADERS = pa.large_list(pa.struct([("key", pa.large_string()), ("value", pa.large_binary())]))


@dataclass(frozen=True)
class Row:
    """One record."""

    key: bytes | None
    value: bytes | None
    headers: Headers | None = None
    timestamp_ms: int | None = None


def random_rows(seed: int, count: int) -> list[Row]:
    """Rows of which all have headers or none, and so on, as in columns; most of the values are short, some long."""
    rng = random.Random(seed)
    keyed, headed, timed = (rng.random() < 0.7 for _ in range(3))
    longest = rng.choice([10, 200, 20_000])
    return [
        Row(
            _bytes(rng, 40) if keyed else None,
            _bytes(rng, longest),
            _headers(rng) if headed else None,
            NOW_MS + rng.choice([0, 1, -50, rng.randint(-(10**6), 10**11)]) if timed else None,
        )
        for _ in range(count)
    ]


def _bytes(rng: random.Random, longest: int) -> bytes | None:
    return None if rng.random() < 0.1 else rng.choice(b"abc").to_bytes(1, "big") * rng.randint(0, longest)


def _headers(rng: random.Random) -> Headers | None:
    if rng.random() < 0.2:
        return None
    return [(rng.choice(["", "k", "\u00e4\u20ac", "k" * 70]), _bytes(rng, 100)) for _ in range(rng.randint(0, 3))]


def as_records(rows: list[Row], large: bool = False) -> Records:
    """The same as columns; absent where no row has a value for it. ``large``: with offsets of 64 bits."""
    kind = pa.large_binary() if large else pa.binary()
    headers = [r.headers and [{"key": k, "value": v} for k, v in r.headers] for r in rows]
    return Records(
        pa.array([r.key for r in rows], kind) if any(r.key is not None for r in rows) else None,
        pa.array([r.value for r in rows], kind),
        pa.array(headers, LARGE_HEADERS if large else HEADERS) if any(headers) else None,
        np.array([r.timestamp_ms for r in rows], np.int64) if rows and rows[0].timestamp_ms is not None else None,
    )
