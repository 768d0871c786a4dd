"""``python -m benchmarks.encoding``: what a record costs from Arrow columns to sealed record batches, and its digest.

No Spark and no broker: one process, the best of many runs, as a busy machine is only ever slower.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from exactly_once.digest import RowDigest
from exactly_once.kafka.produce.compression import NUMBERS, Codec
from exactly_once.kafka.produce.murmur2 import partitions_of
from exactly_once.kafka.produce.record_batches import encode, encode_by_partition, seal
from exactly_once.kafka.produce.records import Records

PARTITIONS = 8

#: The broker's default for the largest batch; the codecs are measured with batches that are nearly full.
LIMIT = 1_000_000

NOW_MS = 1_767_225_600_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=30)
    args = parser.parse_args()

    def show(what: str, work: Callable[[], object]) -> None:
        print(f"{what:44} {_best(work, args.repeats) * 1e9 / args.rows:7.1f}", flush=True)

    records = _records(args.rows)
    print(f"{args.rows:,} records, 8 B keys, 100 B values{'':7} ns a record")
    show("partitions of the keys", lambda: partitions_of(records.keys, PARTITIONS))
    show("one batch, encoded and sealed", lambda: seal(encode(records, NOW_MS, Codec()), 1, 0, 0))
    for name in NUMBERS:
        show(f"{PARTITIONS} partitions, encoded and sealed, {name}", lambda name=name: _all(records, Codec(name)))  # type: ignore[misc]
    times = NOW_MS + np.arange(len(records), dtype=np.int64)
    headed = Records(records.keys, records.values, _headers(len(records)), times)
    show(f"{PARTITIONS} partitions, headers and timestamps, none", lambda: _all(headed, Codec()))
    show("digest, from columns", lambda: RowDigest().add_columns(records.keys, records.values))
    show("digest, from lists of all rows", lambda: _listed(records))


def _all(records: Records, codec: Codec) -> list[bytes]:
    """Do all that a task does on the way to its requests."""
    partitions = partitions_of(records.keys, PARTITIONS)
    batches = encode_by_partition(records, partitions, NOW_MS, codec, LIMIT)
    return [seal(batch, 1, 0, 0) for _, batch in batches]


def _listed(records: Records) -> None:
    assert records.keys is not None
    RowDigest().add_pairs(records.keys.to_pylist(), records.values.to_pylist())


def _best(work: Callable[[], object], repeats: int) -> float:
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def _records(rows: int) -> Records:
    """Rows with values like JSON, of which a codec makes about a third."""
    rng = random.Random(1)
    keys = [b"%08d" % rng.randrange(10**8) for _ in range(rows)]
    values = [b'{"id": %09d, "amount": %07d, "currency": "EUR"' % (n, rng.randrange(10**7)) for n in range(rows)]
    return Records(pa.array(keys), pa.array([value.ljust(99) + b"}" for value in values]))


def _headers(rows: int) -> pa.Array:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    return pa.array([[{"key": "source", "value": b"benchmark"}]] * rows, kind)


if __name__ == "__main__":
    main()
