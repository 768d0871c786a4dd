"""Decided transactions that are lost before their commit: their parts, and no others, are written again by the next
start, by itself; where that cannot be proven right, the stream stops.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from exactly_once.coordinator.recover import recover
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.tools.verify import VerifyParameters, verify
from exactly_once_local.cluster.embedded_broker import EmbeddedBroker
from testkit import oracle
from testkit.fixtures import Bench, KafkaInput, StartDriver, make_bench
from testkit.processes import until
from testkit.stream import Job, SparkDriver
from testkit.upgrades import passed


def assert_rewritten(bench: Bench, *parts: int, batch: int = 1) -> None:
    decision = next(d for d in bench.log().decisions if d.batch_id == batch)
    assert decision.rewritten == tuple(f"kafka/{p}" for p in parts)
    assert bench.log().tally.rewritten == len(parts)


@pytest.mark.long
@pytest.mark.parametrize("parts", [pytest.param((2,), id="one part"), pytest.param((0, 1, 2, 3), id="all parts")])
def test_parts_that_an_operator_aborted_after_the_decision_are_written_again_and_no_others(
    parts: tuple[int, ...], bench: Bench, driver: StartDriver, warm: SparkDriver
) -> None:
    """Guards against a lost part (loss), a part beside it that is written again (duplicate), and a torn batch."""
    decision = bench.kill_at("decided", driver())
    bench.abort_parts(decision, *parts)

    bench.complete_exactly_once(warm)
    assert bench.decided_batches() == [0, 1, 2]
    assert_rewritten(bench, *parts)
    kept = {h.part: h for h in decision.handles if h.part not in parts}
    assert {h.part: h for h in bench.log().decisions[1].handles if h.part in kept} == kept


@pytest.mark.long
def test_a_driver_that_sees_the_loss_itself_says_so_and_its_next_start_makes_it_good(
    bench: Bench, warm: SparkDriver
) -> None:
    """Guards against Flink's way: log the lost transaction and carry on."""
    run = bench.begin(warm)
    bench.hold(run, "decided", "sleep 3")
    bench.abort_parts(bench.log().decisions[-1], 1)

    ended = run.end().with_code("EO-LOST")
    assert "part 1 (50 records" in ended.sentence
    bench.complete_exactly_once(warm, batches=0)
    assert_rewritten(bench, 1)


NUMBER = "cast(split(value, '-')[2] as int)"
OF_KEY = "cast(split(key, '[.]')[1] as int)"

#: What rows choose beside key and value -> their columns. Every fifth row or so chooses nothing.
SHAPES = {
    "key and value": [],
    "topic": ["topic"],
    "partition": [f"{OF_KEY} % 4 partition"],
    "partition of some": [f"if({OF_KEY} = 3, null, {OF_KEY} % 4) partition"],
    "timestamp": [f"timestamp_millis(1700000000000 + {NUMBER}) timestamp"],
    "headers": [f"if({NUMBER} % 5 = 0, null, array(named_struct('key', 'h', 'value', cast(value as binary)))) headers"],
}
SHAPES["everything"] = [SHAPES[form][0] for form in ("topic", "partition", "timestamp", "headers")]


@pytest.mark.quick("everything")
@pytest.mark.parametrize("form", SHAPES)
def test_a_lost_part_of_rows_in_any_form_is_written_again_and_verify_finds_it_whole(
    form: str, bench: Bench, warm: SparkDriver
) -> None:
    """Guards against a form of which the digest of the second run is another one (the stream stops for good), or is the
    same for other rows (a part with other headers, timestamps or places).
    """
    columns = SHAPES[form]
    job = bench.job.having(topic=None) if "topic" in columns else bench.job
    transform = {"transform": "testkit.transforms:selected", "arguments": {"columns": ["key", "value", *columns]}}
    job = replace(job, select=[*job.select, f"'{bench.topic}' topic"], **transform)
    bench.complete(warm, job)
    bench.input.add()
    run = warm.hold(job, "decided", "wait")
    first = bench.log().decisions[-1]
    bench.abort_parts(first, 1, 2)
    warm.release("decided")
    assert run.end().code == "EO-LOST"

    bench.complete_exactly_once(warm, job, batches=0)
    assert_rewritten(bench, 1, 2)
    again = bench.log().decisions[-1]
    assert {h.form for h in again.handles} == {h.form for h in first.handles}
    report = verify(
        bench.connection,
        VerifyParameters(bench.sink_id, checkpoint=str(bench.checkpoint), topics=[bench.topic], settle_s=5),
    )
    mixed = {h.form for h in first.handles} == {"mixed"}  # a reader cannot tell who chose the partition
    assert report.clean and bool(report.unproven) == mixed == (form == "partition of some"), report


@pytest.mark.long
@pytest.mark.parametrize("form", ["key and value", "everything"])
@pytest.mark.parametrize("later", ["true", "false"])
def test_a_lost_part_of_a_killed_driver_is_written_again_with_the_headers_of_its_batch_or_without_them(
    later: str, form: str, bench: Bench, driver: StartDriver, warm: SparkDriver
) -> None:
    """Guards against a lost part whose rows are not known again because the option has changed, and against a part of
    which verify takes the headers for those of its rows, or those of its rows for the batch's.
    """
    columns = SHAPES[form]
    job = bench.job.having(sink_batch_headers="true", **({"topic": None} if "topic" in columns else {}))
    transform = {"transform": "testkit.transforms:selected", "arguments": {"columns": ["key", "value", *columns]}}
    job = replace(job, select=[*job.select, f"'{bench.topic}' topic"], **transform)
    first = bench.kill_at("decided", driver(), job)
    bench.abort_parts(first, 1, 2)

    bench.complete_exactly_once(warm, job.having(sink_batch_headers=later), batches=0)
    assert_rewritten(bench, 1, 2)
    decision = next(d for d in bench.log().decisions if d.batch_id == 1)
    kept = {h.transactional_id for h in first.transactions}
    assert {h.form.endswith("+batch") for h in decision.transactions if h.transactional_id in kept} == {True}
    again = [h.form for h in decision.transactions if h.transactional_id not in kept]
    assert [f.endswith("+batch") for f in again] == [later == "true"] * 2
    report = verify(
        bench.connection,
        VerifyParameters(bench.sink_id, checkpoint=str(bench.checkpoint), topics=[bench.topic], settle_s=5),
    )
    assert report.clean and not report.unproven, report


@pytest.mark.long
def test_a_driver_that_was_away_past_the_transaction_timeout_loses_nothing(
    bench: Bench, driver: StartDriver, warm: SparkDriver
) -> None:
    """Guards against the loss that Flink documents: a stream that is down for longer than transaction.timeout.ms."""
    job = bench.job.having(kafka_transaction_timeout_ms="20000")
    bench.kill_at("decided", driver(), job)
    until("the brokers time the transactions out", lambda: bench.open_parts() == 0, 60)

    bench.complete_exactly_once(warm, job, batches=0)
    assert_rewritten(bench, 0, 1, 2, 3)


@pytest.mark.long
def test_a_recovery_leaves_lost_parts_to_the_next_start_and_says_so(
    bench: Bench, driver: StartDriver, warm: SparkDriver
) -> None:
    """Guards against a recovery that marks a batch as completed although one of its parts is gone."""
    decision = bench.kill_at("decided", driver())
    bench.abort_parts(decision, 3)

    report = recover(bench.connection, bench.sink_id)

    assert [d.batch_id for d in report.to_rewrite] == [1] and report.completed == []
    assert [d.batch_id for d in bench.log().open_decisions] == [1]
    bench.complete_exactly_once(warm, batches=0)
    assert_rewritten(bench, 3)


@pytest.mark.long
@pytest.mark.parametrize("point", ["mid-write", "all-prepared", "decided", "some-ended", "completed"])
def test_a_replay_that_is_killed_is_done_again_by_the_next_start(
    point: str, bench: Bench, driver: StartDriver, warm: SparkDriver
) -> None:
    """Guards against a part that two replays commit (duplicate), against one that the second takes for done, and
    against one that is counted twice in what the sink reports."""
    decision = bench.kill_at("decided", driver())
    bench.abort_parts(decision, 0, 2)
    second = driver()
    second.arm(point)
    second.start(bench.job).await_true(point, lambda: second.has_reached(point))
    second.kill9()

    bench.complete_exactly_once(warm)
    assert bench.decided_batches() == [0, 1, 2]
    assert_rewritten(bench, 0, 2)


@pytest.mark.long
def test_a_replay_whose_transactions_are_lost_too_is_replayed(
    bench: Bench, driver: StartDriver, warm: SparkDriver
) -> None:
    """Guards against evidence that is taken from the first loss for the second one."""
    bench.abort_parts(bench.kill_at("decided", driver()), 0, 2)
    second = driver()
    second.arm("decided")
    second.start(bench.job).await_true("decided", lambda: second.has_reached("decided"))
    second.kill9()
    bench.abort_parts(bench.log().decisions[-1], 2)

    bench.complete_exactly_once(warm, batches=0)
    assert_rewritten(bench, 0, 2)


@pytest.mark.long
def test_lost_parts_are_known_by_their_rows_when_spark_gives_these_to_other_tasks(
    bench: Bench, kafka_input: KafkaInput, driver: StartDriver
) -> None:
    """Guards against EO-EXPIRED, and a person who looks for rows that are all in the input: Spark's Kafka source orders
    up to four partitions as the brokers' answer does, and in a batch that it runs again as ``offsets/N`` does.
    """
    kafka_input.fill(batches=1, rows=40)
    columns = ["cast(key as string) key", "cast(value as string) value"]
    job = replace(bench.job, source=kafka_input.source(per_batch=10_000), select=columns)
    first = driver()
    run = first.start(job.until_stopped())
    run.await_commit(0)
    first.arm("decided")
    kafka_input.add_uneven(10, 20, 30, 40)
    run.await_true("decided", lambda: first.has_reached("decided"))
    first.kill9()
    decision = bench.log().decisions[-1]
    assert sorted(h.records for h in decision.handles) == [10, 20, 30, 40]
    lost = [h.part for h in decision.handles if h.records != 20]
    bench.abort_parts(decision, *lost)

    driver().complete(job)

    bench.assert_exactly(kafka_input.sent)
    assert_rewritten(bench, *lost)
    kept = {h for h in decision.handles if h.part not in lost}
    assert kept < set(bench.log().decisions[1].handles)


@pytest.mark.long
def test_rows_that_differ_from_what_was_decided_stop_the_stream_and_are_named(
    bench: Bench, driver: StartDriver, warm: SparkDriver
) -> None:
    """Guards against other rows under an old decision: a plan with rand() gives some twice and others never."""
    bench.job.select[1] = "concat(split(value, '[|]')[1], '-', cast(rand() as string)) value"
    decision = bench.kill_at("decided", driver())
    bench.abort_parts(decision, 1)

    ended = warm.run(bench.job).with_code("EO-EXPIRED")
    assert "part 1 (50 records" in ended.sentence and "in doubt" in ended.sentence
    assert bench.open_parts() == 0
    assert warm.run(bench.job).code == "EO-EXPIRED"
    warm.run(bench.job.having(sink_accept_lost=f"1@{decision.decided_ms - 1}")).with_code("EO-EXPIRED")
    warm.complete(bench.job.having(**ended.consent("sink.accept.lost")))
    bench.assert_settled()
    assert len(bench.visible()) == 350


@pytest.mark.long
def test_the_same_rows_in_another_order_are_the_same_part(bench: Bench, driver: StartDriver, warm: SparkDriver) -> None:
    """Guards against a replay that stops because a shuffle's blocks came in another order, which they may."""
    job = Job(**{**vars(bench.job), "transform": "testkit.transforms:reversed_after_the_first_time"})
    job.arguments = {"marker": str(bench.checkpoint.parent / "marker")}
    decision = bench.kill_at("decided", driver(), job)
    bench.abort_parts(decision, 1)
    (bench.checkpoint.parent / "marker").touch()

    warm.complete(job)

    bench.assert_settled()
    assert sorted(bench.visible()) == sorted(bench.input.expected())
    assert_rewritten(bench, 1)


@pytest.mark.long
def test_lost_parts_of_a_kafka_source_are_written_again_under_whatever_numbers_spark_gives_them(
    bench: Bench, kafka_input: KafkaInput, warm: SparkDriver
) -> None:
    """Guards against a stream that stops for good (EO-EXPIRED, seed 20 of the fault lab): Spark numbers the tasks of a
    Kafka source in the order of a map, which after a restart may be another one.
    """
    job = replace(bench.job, source=kafka_input.source(per_batch=10_000), select=["key", "value"])
    for _ in range(3):
        kafka_input.fill(1, 40)
        run = warm.hold(job.until_stopped(), "decided", "sleep 3")
        bench.abort_parts(bench.log().decisions[-1], 0, 1, 2, 3)
        assert run.end().code == "EO-LOST"
        warm.complete(job)
    bench.assert_exactly(kafka_input.sent)


@pytest.mark.long
def test_a_part_that_nobody_can_prove_lost_is_in_doubt(
    own_broker: Callable[..., EmbeddedBroker], tmp_path: Path, driver: StartDriver, warm: SparkDriver
) -> None:
    """Guards against a replay of what may have been committed: an id that was initialised again, and an output whose
    records are deleted, tell nothing.
    """
    connection = Connection.from_options({"kafka.bootstrap.servers": own_broker().bootstrap_servers})
    bench = make_bench(connection, tmp_path / "bench")
    decision = bench.kill_at("decided", driver())
    # the one that holds readers back first: behind another open transaction its records could not be deleted
    gone = min(decision.transactions, key=lambda h: h.place.offset if h.place else 0)
    bench.abort_parts(decision, gone.part)
    assert gone.place is not None
    until("its end marker", lambda: stable(bench, gone.place.partition) > gone.place.offset, 20)  # type: ignore[union-attr]
    delete_records(bench)

    ended = warm.run(bench.job).with_code("EO-EXPIRED")
    assert f"part {gone.part} (50 records" in ended.sentence and "in doubt" in ended.sentence


def stable(bench: Bench, partition: int) -> int:
    """The last stable offset."""
    with Admin(bench.connection) as admin:
        return admin.watermarks(bench.topic)[partition].last_stable


def delete_records(bench: Bench) -> None:
    """As retention does; up to the end of every partition that a reader can pass."""
    with Admin(bench.connection) as admin:
        ends = {p: m.last_stable for p, m in admin.watermarks(bench.topic).items()}
    admin = AdminClient({**bench.connection.librdkafka(), "log_level": 0})
    wanted = [TopicPartition(bench.topic, p, end) for p, end in ends.items()]
    for deleted in admin.delete_records(wanted).values():
        deleted.result(30)
    assert oracle.read(bench.connection, [bench.topic]) == []


@pytest.mark.long
def test_a_lost_part_that_comes_back_under_a_number_that_another_has_is_right_to_verify(
    connection: Connection, tmp_path: Path, warm: SparkDriver
) -> None:
    """Mishap: a Kafka source deals its partitions to tasks anew, and a right replay is called a defect of the sink."""
    stream = passed(connection, tmp_path)
    stream.complete(warm)
    stream.add_batch()  # before the query runs, which might begin a batch with some partitions of it alone
    warm.arm("decided", "wait")
    run = stream.start(warm, stream.job.until_stopped())
    run.await_true("decided", lambda: warm.has_reached("decided"))
    decision = stream.bench.log().decisions[-1]
    stream.bench.abort_parts(decision, decision.transactions[1].part)
    warm.release("decided")
    assert run.end().code == "EO-LOST"
    stream.complete(warm, 0)
    assert len(stream.bench.log().decisions[-1].rewritten) == 1
    stream.assert_clean()
