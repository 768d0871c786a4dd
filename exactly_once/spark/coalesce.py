"""Small Arrow batches of Spark, put together: what is done for each of them costs as much as for hundreds of rows."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

import pyarrow as pa

#: Rows and bytes after which there is nothing to gain by more.
ROWS, BYTES = 8_000, 4_000_000

#: After such a pause rows do not wait for others: what is written to watches the time of the batch.
WAIT_S = 0.1


def together(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of ``batches`` in their order, the first batch at once, then some :data:`ROWS` rows or
    :data:`BYTES` bytes at a time. Batches without rows are left out.
    """
    some: list[pa.RecordBatch] = []
    rows = size = 0
    last = float("-inf")
    for batch in batches:
        if not batch.num_rows:
            continue
        some.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= ROWS or size >= BYTES or time.monotonic() - last >= WAIT_S:
            yield _one(some)
            some, rows, size = [], 0, 0
            last = time.monotonic()
    if some:
        yield _one(some)


def _one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    [one] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return one
