"""Transactions that end before their time: by their timeout, or by somebody who aborts them."""

from __future__ import annotations

import pytest

from exactly_once.kafka.control import Control
from exactly_once.protocol.outcomes import Outcome
from tests.support.fixtures import Bench
from tests.support.stream import SparkDriver


def test_a_decided_transaction_that_somebody_aborts_stops_the_stream_and_is_never_dropped(
    bench: Bench, warm: SparkDriver
) -> None:
    """Guards against the silent loss of a decided part: each start says it again until a person has answered for it."""
    bench.input.add()
    run = warm.start(bench.job.until_stopped())
    run.await_commit(0)
    warm.arm("decided", "sleep 3")
    bench.input.add()
    run.await_true("decided", lambda: warm.has_reached("decided"))
    decision = bench.log().decisions[-1]
    lost = decision.handles[2]
    with Control(bench.connection) as control:
        outcome = control.end(lost.transactional_id, lost.producer_id, lost.epoch, False, decision.end_txn_version)
    assert outcome is Outcome.DONE

    ended = run.end()
    assert ended.code == "EO-EXPIRED", ended.failure
    assert f"part {lost.part} ({lost.records} records" in ended.sentence
    bench.input.add()
    again = warm.run(bench.job)
    assert again.code == "EO-EXPIRED", again.failure
    wrong = warm.run(bench.job.having(sink_accept_lost="0"))
    assert wrong.code == "EO-EXPIRED", wrong.failure

    warm.complete(bench.job.having(sink_accept_lost="1"))

    batches = bench.input.batches
    rest = [part for p, part in enumerate(batches[1]) if p != lost.part]
    bench.assert_exactly([row for part in (*batches[0], *rest, *batches[2]) for row in part])


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
