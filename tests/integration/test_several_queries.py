"""Several queries in one Spark session, several sinks from one input, and streams that share an output topic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from exactly_once.coordinator.recover import recover
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from testkit import oracle
from testkit.fixtures import Bench, StartDriver, make_bench
from testkit.stream import Input, Run, SparkDriver

#: Two queries share two cores.
SMALL = {"parts": 2, "rows": 20}

MakeBench = Callable[..., Bench]


@pytest.fixture
def make(connection: Connection, tmp_path: Path) -> MakeBench:
    """Make sinks: ``make("a")``, or under foreachBatch ``make("a", foreach_batch=True)``."""

    def one(name: str, foreach_batch: bool = False) -> Bench:
        bench = make_bench(connection, tmp_path / name, **SMALL)
        if foreach_batch:
            bench.job = replace(bench.job, participants=[])
        return bench

    return one


def add(data: Input, name: str) -> None:
    """One micro-batch whose keys and values no input of another name has."""
    number = len(data.batches)
    data.add_rows(
        [[(f"{name}{p}.{i % 7}", f"{name}-b{number}-p{p}-{i}") for i in range(data.rows)] for p in range(data.parts)]
    )


def stop(*runs: Run) -> None:
    """Ask all of them, then wait."""
    for returned in [run.stop() for run in runs]:
        returned()


@pytest.mark.long
def test_two_queries_of_one_session_write_at_the_same_time(make: MakeBench, warm: SparkDriver) -> None:
    """Guards against state that queries of one session share by accident (a claim, a committer, a batch id): rows in
    the wrong sink, or one query that fences the other.
    """
    first, second = make("first"), make("second", foreach_batch=True)
    runs = [(bench, warm.start(bench.job.until_stopped())) for bench in (first, second)]
    for batch in range(3):
        first.input.add()
        second.input.add()
        for _, run in runs:
            run.await_commit(batch)
    owners = [bench.log().owner for bench, _ in runs]
    stop(*(run for _, run in runs))

    for bench, run in runs:
        bench.assert_exactly_once()
        assert bench.decided_batches() == [0, 1, 2]
        owner = bench.log().owner
        assert owner is not None and owner.query_id == run.query_id
    assert [o.token for o in owners if o] == [1, 1]


@pytest.mark.long
@pytest.mark.parametrize("point", ["all-prepared", "decided", "some-ended"])
def test_a_session_with_two_queries_that_is_killed_loses_nothing_of_either(
    point: str, make: MakeBench, driver: StartDriver, warm: SparkDriver
) -> None:
    """Guards against a recovery of one sink that ends or aborts the transactions of the other one."""
    first, second = make("first"), make("second")
    victim = driver()
    for bench in (first, second):
        bench.input.add()
    runs = [victim.start(bench.job.until_stopped()) for bench in (first, second)]
    for run in runs:
        run.await_commit(0)
    victim.arm(point)  # one of the two comes there first; the other one goes on until the end
    for bench in (first, second):
        bench.input.add()
    runs[0].await_true(point, lambda: victim.has_reached(point))
    victim.kill9()

    for bench in (first, second):
        bench.complete(warm)

    for bench in (first, second):
        bench.assert_exactly_once()
        assert bench.decided_batches() == [0, 1, 2]


@pytest.mark.long
def test_two_sinks_from_one_input_each_get_all_of_it(make: MakeBench, warm: SparkDriver) -> None:
    """Guards against progress of one query that counts as the other one's: each has its own checkpoint and log."""
    first, second = make("first"), make("second")
    second.job = replace(second.job, source=first.job.source)
    first.input.add()
    runs = [warm.start(bench.job.until_stopped()) for bench in (first, second)]
    for run in runs:
        run.await_commit(0)
    stop(runs[1])  # one of them is behind for a while
    first.input.add()
    runs[0].await_commit(1)
    stop(runs[0])

    second.assert_exactly(first.input.expected(slice(0, 1)))
    warm.complete(second.job)

    for bench in (first, second):
        bench.assert_exactly(first.input.expected())
        assert bench.decided_batches() == [0, 1]


@pytest.mark.long
@pytest.mark.parametrize("by", ["a start", "a recovery"])
def test_a_killed_stream_holds_readers_of_a_shared_topic_back_only_until_it_is_recovered(
    by: str, make: MakeBench, driver: StartDriver, warm: SparkDriver
) -> None:
    """Guards against a stream that sweeps the transactions of another one that writes to the same topic (loss), and
    against readers that wait forever.
    """
    killed, going_on = make("killed"), make("going-on")
    topic = killed.topic
    going_on.job = going_on.job.having(topic=topic)
    add(killed.input, "x")
    add(going_on.input, "y")
    other = warm.start(going_on.job.until_stopped())
    victim = driver()
    run = victim.start(killed.job.until_stopped())
    run.await_commit(0)
    other.await_commit(0)
    victim.arm("all-prepared")
    add(killed.input, "x")
    run.await_true("all-prepared", lambda: victim.has_reached("all-prepared"))
    victim.kill9()

    for batch in (1, 2):
        add(going_on.input, "y")
        other.await_commit(batch)
    assert killed.open_parts() == SMALL["parts"]
    with Admin(killed.connection) as admin:
        assert oracle.held_back(admin, [topic])
    seen = killed.visible()
    assert set(seen) <= {*killed.input.expected(slice(0, 1)), *going_on.input.expected()}
    assert len(seen) < len(killed.input.expected(slice(0, 1)) + going_on.input.expected())

    if by == "a recovery":
        recover(killed.connection, killed.sink_id)
        everything = killed.input.expected(slice(0, 1)) + going_on.input.expected()
        oracle.assert_exactly(oracle.read(killed.connection, [topic]), everything)
    warm.complete(killed.job)
    add(going_on.input, "y")
    other.await_commit(3)
    stop(other)

    for bench in (killed, going_on):
        oracle.assert_settled(bench.connection, bench.sink_id, [topic])
    everything = killed.input.expected() + going_on.input.expected()
    oracle.assert_exactly(oracle.read(killed.connection, [topic]), everything)
    assert killed.decided_batches() == [0, 1]
    assert going_on.decided_batches() == [0, 1, 2, 3]


def test_of_two_queries_that_start_at_once_with_one_sink_id_one_is_refused(make: MakeBench, warm: SparkDriver) -> None:
    """Guards against a race for the first claim that both win, and write to one log."""
    first, second = make("first"), make("second")
    second.job = second.job.having(sink_id=first.sink_id, topic=first.topic)
    add(first.input, "x")
    add(second.input, "y")

    warm.arm("planning", "wait")  # else a slow start of the second one meets the claim of the first
    runs = [warm.start(first.job.until_stopped())]
    runs[0].await_true("the first to plan", lambda: warm.has_reached("planning"))
    runs.append(warm.start(second.job.until_stopped()))
    warm.release("planning")
    runs[0].await_true("one to end", lambda: any(run.has_ended() for run in runs))
    (loser,) = [n for n, run in enumerate(runs) if run.has_ended()]
    winner = (first, second)[1 - loser]
    runs[1 - loser].await_commit(0)
    ended = runs[loser].end()
    add(winner.input, "x" if winner is first else "y")
    runs[1 - loser].await_commit(1)
    stop(runs[1 - loser])

    assert ended.code == "EO-SINK-OWNED", ended.failure
    oracle.assert_settled(first.connection, first.sink_id, [first.topic])
    oracle.assert_exactly(oracle.read(first.connection, [first.topic]), winner.input.expected())
    assert first.decided_batches() == [0, 1]


@pytest.mark.long
def test_queries_may_end_and_begin_while_others_of_the_session_go_on(make: MakeBench, warm: SparkDriver) -> None:
    """Guards against an end of one query that takes claims, connections or transactions of its neighbours along."""
    stays, ends, begins = make("stays"), make("ends"), make("begins")
    for bench in (stays, ends):
        bench.input.add()
    staying, ending = (warm.start(bench.job.until_stopped()) for bench in (stays, ends))
    staying.await_commit(0)
    ending.await_commit(0)

    warm.arm("mid-write", "sleep 2")
    ends.input.add()
    ending.await_true("a task", lambda: warm.has_reached("mid-write"))
    stop(ending)  # in the middle of its batch 1
    begins.input.add()
    beginning = warm.start(begins.job.until_stopped())
    stays.input.add()
    staying.await_commit(1)
    beginning.await_commit(0)
    ends.input.add()
    warm.complete(ends.job)
    for bench in (stays, begins):
        bench.input.add()
    staying.await_commit(2)
    beginning.await_commit(1)
    stop(staying, beginning)

    for bench, batches in ((stays, 3), (ends, 3), (begins, 2)):
        bench.assert_exactly_once()
        assert bench.decided_batches() == list(range(batches))
