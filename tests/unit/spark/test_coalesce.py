"""Arrow batches that are put together before they are written."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pyarrow as pa
import pytest

from exactly_once.spark import tasks
from exactly_once.spark.tasks import together


def batch(*numbers: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": pa.array(numbers, pa.int64()), "text": [f"row {n}" for n in numbers]})


def numbers(batches: Iterator[pa.RecordBatch]) -> list[list[int]]:
    return [b.column("n").to_pylist() for b in batches]


def test_every_row_comes_once_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against rows that stay behind in the last, small batch, and against an order that changes."""
    monkeypatch.setattr(tasks, "ROWS", 5)
    given = [batch(0), batch(1, 2), batch(), batch(3), batch(4, 5, 6), batch(7)]
    assert numbers(together(given)) == [[0], [1, 2, 3, 4, 5, 6], [7]]
    assert numbers(together([])) == numbers(together([batch()])) == []


def test_large_batches_come_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against twice the memory for rows that are large already."""
    monkeypatch.setattr(tasks, "BYTES", 10)
    given = [batch(1), batch(2)]
    assert [a is b for a, b in zip(together(given), given, strict=True)] == [True, True]


def test_rows_that_come_slowly_do_not_wait_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against a task that writes nothing for an hour, because its rows take seconds each, and then too late."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def slowly() -> Iterator[pa.RecordBatch]:
        for n in range(4):
            yield batch(n)
            now[0] += tasks.WAIT_S

    assert numbers(together(slowly())) == [[0], [1], [2], [3]]
