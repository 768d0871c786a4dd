"""Faults other than the death of a whole driver: tasks, workers, clean stops, brokers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from exactly_once.kafka.connection import Connection
from exactly_once_local.cluster.embedded_broker import EmbeddedBroker
from testkit.fixtures import Bench, make_bench
from testkit.stream import Job, SparkDriver


@pytest.fixture(scope="module")
def retrying(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkDriver]:
    """A driver that stays and tries tasks again, for tasks and workers that die. Nobody calls register() in it: Spark
    finds the sink by its name.
    """
    stays = SparkDriver(tmp_path_factory.mktemp("retrying") / "driver", "local[2,4]")
    yield stays
    stays.close()


@pytest.mark.long
def test_a_query_that_is_stopped_in_the_middle_of_its_commit_goes_on_without_a_trace(
    bench: Bench, warm: SparkDriver
) -> None:
    """Guards against duplicates after a clean stop: Spark lets the commit end but does not write commits/N."""
    run = bench.begin(warm)
    bench.hold(run, "decided", "sleep 2")
    run.stop()()
    assert run.end().failure is None
    assert bench.decided_batches() == [0, 1]

    bench.complete_exactly_once(warm)
    assert bench.decided_batches() == [0, 1, 2]


@pytest.mark.long
def test_a_query_that_is_stopped_while_its_tasks_write_leaves_nothing_of_the_batch(
    bench: Bench, warm: SparkDriver
) -> None:
    """Guards against transactions that a clean stop leaves open, and against their rows beside those of the next
    start.
    """
    run = bench.begin(warm)
    bench.hold(run, "mid-write", "sleep 5")
    run.stop()()
    assert run.end().failure is None

    bench.complete_exactly_once(warm, batches=0)
    assert bench.decided_batches() == [0, 1]


@pytest.mark.long
def test_a_task_that_fails_at_a_row_and_is_tried_again_writes_its_part_once(
    bench: Bench, retrying: SparkDriver, tmp_path: Path
) -> None:
    """Guards against rows of the failed attempt beside those of the second one, and against its open transaction."""
    bench.input.add(2)
    marker = tmp_path / "failed"
    _, failing = bench.input.batches[1][2][0], bench.input.batches[1][2][25][1]
    job = Job(**{**vars(bench.job), "register": False, "transform": "testkit.transforms:fail_once"})
    job.arguments = {"marker": str(marker), "row": failing}

    retrying.complete(job)

    assert marker.exists()
    bench.assert_exactly_once()
    assert bench.decided_batches() == [0, 1]


@pytest.mark.long
@pytest.mark.parametrize("point", ["mid-write", "decided"])
def test_a_broker_that_is_killed_and_comes_back_costs_time_and_no_row(
    point: str, own_broker: Callable[..., EmbeddedBroker], warm: SparkDriver, tmp_path: Path
) -> None:
    """Guards against rows that only the dead broker's clients thought written, and against an outcome that was guessed
    because nobody answered. A batch may fail, the stream may have to be started again; nothing more.
    """
    broker = own_broker()
    connection = Connection.from_options({"kafka.bootstrap.servers": broker.bootstrap_servers})
    bench = make_bench(connection, tmp_path / "bench")
    run = bench.begin(warm)
    bench.hold(run, point, "sleep 1")
    broker.kill()
    broker.restart()
    run.await_true("the end of the batch", lambda: run.is_committed(1) or run.has_ended())
    run.stop()()

    bench.complete_exactly_once(warm)
    assert bench.decided_batches() == [0, 1, 2]
