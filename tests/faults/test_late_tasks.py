"""Tasks that outlive their execution: what they open after the last sweep holds back readers until it times out."""

from __future__ import annotations

import random
import time

import pytest

from testkit.fixtures import Bench, StartDriver
from testkit.processes import until
from testkit.stream import SparkDriver

#: Twice the longest sleep of a failpoint here: a task that nothing has cancelled would have opened by then.
LAST_SIGN_OF_LIFE_S = 3.0


def assert_nothing_is_open(bench: Bench) -> None:
    """Nothing is open when also a task that was not cancelled would have opened its transaction."""
    end = time.monotonic() + LAST_SIGN_OF_LIFE_S
    until("the end of the cancelled tasks", lambda: time.monotonic() > end, LAST_SIGN_OF_LIFE_S + 5)
    assert bench.open_parts() == 0


@pytest.mark.long
@pytest.mark.parametrize("times", [2, 15])
def test_a_query_that_is_stopped_before_its_tasks_begin_leaves_no_transaction(
    times: int, bench: Bench, warm: SparkDriver
) -> None:
    """Guards against a transaction that a task opens after stop() has swept: no later sweep would find it."""
    bench.complete(warm)
    for n in range(times):
        bench.input.add()
        run = warm.hold(bench.job.until_stopped(), "before-begin", f"sleep {0.5 + n % 3 / 2}")
        run.stop()()
        assert run.end().failure is None
        assert_nothing_is_open(bench)
    bench.complete_exactly_once(warm, batches=0)


@pytest.mark.long
def test_a_query_that_spark_could_not_abort_is_settled_when_it_has_ended(bench: Bench, warm: SparkDriver) -> None:
    """Guards against the interrupt of stop() that meets Spark's call of abort: the tasks are killed with their
    transactions open, and nobody ends these until the next start.
    """
    bench.complete(warm)
    bench.input.add()
    warm.arm("before-begin", "sleep 1")
    warm.arm("aborting", "raise")
    run = warm.start(bench.job.until_stopped())
    run.await_true("before-begin", lambda: warm.has_reached("before-begin"))
    run.stop()()
    run.end()
    assert warm.has_reached("aborting")
    assert_nothing_is_open(bench)
    bench.complete_exactly_once(warm, batches=0)


@pytest.mark.long
def test_why_a_batch_failed_is_told_although_its_abort_died_too(bench: Bench, warm: SparkDriver) -> None:
    """Guards against a run that stays down: of a batch whose abort raises, Spark says "Writing job failed.", and
    the code that makes Dagster start it again would be only in what caused it.
    """
    bench.input.add()
    job = bench.job.having(kafka_transaction_timeout_ms="5000")
    warm.complete(job)
    bench.input.add()
    warm.arm("all-prepared", "sleep 8")  # longer than the transactions live
    warm.arm("aborting", "raise")
    ended = warm.run(job)
    assert warm.has_reached("aborting")
    assert ended.code == "EO-EXPIRING" and (ended.failure or "").startswith("EO-EXPIRING: "), "and not below it"
    bench.complete_exactly_once(warm, job, batches=0)


@pytest.mark.long
def test_a_query_that_is_stopped_at_any_moment_leaves_no_transaction(bench: Bench, warm: SparkDriver) -> None:
    """Guards against the moments between those that have a name."""
    bench.complete(warm)
    moments = random.Random(7)
    for _ in range(15):
        bench.input.add()
        run = warm.start(bench.job.until_stopped())
        end = time.monotonic() + moments.uniform(0.1, 1.5)
        until("a moment", lambda end=end: time.monotonic() > end, 10)
        run.stop()()
        assert run.end().failure is None
        assert_nothing_is_open(bench)
    bench.complete_exactly_once(warm, batches=0)


@pytest.mark.long
@pytest.mark.parametrize("point", ["before-begin", "mid-write", "some-sent", "after-flush"])
def test_a_task_whose_thread_was_paused_while_another_driver_took_over_writes_nothing(
    point: str, bench: Bench, driver: StartDriver, warm: SparkDriver
) -> None:
    """Guards against rows of a superseded driver beside those of its successor (duplicates): its JVM, and every other
    thread of it, has been at work all the time.
    """
    superseded = driver()
    run = bench.begin(superseded)
    bench.hold(run, point, "wait")

    second = warm.start(bench.job.until_stopped())
    second.await_commit(1)
    superseded.release(point)
    ended = run.end()
    until("the end of what it had open", lambda: bench.open_parts() == 0)
    bench.input.add()
    second.await_commit(2)
    second.stop()()

    assert ended.code == "EO-FENCED", ended.failure
    bench.assert_exactly_once()
    assert bench.decided_batches() == [0, 1, 2]
