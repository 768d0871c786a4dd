"""The coordinator in the driver: queries that are stopped at any moment, a coordinator that goes away under them, and a
driver that does other things meanwhile. By py4j's callback server ("python"), and by a child of the JVM ("child").
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from exactly_once.kafka.connection import Connection
from testkit import processes
from testkit.driverless import children
from testkit.fixtures import Bench, StartDriver, make_bench
from testkit.processes import until
from testkit.stream import PATIENCE_S, Job, Run, SparkDriver

#: Every point of a batch: in the claim, in tasks, between the tasks and the decision, in the commit.
IN_TASKS = ("before-begin", "mid-write", "some-sent", "after-flush")
IN_CALLS = (
    "planning",
    "claimed",
    "planned",
    "all-prepared",
    "decided",
    "some-ended",
    "all-ended",
    "marking",
    "completed",
)
#: These stay in make test: between plan and tasks, in tasks, in the commit.
QUICK = ("planned", "mid-write", "all-prepared")


@pytest.fixture(scope="module")
def without_register(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkDriver]:
    """A driver whose JVM starts a child process for the protocol, as it does under Scala."""
    stays = SparkDriver(tmp_path_factory.mktemp("child") / "driver")
    yield stays
    stays.close()


@pytest.fixture(params=["python", pytest.param("child", marks=pytest.mark.long)])
def any_driver(request: pytest.FixtureRequest) -> SparkDriver:
    """A driver of each kind."""
    name = "warm" if request.param == "python" else "without_register"
    found: SparkDriver = request.getfixturevalue(name)
    return found


@pytest.fixture
def job(bench: Bench, request: pytest.FixtureRequest) -> Job:
    """The job of the bench, which registers where the driver's own Python shall run the protocol."""
    of_a_child = "any_driver" not in request.fixturenames or request.node.callspec.params["any_driver"] == "child"
    return replace(bench.job, register=not of_a_child)


def hold(bench: Bench, driver: SparkDriver, job: Job, point: str, action: str = "hang") -> Run:
    """Bring a query to ``point``: of its second batch, or of its claim."""
    bench.input.add()
    if point == "claimed":
        driver.arm(point, action)
        run = driver.start(job.until_stopped())
    else:
        run = driver.start(job.until_stopped())
        run.await_commit(0)
        driver.arm(point, action)
        bench.input.add()
    run.await_true(point, lambda: driver.who_reached(point))
    return run


@pytest.mark.quick("python-all-prepared")
@pytest.mark.parametrize(
    "point",
    [pytest.param(p, marks=() if p in QUICK else pytest.mark.long) for p in (*IN_TASKS, *IN_CALLS)],
)
def test_a_query_that_is_stopped_at_any_moment_leaves_nothing_open_and_goes_on_at_the_next_start(
    point: str, bench: Bench, job: Job, any_driver: SparkDriver
) -> None:
    """Guards against what an interrupted thread leaves: a call that is half done, readers that wait for an open
    transaction until its time-out, a batch that is written twice because its end was not seen.
    """
    run = hold(bench, any_driver, job, point, "wait")
    returned = run.stop()
    until("stop() to begin", run.has_ended, PATIENCE_S)
    any_driver.release(point)
    returned()
    until("the end of what was open", lambda: bench.open_parts() == 0, PATIENCE_S)
    assert run.end().failure is None

    bench.complete_exactly_once(any_driver, job, batches=0)


@pytest.mark.long
def test_a_query_that_is_stopped_once_more_in_its_abort_leaves_nothing_open(
    bench: Bench, job: Job, any_driver: SparkDriver
) -> None:
    """Guards against a second interrupt, which meets the abort of the first one half way."""
    run = hold(bench, any_driver, job, "mid-write", "wait")
    any_driver.arm("aborting", "wait")
    first = run.stop()
    until("the abort", lambda: any_driver.has_reached("aborting"), PATIENCE_S)
    second = run.stop()
    any_driver.release("aborting")
    if any_driver.has_reached("mid-write"):
        any_driver.release("mid-write")
    first()
    second()
    until("the end of what was open", lambda: bench.open_parts() == 0, PATIENCE_S)
    assert run.end().failure is None

    bench.complete_exactly_once(any_driver, job, batches=0)


@pytest.mark.long
@pytest.mark.parametrize("times", [2, 15])
def test_a_query_that_is_stopped_as_soon_as_it_has_started_leaves_nothing_open(
    times: int, bench: Bench, job: Job, any_driver: SparkDriver
) -> None:
    """Guards against a claim that nobody closes, and a coordinator that outlives a query which planned nothing."""
    bench.input.add()
    for _ in range(times):
        run = any_driver.start(job.until_stopped())
        # Spark begins no query beside the half of its first file (STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY)
        run.await_true("the first batch's offsets", (bench.checkpoint / "offsets" / "0").exists)
        run.stop()()
        assert run.end().failure is None
    until("the end of what was open", lambda: bench.open_parts() == 0, PATIENCE_S)
    bench.complete_exactly_once(any_driver, job, batches=0)


def test_a_query_that_is_stopped_between_its_batches_ends_at_once(
    bench: Bench, job: Job, any_driver: SparkDriver
) -> None:
    """Guards against a stop() that waits for a coordinator that has nothing to do."""
    run = bench.begin(any_driver, job)
    began = time.monotonic()
    run.stop()()
    assert time.monotonic() - began < 10 and run.end().failure is None
    bench.complete_exactly_once(any_driver, job)


@pytest.mark.long
@pytest.mark.parametrize("point", ["decided", "claimed", "mid-write", "all-prepared"])
def test_a_driver_whose_python_is_killed_takes_its_jvm_along_and_the_next_start_is_clean(
    point: str, bench: Bench, driver: StartDriver, warm: SparkDriver
) -> None:
    """Guards against a JVM without a coordinator that holds transactions open, beside the driver that replaces it."""
    victim = driver()
    hold(bench, victim, bench.job, point)
    os.kill(victim.pid, signal.SIGKILL)
    until("the end of the JVM", lambda: not processes.of_session(victim.pid), PATIENCE_S)

    bench.complete_exactly_once(warm, batches=0)


@pytest.mark.long
@pytest.mark.parametrize("point", [None, "mid-write", "decided"])
def test_a_query_whose_callback_server_was_closed_says_so_and_the_next_start_is_clean(
    point: str | None, bench: Bench, warm: SparkDriver
) -> None:
    """Guards against py4j's own words, and against a session in which no query can start any more: py4j takes a
    callback server that was closed for one that runs.
    """
    if point is None:
        run = bench.begin(warm)
        warm.ask("close_callbacks")
        bench.input.add()
    else:
        run = hold(bench, warm, bench.job, point, "wait")
        warm.ask("close_callbacks")
        warm.release(point)
    failure = run.end().failure
    assert failure is not None and "EO-COORDINATOR: " in failure and "exactly_once.register(spark)" in failure

    bench.complete_exactly_once(warm, batches=0)


def test_a_coordinator_that_could_not_be_told_of_the_end_is_closed_when_python_is_connected_again(
    bench: Bench, warm: SparkDriver
) -> None:
    """Guards against connections and memory of each query that ended while py4j's callback server was closed."""
    until("the end of other queries", lambda: not warm.connections(bench.connection), PATIENCE_S)
    run = bench.begin(warm)
    warm.ask("close_callbacks")
    run.stop()()
    assert warm.connections(bench.connection)
    warm.ask("register")
    until("the end of the coordinator", lambda: not warm.connections(bench.connection), PATIENCE_S)
    bench.complete_exactly_once(warm, batches=0)


def test_a_batch_write_that_kafka_s_client_refuses_before_it_begins_leaves_no_coordinator(
    bench: Bench, warm: SparkDriver
) -> None:
    """Guards against a coordinator with its connections for each try of a write whose settings are wrong: Spark calls
    abort for what has begun alone.
    """
    until("the end of other queries", lambda: not warm.connections(bench.connection), PATIENCE_S)
    options = {**bench.job.options, "write.id": "day-1", "kafka.partitioner.class": "no.such.Class"}
    del options["checkpointLocation"]
    warm.write_batch(options).with_code("EO-OPTION")
    until("the end of the coordinator", lambda: not warm.connections(bench.connection), 20)
    assert bench.log().owner is not None, "it had claimed the sink"


@pytest.mark.long
def test_a_driver_without_python_reads_a_checkpoint_where_its_jvm_puts_it(
    bench: Bench, job: Job, without_register: SparkDriver
) -> None:
    """Outage: the child process has no session to ask: it looks on the local disk, where nothing is, or takes another
    query's checkpoint for this one's.
    """
    bench.input.add()
    here = {**job.source["options"], "path": f"file:{bench.input.folder}"}
    job = replace(job, source={**job.source, "options": here})
    mounts = {"fs.defaultFS": "viewfs://box", "fs.viewfs.mounttable.box.link./w": f"file:{bench.checkpoint.parent}"}
    for name, value in mounts.items():
        without_register.ask("conf", name=name, value=value)
    try:
        ended = without_register.run(job.having(checkpointLocation="/w/my chk#1"))
    finally:
        for name in mounts:
            without_register.ask("unset", name=name)
    assert ended.code == "EO-CHECKPOINT" and "viewfs://box/w/my chk#1" in str(ended.failure), ended.failure
    bench.complete_exactly_once(without_register, job, batches=0)


@pytest.mark.long
@pytest.mark.parametrize(
    "point",
    ["mid-write", None, "claimed", "all-prepared", "decided"],
)
def test_a_query_whose_child_was_killed_ends_in_one_sentence_and_the_next_start_claims(
    point: str | None, bench: Bench, job: Job, without_register: SparkDriver
) -> None:
    """Guards against a new child that goes on for a query which it does not know: by a claim of its own, it would take
    the sink back from a driver that has claimed it meanwhile.
    """
    driver = without_register
    if point is None:
        run = bench.begin(driver, job)
    else:
        run = hold(bench, driver, job, point, "wait")
    [child] = children(driver.pid)
    os.kill(child, signal.SIGKILL)
    until("the end of the child", lambda: not children(driver.pid))
    if point is None:
        bench.input.add()
    elif (driver.failpoints / f"{point}.reached").exists():
        driver.release(point)
    failure = run.end().failure
    assert failure is not None and "EO-COORDINATOR: " in failure and "has ended" in failure
    assert "EO-PROTOCOL" not in failure and "Install" not in failure
    before = bench.log().owner

    bench.complete_exactly_once(driver, job, batches=0)
    after = bench.log().owner
    assert before is not None and after is not None and (before.token, after.token) == (1, 2)
    assert len(children(driver.pid)) == 1


@pytest.mark.long
def test_a_batch_write_whose_child_was_killed_ends_in_one_sentence_and_is_tried_again(
    bench: Bench, without_register: SparkDriver
) -> None:
    """Guards against a commit that a child gets which has planned nothing."""
    options = {**bench.job.options, "write.id": "day-1"}
    del options["checkpointLocation"]
    driver = without_register
    driver.arm("mid-write", "wait")
    ends = driver.send_batch(options, register=False)
    until("a task", lambda: driver.who_reached("mid-write"), PATIENCE_S)
    [child] = children(driver.pid)
    os.kill(child, signal.SIGKILL)
    until("the end of the child", lambda: not children(driver.pid))
    driver.release("mid-write")
    with pytest.raises(Exception, match="EO-COORDINATOR: "):
        ends()
    driver.send_batch(options, register=False)()
    bench.assert_exactly([(f"k{n}", f"w-{n}") for n in range(40)])


@pytest.mark.long
def test_queries_at_once_share_one_child(connection: Connection, without_register: SparkDriver, tmp_path: Path) -> None:
    """Guards against answers that go to the wrong query, and against a process of Python for each."""
    benches = [make_bench(connection, tmp_path / str(n), parts=1, rows=20) for n in range(4)]
    runs = []
    for bench in benches:
        bench.input.add()
        runs.append(without_register.start(replace(bench.job, register=False).until_stopped()))
    for batch in range(3):
        for bench, run in zip(benches, runs, strict=True):
            run.await_commit(batch)
            bench.input.add()
    assert len(children(without_register.pid)) == 1
    for returned in [run.stop() for run in runs]:
        returned()
    for bench in benches:
        bench.complete_exactly_once(without_register, replace(bench.job, register=False), batches=0)


@pytest.mark.long
def test_a_driver_that_computes_in_python_meanwhile_commits_all_the_same(bench: Bench, warm: SparkDriver) -> None:
    """Guards against calls that time out, or that end a query, while another thread holds the interpreter's lock."""

    def batches(count: int) -> float:
        first = len(bench.input.batches)
        began = time.monotonic()
        for batch in range(first, first + count):
            bench.input.add()
            run.await_commit(batch)
        return (time.monotonic() - began) / count

    run = warm.start(bench.job.until_stopped())
    batches(3)
    idle = batches(8)
    warm.ask("compute", count=2)
    try:
        busy = batches(8)
    finally:
        warm.ask("compute", count=0)
    run.stop()()
    print(f"a batch: {idle:.2f} s; with two threads that compute: {busy:.2f} s")
    bench.assert_exactly_once()


@pytest.mark.long
def test_results_of_tasks_may_come_by_kryo(bench: Bench, driver: StartDriver) -> None:
    """Guards against a handle that Spark's other serializer cannot make again."""
    bench.input.add(2)
    driver(conf={"spark.serializer": "org.apache.spark.serializer.KryoSerializer"}).complete(bench.job)
    bench.assert_exactly_once()
