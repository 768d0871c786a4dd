"""Transactions that end before their decision; what ends after it is in test_replay.py."""

from __future__ import annotations

import pytest

from tests.support.fixtures import Bench
from tests.support.stream import SparkDriver


@pytest.mark.parametrize(("pause_s", "why"), [(9, "is gone"), pytest.param(6.5, "has used", marks=pytest.mark.long)])
def test_a_batch_that_outlives_its_transactions_is_not_decided_and_is_written_by_the_next_start(
    pause_s: float, why: str, bench: Bench, warm: SparkDriver
) -> None:
    """Guards against a decision that can no longer be carried out (loss), by the broker's word rather than our
    clock.
    """
    job = bench.job.having(kafka_transaction_timeout_ms="8000")
    bench.input.add()
    run = warm.start(job.until_stopped())
    run.await_commit(0)
    warm.arm("all-prepared", f"sleep {pause_s}")
    bench.input.add()

    ended = run.end()

    assert ended.code == "EO-EXPIRING", ended.failure
    assert why in ended.sentence
    assert bench.decided_batches() == [0]
    warm.complete(job)
    bench.assert_exactly_once()
    assert bench.decided_batches() == [0, 1]
