"""kill -9 of a whole driver (its JVM and its Python at one moment) at every point of the protocol, then a new
driver.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from exactly_once.sparkenv.jars import session_jars
from testkit import oracle
from testkit.fixtures import Bench, StartDriver
from testkit.java import NOT_REUSABLE, kafka_client
from testkit.stream import SparkDriver

#: While one task hangs, the other core works through the other parts.
IN_A_TASK = ("before-begin", "mid-write", "some-sent", "after-flush")
UNDECIDED = (*IN_A_TASK, "all-prepared", "confirmed")
DECIDED = ("decided", "some-ended", "all-ended")
#: Spark writes commits/N meanwhile.
BESIDE_SPARK = ("marking", "completed")

#: This one stays in make test: the first moment after the decision.
QUICK = ("decided",)


def points(*names: str) -> list[object]:
    """For ``parametrize``."""
    return [pytest.param(n, marks=[] if n in QUICK else pytest.mark.long) for n in names]


def crash_at(point: str, bench: Bench, driver: SparkDriver, batch: int) -> None:
    """Run a stream until one of its processes is at ``point`` of ``batch``; kill -9 everything."""
    if batch == 0:
        driver.arm(point)
        bench.input.add()
        run = driver.start(bench.job.until_stopped())
    else:
        bench.input.add(batch)
        run = driver.start(bench.job.until_stopped())
        run.await_commit(batch - 1)
        driver.arm(point)
        bench.input.add()
    run.await_true(point, lambda: driver.has_reached(point))
    if point in IN_A_TASK:
        others = bench.input.parts - (point in ("before-begin", "mid-write"))  # where its rows are still gathered
        run.await_true("the other parts", lambda: bench.open_parts() >= others)
    if point in BESIDE_SPARK:
        run.await_commit(batch)
    if point == "confirmed":  # the decision is sent, and waits for its commit
        run.await_true("the decision's record", bench.log_is_held_back)
    driver.kill9()
    assert run.is_committed(batch) == (point in BESIDE_SPARK)


@pytest.mark.parametrize("point", points(*UNDECIDED))
def test_a_driver_killed_before_its_decision_leaves_nothing_visible_and_the_next_one_writes_the_batch(
    point: str, bench: Bench, driver: StartDriver, warm: SparkDriver
) -> None:
    """Guards against rows of an undecided batch that stay visible beside those of its second run (duplicates), against
    open transactions that hold readers back, against a batch that is taken for written (loss), and against a total that
    counts a batch twice.
    """
    crash_at(point, bench, driver(), batch=1)
    assert bench.decided_batches() == [0]
    assert bench.open_parts() > 0
    assert sorted(bench.visible()) == sorted(bench.input.expected(slice(0, 1)))

    bench.complete_exactly_once(warm)
    assert bench.decided_batches() == [0, 1, 2]
    assert bench.counted() == len(bench.visible())


@pytest.mark.parametrize("point", points(*DECIDED, *BESIDE_SPARK))
def test_what_a_killed_driver_had_decided_is_written_once_by_the_next_one(
    point: str, bench: Bench, driver: StartDriver, warm: SparkDriver
) -> None:
    """Guards against a decided batch that is aborted by the sweep (loss), committed in part (a torn batch), or written
    again because commits/N is missing (duplicates), and against a total that lost the batch or has it twice. With
    commits/N and without the completed mark: against a start that does not complete what Spark has left behind (loss).
    """
    crash_at(point, bench, driver(), batch=1)
    log = bench.log()
    assert [d.batch_id for d in log.decisions] == [0, 1]
    assert len(log.decisions[-1].handles) == bench.input.parts
    assert [d.batch_id for d in log.open_decisions] == ([] if point == "completed" else [1])
    assert bench.open_parts() == {"decided": 4, "some-ended": 3}.get(point, 0)

    bench.complete_exactly_once(warm)
    assert bench.decided_batches() == [0, 1, 2]
    assert bench.counted() == len(bench.visible())
    assert bench.log().decisions[1] == log.decisions[1]  # decided once, not again


@pytest.mark.long
def test_a_driver_killed_after_spark_has_written_the_commit_is_continued_with_the_next_batch(
    bench: Bench, driver: StartDriver, warm: SparkDriver
) -> None:
    """Guards against a start that takes the finished batch for one in doubt and writes it again (duplicates)."""
    bench.input.add(2)
    killed = driver()
    killed.start(bench.job.until_stopped()).await_commit(1)
    killed.kill9()
    # its mark may be open: it is written while Spark writes the commit
    oracle.assert_exactly(oracle.read(bench.connection, [bench.topic]), bench.input.expected())

    bench.complete_exactly_once(warm)
    assert bench.decided_batches() == [0, 1, 2]


@pytest.mark.long
@pytest.mark.parametrize("point", ["all-prepared", "decided", "claimed"])
def test_the_very_first_batch_survives_a_kill_like_any_other(
    point: str, bench: Bench, driver: StartDriver, warm: SparkDriver
) -> None:
    """Guards against a start that leans on what only an earlier batch leaves behind: a commit, a claim, a binding."""
    crash_at(point, bench, driver(), batch=0)
    assert bench.visible() == []

    bench.complete_exactly_once(warm)
    assert bench.decided_batches() == [0, 1]


@pytest.mark.long
@pytest.mark.parametrize(
    ("first", "then"),
    [("decided", "some-ended"), ("decided", "claimed"), ("some-ended", "all-ended"), ("all-prepared", "claimed")],
)
def test_a_recovery_that_is_killed_half_way_is_finished_by_the_next_one(
    first: str, then: str, bench: Bench, driver: StartDriver, warm: SparkDriver
) -> None:
    """Guards against a recovery that works only once: a batch committed in part by it, or swept although decided."""
    crash_at(first, bench, driver(), batch=1)
    second = driver()
    second.arm(then)
    second.start(bench.job).await_true(then, lambda: second.has_reached(then))
    second.kill9()

    bench.complete_exactly_once(warm)
    assert bench.decided_batches() == [0, 1, 2]


@pytest.mark.long
@pytest.mark.parametrize("point", ["mid-write", "after-flush", "all-prepared", "decided", "some-ended"])
def test_with_a_kafka_client_that_lets_no_producer_be_used_again_a_crash_loses_and_doubles_nothing(
    point: str, bench: Bench, driver: StartDriver
) -> None:
    """Guards against a fallback that nobody has tried: where kafka-clients lacks a private name, each part has a new
    producer, and asks the coordinator for its own identity.
    """
    old = {"spark.jars": ",".join(with_kafka_client(NOT_REUSABLE))}
    killed = driver(conf=old)
    crash_at(point, bench, killed, batch=1)
    assert "producer to be reused" in killed.log.read_text(errors="replace")
    assert bench.decided_batches() == [0] + [1] * (point in DECIDED)

    bench.input.add()
    driver(conf=old).complete(bench.job)

    bench.assert_exactly_once()
    assert bench.decided_batches() == [0, 1, 2]
    assert bench.counted() == len(bench.visible())


def with_kafka_client(release: str) -> list[str]:
    """Return the jars of a session, with another release of kafka-clients."""
    others = [jar for jar in session_jars() if not Path(jar).name.startswith("kafka-clients-")]
    return [*others, str(kafka_client(release))]
