"""Transactions that end before their decision; what ends after it is in test_replay.py."""

from __future__ import annotations

import pytest

from testkit import broker as brokers
from testkit.fixtures import Bench
from testkit.stream import SparkDriver


@pytest.mark.parametrize(("pause_s", "why"), [(9, "is gone"), (6.5, "has used")])
@pytest.mark.long
def test_a_batch_that_outlives_its_transactions_is_not_decided_and_is_written_by_the_next_start(
    pause_s: float, why: str, bench: Bench, warm: SparkDriver
) -> None:
    """Guards against a decision that can no longer be carried out (loss), by the broker's word rather than our
    clock.
    """
    job = bench.job.having(kafka_transaction_timeout_ms="8000")
    run = bench.begin(warm, job)
    warm.arm("all-prepared", f"sleep {pause_s}")
    bench.input.add()

    ended = run.end().with_code("EO-EXPIRING")
    assert why in ended.sentence
    assert bench.decided_batches() == [0]
    bench.complete_exactly_once(warm, job, batches=0)
    assert bench.decided_batches() == [0, 1]


@pytest.mark.long
def test_a_batch_whose_topic_is_made_again_before_its_decision_is_not_decided_without_its_rows(
    bench: Bench, warm: SparkDriver
) -> None:
    """Guards against a silent loss: the coordinator still says Ongoing and answers the commit with success, while the
    partitions' leaders know nothing of the records. Of a first batch there is no topic id to compare.
    """
    bench.input.add()
    run = warm.hold(bench.job.until_stopped(), "all-prepared", "sleep 1")
    warm.freeze()
    try:
        brokers.delete_topic(bench.connection.bootstrap_servers, bench.topic)
        brokers.create_topic(bench.connection.bootstrap_servers, bench.topic, partitions=4)
    finally:
        warm.thaw()

    ended = run.end().with_code("EO-EXPIRING")
    assert "not hold" in ended.sentence and f"the leader of {bench.topic}-" in ended.sentence
    assert "does not know it" in ended.sentence
    assert bench.decided_batches() == []
    bench.complete_exactly_once(warm, batches=0)


@pytest.mark.long
def test_a_batch_that_is_too_long_at_every_start_is_left_to_a_person_after_the_second(
    bench: Bench, warm: SparkDriver
) -> None:
    """Guards against a stream that is restarted forever over a batch which Spark runs again as it was."""
    job = bench.job.having(kafka_transaction_timeout_ms="8000")
    bench.complete(warm, job)
    bench.input.add()
    codes = []
    for _ in range(3):
        warm.arm("mid-write", "sleep 6.5")
        ended = warm.run(job)
        codes.append(ended.code)
        assert bench.decided_batches() == [0] and bench.open_parts() == 0
        assert "raise kafka.transaction.timeout.ms to 16000" in ended.sentence, ended.failure
    assert codes == ["EO-EXPIRING", "EO-TOO-LONG", "EO-TOO-LONG"]
    assert f"checkpoint repair {bench.checkpoint} --sink {bench.sink_id}" in ended.sentence
    bench.complete_exactly_once(warm, job.having(kafka_transaction_timeout_ms="16000"), batches=0)
