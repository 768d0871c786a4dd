"""The sink as streams start and stop: state, restarts, ids, and how Spark finds it."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, replace

import pytest

from exactly_once.coordinator.recover import recover
from exactly_once.kafka.admin import Admin
from exactly_once.protocol.names import SLOTS, VARIANTS, PartId, namespace
from exactly_once.txn.coordinators import list_transactions
from testkit import oracle
from testkit.fixtures import Bench, KafkaInput, StartDriver
from testkit.stream import Job, SparkDriver


def seconds_of_input(bench: Bench, batch: int) -> None:
    """Add a batch of seven seconds of events, so that windows of ten seconds span batches. Every row ends with its
    second.
    """
    bench.input.add_rows(
        [
            [(f"k{p}.{i % 3}", f"b{batch}-p{p}-{i}-{7 * batch + i % 7}") for i in range(bench.input.rows)]
            for p in range(bench.input.parts)
        ]
    )


def closed_windows(bench: Bench, until_s: int) -> list[tuple[str, str]]:
    """(key, "key@start=count") of every window that ends at ``until_s`` at the latest."""
    counts = Counter((key, int(value.rpartition("-")[2]) // 10 * 10) for key, value in bench.input.expected())
    return sorted((key, f"{key}@{start}={n}") for (key, start), n in counts.items() if start + 10 <= until_s)


@pytest.mark.long
def test_a_stateful_query_killed_after_its_decision_keeps_its_state_and_its_output(
    bench: Bench, driver: StartDriver, warm: SparkDriver
) -> None:
    """Guards against a drained batch whose state is not brought forward (counts too low in all later windows), and
    against windows that are written twice.
    """
    job = Job(**{**asdict(bench.job), "transform": "testkit.transforms:windowed_count"})
    killed = driver()
    run = killed.start(job.until_stopped())
    seconds_of_input(bench, 0)
    run.await_commit(0)
    killed.arm("some-ended")  # only a batch with output comes there
    for batch in (1, 2):
        seconds_of_input(bench, batch)
    run.await_true("a batch with output", lambda: killed.has_reached("some-ended"))
    killed.kill9()
    (in_doubt,) = bench.log().open_decisions
    assert in_doubt.records > 0

    for batch in (3, 4):
        seconds_of_input(bench, batch)
    warm.complete(job)

    latest_s = 7 * 4 + 6
    oracle.assert_settled(bench.connection, bench.sink_id, [bench.topic])
    assert sorted(bench.visible()) == closed_windows(bench, latest_s - 1)


def test_parts_without_rows_initialise_no_transactional_id(bench: Bench, warm: SparkDriver) -> None:
    """A stateful stream of three keys in 200 shuffle partitions: 200 replicated writes of coordinators a batch."""
    bench.input.add_rows([[(f"k{n}", "x") for n in range(3)]])
    spread = {"transform": "testkit.transforms:repartitioned", "arguments": {"parts": 40, "column": "key"}}
    warm.complete(Job(**{**asdict(bench.job), **spread}))
    with Admin(bench.connection) as admin:
        ids = [t.transactional_id for t in list_transactions(admin, namespace(bench.sink_id), ())]
    assert 1 <= len([i for i in ids if PartId.parse(i)]) <= 3, ids
    assert len(bench.visible()) == 3


@pytest.mark.long
def test_a_stream_from_kafka_to_kafka_reads_what_is_committed_and_writes_it_once(
    bench: Bench, kafka_input: KafkaInput, driver: StartDriver, warm: SparkDriver
) -> None:
    """Guards against input rows of aborted transactions in the output, and against a replay that reads another
    range.
    """
    kafka_input.fill(batches=3, rows=200)
    job = Job(**{**asdict(bench.job), "source": kafka_input.source(per_batch=310), "select": ["key", "value"]})
    killed = driver()
    run = killed.start(job.until_stopped())
    run.await_commit(0)
    killed.arm("decided")
    run.await_true("decided", lambda: killed.has_reached("decided"))
    killed.kill9()

    warm.complete(job)

    bench.assert_exactly(kafka_input.sent)
    assert len(bench.decided_batches()) >= 3


@pytest.mark.long
def test_spark_finds_the_sink_without_register(bench: Bench, driver: StartDriver) -> None:
    """Guards against a session in which nobody calls register(): the JVM then starts a Python of its own."""
    bench.complete_exactly_once(driver(), replace(bench.job, register=False))


@pytest.mark.long
def test_a_registration_that_changes_nothing_is_not_warned_of(bench: Bench, warm: SparkDriver) -> None:
    """Guards against a warning at each start of each query: people stop to read them."""
    before = len(warm.log.read_bytes())
    for _ in range(2):  # each registers, and starts a query, which clones the session
        bench.complete(warm)
    bench.assert_exactly_once()
    assert b"EO-WARN" not in warm.log.read_bytes()[before:]


@pytest.mark.long
def test_the_number_of_transactional_ids_is_bounded_by_parallelism(
    bench: Bench, driver: StartDriver, warm: SparkDriver
) -> None:
    """Guards against ids that grow with batches and restarts: a broker remembers each of them for a week."""

    def ids() -> set[str]:
        with Admin(bench.connection) as admin:
            return {x.transactional_id for x in list_transactions(admin, namespace(bench.sink_id), ())}

    bench.complete(warm, batches=8)
    used = ids() - {f"{namespace(bench.sink_id)}log"}
    assert len(used) <= bench.input.parts * VARIANTS
    assert len({PartId.parse(i).slot for i in used}) == 1  # type: ignore[union-attr]

    for _ in range(SLOTS - 1):
        recover(bench.connection, bench.sink_id)  # a claim each: the next one writes under the same slot again
    bench.complete(driver(), batches=8)
    assert len(ids()) <= bench.input.parts * VARIANTS + 1
    bench.assert_exactly_once()


def test_a_query_that_is_started_again_after_a_recovery_claims_anew(bench: Bench, warm: SparkDriver) -> None:
    """Guards against a start that decides by the claim of an earlier start in the same application, although somebody
    has taken the sink since: it failed once with EO-FENCED, which no restart heals.
    """
    bench.complete(warm)
    recover(bench.connection, bench.sink_id)
    bench.complete_exactly_once(warm)
    owner = bench.log().owner
    assert owner is not None and (owner.token, owner.purpose) == (3, "stream")


@pytest.mark.long
def test_each_run_of_a_stream_claims_under_its_own_operator(bench: Bench, warm: SparkDriver) -> None:
    """A driver that serves several runs would go on under the name of the first one: asked about that run, its operator
    says that it is over, and a recovery fences the stream that works.
    """
    owners = []
    for run in (1, 2, 2):
        bench.complete(warm, bench.job.having(sink_operator=f"dagster/prod/run-{run}"))
        owners.append(bench.log().owner)
    tokens, operators = zip(*((o.token, o.operator) for o in owners if o), strict=True)
    assert operators == ("dagster/prod/run-1", "dagster/prod/run-2", "dagster/prod/run-2")
    # the third start claims too, unless it begins before Spark has told of the second one's end
    assert tokens[:2] == (1, 2) and tokens[2] in (2, 3)
    bench.assert_exactly_once()
