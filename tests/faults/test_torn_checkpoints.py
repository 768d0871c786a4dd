"""Torn checkpoints of stateful queries: what a repair removes and rebuilds must leave the state right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from exactly_once.kafka.connection import Connection
from testkit import repair
from testkit.fixtures import Bench, KafkaInput, StartDriver
from testkit.stream import Job, SparkDriver
from tests.faults.test_stateful import CONF, KILLED, Case, make_case

#: A snapshot of every version, within a second: otherwise one is written a minute later, and not of each.
SNAPSHOTS = {
    "spark.sql.streaming.stateStore.minDeltasForSnapshot": "0",
    "spark.sql.streaming.stateStore.maintenanceInterval": "500ms",
}


@pytest.fixture
def rocks(warm: SparkDriver) -> Iterator[SparkDriver]:
    """The driver that stays, with RocksDB and checkpoint format 2: commits name the files of the state."""
    with warm.having(CONF):
        yield warm


def fail_at(point: str, case: Case, driver: SparkDriver) -> None:
    """Two batches go through; the third one fails at ``point``."""
    case.add(KILLED)
    driver.complete(case.bench.job)
    driver.arm(point, "raise")
    case.add()
    assert f"failpoint {point}" in (driver.run(case.bench.job).failure or "")


def go_on(driver: SparkDriver, job: Job) -> None:
    """Start the stream after a repair. The driver of these tests lived on, so its claim is superseded, which it finds
    at its first batch; any other driver claims at once.
    """
    ended = driver.run(job)
    if ended.code == "EO-FENCED":
        driver.complete(job)
    else:
        assert ended.failure is None, ended.failure


@pytest.mark.long
@pytest.mark.parametrize(
    ("point", "torn", "expected"),
    [
        ("all-prepared", ["commits/1"], {"offsets/2": "remove", "commits/1": "remove"}),
        ("all-prepared", ["offsets/2"], {"offsets/2": "remove"}),
        ("decided", ["offsets/2"], {"offsets/2": "rebuild"}),
        ("decided", ["offsets/1", "offsets/2"], {"offsets/1": "rebuild", "offsets/2": "rebuild"}),
        ("decided", ["commits/1"], {"commits/1": "refuse"}),
        ("all-ended", ["metadata", "offsets/2"], {"metadata": "rebuild", "offsets/2": "rebuild"}),
    ],
)
def test_a_stateful_query_goes_on_with_the_right_state_after_a_repair(
    point: str, torn: list[str], expected: dict[str, str], connection: Connection, tmp_path: Path, rocks: SparkDriver
) -> None:
    """Guards against a batch that begins with the state of another one (wrong values in all later output), and against
    a watermark that is lost with a file.
    """
    case = make_case(connection, tmp_path, "windows", "append")
    fail_at(point, case, rocks)
    kept = {name: (case.bench.checkpoint / name).read_bytes() for name in torn}
    for name in torn:
        (case.bench.checkpoint / name).write_bytes(b"")
    done = repair.mend(case.bench)
    assert {f.name: f.action.value for f in done.findings} == expected
    if "refuse" in expected.values():  # nothing was changed; with a backup it goes on
        assert not done.applied
        for name, content in kept.items():
            (case.bench.checkpoint / name).write_bytes(content)
    go_on(rocks, case.bench.job)
    case.add(2)
    rocks.complete(case.bench.job)
    case.assert_right(rocks)


@pytest.mark.long
def test_a_batch_that_is_planned_anew_does_not_begin_from_the_state_of_its_first_plan(
    bench: Bench, kafka_input: KafkaInput, driver: StartDriver
) -> None:
    """Guards against rows that are counted twice: the state store has written a snapshot of the first plan's state
    under the version that the second plan writes, and Spark reads a snapshot before anything else.
    """
    kafka_input.fill(batches=4, rows=40)
    bench.job = replace(
        bench.job,
        source=kafka_input.source(per_batch=400),
        select=["cast(key as string) key", "cast(value as string) value"],
        transform="testkit.stateful:counts",
        output_mode="update",
        participants=[],
    )
    first = driver(conf=SNAPSHOTS)
    first.arm("all-prepared")
    run = first.start(bench.job)
    run.await_true("a snapshot", lambda: [*bench.checkpoint.glob("state/0/*/1.snapshot")])
    run.await_true("all-prepared", lambda: first.has_reached("all-prepared"))
    first.kill9()

    done = repair.mend(bench, plan_anew=True)
    assert [f.name for f in done.findings] == ["offsets/0"] and done.applied
    assert not [*bench.checkpoint.glob("state/0/*/1.*")]
    second = driver()
    second.complete(replace(bench.job, source=kafka_input.source(per_batch=40)))
    assert len(bench.decided_batches()) > 1
    counted = {row["key.key"]: int(row["value.count"]) for row in second.state(bench.checkpoint)}
    assert counted == Counter(key for key, _ in kafka_input.sent)
