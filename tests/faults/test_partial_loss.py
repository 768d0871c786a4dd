"""A part of a prepared transaction is gone, and its coordinator calls it open: the batch is refused, and written again.

Each harm is done from outside, while the query waits at a point; then it goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.participants.kafka.transactions import open_transactions
from exactly_once.protocol.outcomes import Outcome
from exactly_once.txn.coordinators import end_all
from exactly_once.txn.leaders import open_on
from exactly_once_local.cluster.embedded_broker import EmbeddedBroker
from testkit import broker as brokers
from testkit.elections import create_topic_on_two, elect_uncleanly, leave_behind
from testkit.fixtures import Bench, make_bench
from testkit.hanging import mark_aborted
from testkit.releases import finalise
from testkit.stream import Job, Run, SparkDriver


def one_part(connection: Connection, folder: Path) -> Bench:
    """A sink whose batches have one part, in many small requests."""
    bench = make_bench(connection, folder / "bench", parts=1)
    one_by_one = {"kafka_batch_size": "100", "kafka_max_in_flight_requests_per_connection": "1"}
    return replace(bench, job=bench.job.having(**one_by_one))


def held(driver: SparkDriver, job: Job, point: str) -> Run:
    """A run that waits at ``point``."""
    run = driver.hold(job, point, "wait")
    return run


def assert_refused_and_then_written_once(bench: Bench, driver: SparkDriver, run: Run, says: str) -> None:
    ended = run.end()
    assert ended.code == "EO-EXPIRING" and says in ended.sentence, ended.failure
    assert bench.decided_batches() == [] and bench.visible() == []
    bench.complete_exactly_once(driver, batches=0)


@pytest.mark.long
def test_an_abort_marker_on_one_partition_of_a_part_that_is_being_written(
    connection: Connection, tmp_path: Path, warm: SparkDriver
) -> None:
    """Guards against a silent loss of the records before the marker (kafka-transactions.sh abort, by a person)."""
    bench = one_part(connection, tmp_path)
    bench.input.add()
    run = held(warm, bench.job, "some-sent")
    with Admin(connection) as admin:
        partition = open_on(admin, [(bench.topic, p) for p in range(4)])[0].partition
    mark_aborted(connection, bench.topic, partition)
    warm.release("some-sent")
    says = f"the leader of {bench.topic}-{partition} says that it begins at offset"
    assert_refused_and_then_written_once(bench, warm, run, says)


@pytest.mark.long
def test_a_transaction_that_somebody_ended_between_two_requests_of_its_task(
    own_broker: Callable[..., EmbeddedBroker], tmp_path: Path, warm: SparkDriver
) -> None:
    """Guards against a silent loss on clusters of the older protocol: the task's next partition begins another
    transaction under the same epoch, which is open, and holds the second half alone.
    """
    bench = one_part(Connection(own_broker().bootstrap_servers), tmp_path)
    finalise(bench.connection, 0)
    partition = "cast(substring(value, 1, 1) as int) partition"
    bench = replace(bench, job=replace(bench.job.having(kafka_linger_ms="0"), select=[*bench.job.select, partition]))
    # the client names all partitions that it knows of before its first request: the task waits behind its first record
    bench.input.add_rows([[("0", "0"), *(("1", f"1-{n}") for n in range(20))]])
    run = held(warm, bench.job, "mid-write")
    with Admin(bench.connection) as admin:
        run.await_true("the first record", lambda: admin.watermarks(bench.topic)[0].high)
        [task] = open_transactions(bench.sink_id, admin, lambda part: True)
        assert task.partitions == ((bench.topic, 0),)
        assert set(end_all(admin, [task.end], False, 4).values()) == {Outcome.DONE}
    warm.release("mid-write")
    says = f"its coordinator does not name {bench.topic}-0, to which the task wrote"
    assert_refused_and_then_written_once(bench, warm, run, says)


@pytest.mark.long
def test_an_unclean_election_that_loses_the_tail_of_a_prepared_part(
    own_broker: Callable[..., EmbeddedBroker], tmp_path: Path, warm: SparkDriver
) -> None:
    """Guards against a silent loss of what the new leader does not have: it knows the transaction, from its first
    records.
    """
    broker = own_broker(nodes=3)
    bench = one_part(Connection(broker.bootstrap_servers), tmp_path)
    topic = brokers.fresh_name("on-two")
    create_topic_on_two(broker.bootstrap_servers, topic)
    bench = replace(bench, topic=topic, job=bench.job.having(topic=topic))
    bench.input.add()
    run = held(warm, bench.job, "some-sent")
    leave_behind(broker, topic)
    warm.arm("all-prepared", "wait")
    warm.release("some-sent")
    run.await_true("all-prepared", lambda: warm.has_reached("all-prepared"))
    elect_uncleanly(broker, topic)
    warm.release("all-prepared")
    assert_refused_and_then_written_once(bench, warm, run, f"the leader of {topic}-0 counts")
