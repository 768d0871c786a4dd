"""The sink under ``foreachBatch``: the same guarantees, Update mode, and everything in the driver's own process."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from testkit.fixtures import Bench, StartDriver
from testkit.processes import until
from testkit.stream import PATIENCE_S, Job, SparkDriver


def under_foreach_batch(bench: Bench) -> Bench:
    """The bench with its job under foreachBatch."""
    bench.job = Job(**{**asdict(bench.job), "participants": []})
    return bench


@pytest.mark.long
def test_batches_under_foreach_batch_are_written_once_over_a_stop_and_a_start(bench: Bench, warm: SparkDriver) -> None:
    """Guards against a second action over the batch, and against a start that writes the last batch again."""
    under_foreach_batch(bench)
    bench.complete(warm, batches=2)
    bench.complete_exactly_once(warm)
    assert bench.decided_batches() == [0, 1, 2]


@pytest.mark.long
@pytest.mark.parametrize(
    "point", ["mid-write", "after-flush", "all-prepared", "decided", "some-ended", "all-ended", "marking", "completed"]
)
def test_a_driver_killed_under_foreach_batch_loses_and_duplicates_nothing(
    point: str, bench: Bench, driver: StartDriver, warm: SparkDriver
) -> None:
    """Guards against a decision in the driver's memory alone: it dies with it."""
    under_foreach_batch(bench)
    victim = driver()
    bench.kill_at(point, victim)

    bench.complete_exactly_once(warm)
    assert bench.decided_batches() == [0, 1, 2]


@pytest.mark.long
@pytest.mark.parametrize("ends", ["is stopped", "fails"])
def test_the_coordinator_of_a_query_that_ends_under_foreach_batch_is_closed(
    ends: str, bench: Bench, warm: SparkDriver
) -> None:
    """Guards against connections, and a claim, that stay with the driver until the same function is started again."""
    under_foreach_batch(bench)
    until("the end of other queries", lambda: not warm.connections(bench.connection), PATIENCE_S)
    run = bench.begin(warm)
    assert warm.connections(bench.connection)
    if ends == "is stopped":
        run.stop()()
    else:
        warm.arm("after-flush", "raise")
        bench.input.add()
        assert run.end().failure is not None
    until("the end of the coordinator", lambda: not warm.connections(bench.connection), PATIENCE_S)
    bench.complete_exactly_once(warm)


@pytest.mark.long
def test_a_batch_that_fails_is_aborted_at_once_and_the_next_start_writes_it(bench: Bench, warm: SparkDriver) -> None:
    """Guards against readers that wait for the transactions of a batch whose task failed: Spark calls no abort here."""
    under_foreach_batch(bench)
    bench.input.add()
    warm.arm("after-flush", "raise")

    ended = warm.run(bench.job)

    assert ended.failure is not None
    bench.assert_settled()
    assert bench.visible() == []
    bench.complete_exactly_once(warm, batches=0)


@pytest.mark.long
def test_another_checkpoint_than_the_querys_is_refused(bench: Bench, warm: SparkDriver) -> None:
    """Guards against batches that are judged by the wrong history: skipped, or written again."""
    under_foreach_batch(bench)
    bench.complete(warm, batches=2)
    other = Job(
        **{**asdict(bench.job), "options": {**bench.job.options, "checkpointLocation": f"{bench.checkpoint}-2"}}
    )
    other.options["query.checkpoint"] = str(bench.checkpoint)  # see dev/testkit/driver.py
    bench.input.add()

    warm.run(other).with_code("EO-SINK-OWNED")
    bench.assert_settled()


@pytest.mark.long
def test_a_checkpoint_of_another_query_is_refused_although_both_are_at_the_same_batch(
    bench: Bench, warm: SparkDriver
) -> None:
    """Guards against a batch that is decided for another query: its number is the same, its offsets are not."""
    under_foreach_batch(bench)
    bench.input.add()
    other = bench.checkpoint.with_name("checkpoint-2")
    (other / "offsets").mkdir(parents=True)
    (other / "metadata").write_text('{"id":"00000000-0000-4000-8000-000000000000"}')
    (other / "offsets" / "0").write_text('v1\n{"batchWatermarkMs":0,"batchTimestampMs":1}\n{"logOffset":0}')
    job = Job(**{**asdict(bench.job), "options": {**bench.job.options, "checkpointLocation": str(other)}})
    job.options["query.checkpoint"] = str(bench.checkpoint)  # see dev/testkit/driver.py

    ended = warm.run(job).with_code("EO-PROTOCOL")
    assert "checkpointLocation" in ended.sentence
    assert bench.decided_batches() == [] and bench.visible() == []


@pytest.mark.long
def test_a_batch_without_any_partition_is_decided_like_any_other(bench: Bench, warm: SparkDriver) -> None:
    """Guards against a stream that is down forever: Spark leaves empty files out, so a trigger that found nothing else
    has no task, and offsets/N stays as it is.
    """
    under_foreach_batch(bench)
    bench.input.add_rows([[]])
    warm.complete(bench.job)
    bench.complete_exactly_once(warm)
    assert bench.decided_batches() == [0, 1]
