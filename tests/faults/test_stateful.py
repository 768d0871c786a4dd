"""Stateful queries on the RocksDB state store: kill -9 at every point of the protocol, and transactions that are lost
after their decision. The output and the state are those of plain Python over the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pyspark
import pytest

from exactly_once.kafka.connection import Connection
from testkit.fixtures import Bench, StartDriver, make_bench
from testkit.stateful import WINDOW_S
from testkit.stateful_oracle import (
    Deduplication,
    Join,
    Operator,
    State,
    TransformWithState,
    Windows,
    parts_of,
    watermark_s,
)
from testkit.stream import SparkDriver

#: Batches follow from the input alone: none is run for the watermark's sake.
CONF = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
}

#: The batch that is killed, in which every query has output, and how many there are.
KILLED, BATCHES = 2, 5

#: Spark 3.5 has no reader of state, and that of 4.0 does not know format 2: there, the later output tells of the state.
READS_STATE = not pyspark.__version__.startswith(("3.", "4.0."))

OPERATORS = {
    "windows": Windows(),
    "join": Join(),
    "deduplication": Deduplication(),
    "transformWithState": TransformWithState(),
}
POINTS = ("before-begin", "mid-write", "after-flush", "all-prepared", "decided", "some-ended", "all-ended", "marking")
DECIDED = POINTS[4:]
MATRIX = [
    *((operator, "append", point) for operator in OPERATORS for point in POINTS),
    *((operator, "update", point) for operator in ("windows", "transformWithState") for point in POINTS),
]


class Case(NamedTuple):
    """A stateful query on a bench of its own."""

    bench: Bench
    operator: Operator
    mode: str

    def add(self, batches: int = 1) -> None:
        """Add micro-batches."""
        for _ in range(batches):
            self.bench.input.add_rows(parts_of(self.operator.rows(len(self.bench.input.batches))))

    def assert_right(self, reader: SparkDriver) -> None:
        """All of the output once, in the order of every key, and the state as it must be."""
        output, state = self.operator.expected(len(self.bench.input.batches), self.mode)
        self.bench.assert_exactly(output)
        if READS_STATE:
            assert self.state(reader) == state

    def state(self, reader: SparkDriver) -> State:
        """What the state store holds."""
        stores = [reader.state(self.bench.checkpoint, **store) for store in self.operator.stores]
        return self.operator.read(stores)

    def kill_at(self, point: str, victim: SparkDriver) -> None:
        """Bring the query to ``point`` of batch KILLED; kill -9 everything."""
        self.add(KILLED)
        run = victim.start(self.bench.job.until_stopped())
        run.await_commit(KILLED - 1)
        victim.arm(point)
        self.add()
        run.await_true(point, lambda: victim.has_reached(point))
        if point == "marking":  # Spark writes commits/N meanwhile
            run.await_commit(KILLED)
        victim.kill9()
        assert run.is_committed(KILLED) == (point == "marking")


def make_case(connection: Connection, folder: Path, operator: str, mode: str) -> Case:
    """A query in Append mode through the format, in Update mode through foreachBatch."""
    if pyspark.__version__.startswith("3.") and operator == "transformWithState":
        pytest.skip("PySpark 3.5 has no transformWithState")
    bench = make_bench(connection, folder / "bench", parts=2)
    chosen = OPERATORS[operator]
    bench.job = replace(
        bench.job,
        transform=chosen.transform,
        arguments=chosen.arguments(mode),
        output_mode=mode,
        participants=[] if mode == "update" else None,
    )
    return Case(bench, chosen, mode)


@pytest.fixture
def rocks(warm: SparkDriver) -> Iterator[SparkDriver]:
    """The driver that stays, with the state store of these tests."""
    with warm.having(CONF):
        yield warm


@pytest.mark.long
def test_a_stateful_query_that_is_stopped_in_its_commit_goes_on_with_the_right_state(
    connection: Connection, tmp_path: Path, rocks: SparkDriver
) -> None:
    """Guards against a state without the batch that the next start drains: all later windows would count too few. The
    other tests of this file kill the driver.
    """
    case = make_case(connection, tmp_path, "windows", "append")
    case.add(KILLED)
    run = rocks.start(case.bench.job.until_stopped())
    run.await_commit(KILLED - 1)
    rocks.arm("decided", "sleep 2")
    case.add()
    run.await_true("decided", lambda: rocks.has_reached("decided"))
    run.stop()()
    assert run.end().failure is None
    run.lose_commit(KILLED)  # where the stop's interrupt did not: of 16 such stops, Spark wrote the file in 6

    case.add(BATCHES - KILLED - 1)
    rocks.complete(case.bench.job)

    case.assert_right(rocks)
    assert case.bench.log().tally.drained == 1
    assert case.bench.decided_batches() == list(range(BATCHES))


@pytest.mark.long
@pytest.mark.parametrize(("operator", "mode", "point"), [pytest.param(*m, id="-".join(m)) for m in MATRIX])
def test_a_stateful_query_that_is_killed_goes_on_with_the_right_state(
    operator: str,
    mode: str,
    point: str,
    connection: Connection,
    tmp_path: Path,
    driver: StartDriver,
    rocks: SparkDriver,
) -> None:
    """Guards against a state that holds a batch twice or not at all (wrong values in all later output), and against
    output that is lost or written twice.
    """
    case = make_case(connection, tmp_path, operator, mode)
    case.kill_at(point, driver(conf=CONF))
    assert case.bench.decided_batches() == list(range(KILLED + (point in DECIDED)))

    case.add(BATCHES - KILLED - 1)
    rocks.complete(case.bench.job)

    case.assert_right(rocks)
    assert case.bench.decided_batches() == list(range(BATCHES))


@pytest.mark.long
@pytest.mark.parametrize(
    ("operator", "mode"),
    [("windows", "append"), ("windows", "update"), ("transformWithState", "append"), ("join", "append")],
)
def test_a_decided_batch_that_is_drained_brings_the_state_forward(
    operator: str, mode: str, connection: Connection, tmp_path: Path, driver: StartDriver, rocks: SparkDriver
) -> None:
    """Guards against a drain that stops before the state store's commit: Spark would fail, or count on from an older
    state.
    """
    case = make_case(connection, tmp_path, operator, mode)
    case.kill_at("decided", driver(conf=CONF))
    decision = case.bench.log().decisions[-1]

    rocks.complete(case.bench.job)  # without more input

    case.assert_right(rocks)
    assert case.bench.log().decisions[-1] == decision
    assert case.bench.log().tally.drained == 1
    case.add(BATCHES - KILLED - 1)
    rocks.complete(case.bench.job)
    case.assert_right(rocks)


@pytest.mark.long
@pytest.mark.parametrize(
    ("operator", "mode"),
    [
        ("windows", "append"),
        ("windows", "update"),
        ("transformWithState", "append"),
        ("join", "append"),
        ("deduplication", "append"),
    ],
)
def test_a_lost_part_of_a_stateful_batch_is_written_again_from_the_state_before_it(
    operator: str, mode: str, connection: Connection, tmp_path: Path, driver: StartDriver, rocks: SparkDriver
) -> None:
    """Guards against a replay from a state that has the batch already: other rows than those decided, or none."""
    case = make_case(connection, tmp_path, operator, mode)
    case.kill_at("decided", driver(conf=CONF))
    decision = case.bench.log().decisions[-1]
    assert [h.part for h in decision.handles] == [0, 1]
    case.bench.abort_parts(decision, 1)

    case.add(BATCHES - KILLED - 1)
    rocks.complete(case.bench.job)

    case.assert_right(rocks)
    assert case.bench.log().decisions[KILLED].rewritten == ("kafka/1",)
    assert case.bench.decided_batches() == list(range(BATCHES))


@pytest.mark.long
@pytest.mark.parametrize("point", ["mid-write", "some-ended"])  # only a batch with output comes there
def test_a_batch_without_input_that_only_moves_the_watermark_is_killed_like_any_other(
    point: str, connection: Connection, tmp_path: Path, driver: StartDriver, rocks: SparkDriver
) -> None:
    """Guards against windows that are lost or written twice because the batch that closes them has no input."""
    no_input = "spark.sql.streaming.noDataMicroBatches.enabled"
    case = make_case(connection, tmp_path, "windows", "append")
    victim = driver(conf={**CONF, no_input: "true"})
    victim.arm(point)
    run = victim.start(case.bench.job.until_stopped())
    case.add()
    run.await_commit(1)
    case.add()
    run.await_true(point, lambda: victim.has_reached(point))
    victim.kill9()
    assert run.is_committed(2) and not run.is_committed(3)

    case.add(BATCHES - 2)
    rocks.ask("conf", name=no_input, value="true")
    rocks.complete(case.bench.job)

    output, state = case.operator.expected(BATCHES, "append")
    closed = {w for w in state if int(w.partition("@")[2]) + WINDOW_S <= watermark_s(BATCHES)}
    case.bench.assert_exactly([*output, *((w, str(state[w])) for w in closed)])
    assert case.state(rocks) == {w: n for w, n in state.items() if w not in closed}
