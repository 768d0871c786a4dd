"""Ids and parts that change: rescaling over crashes, partitions that come, a topic that goes."""

from __future__ import annotations

from dataclasses import asdict
from itertools import count

import pytest

from exactly_once.kafka.admin import Admin
from exactly_once.protocol.names import SLOTS, VARIANTS, namespace
from exactly_once.txn.coordinators import list_transactions
from testkit import oracle
from testkit.broker import create_topic, delete_topic, grow_topic
from testkit.fixtures import Bench, StartDriver
from testkit.stream import Job, SparkDriver


def in_parts(bench: Bench, parts: int) -> Job:
    """The bench's job, its rows spread over ``parts`` parts by their key."""
    return Job(
        **{
            **asdict(bench.job),
            "transform": "testkit.transforms:repartitioned",
            "arguments": {"parts": parts, "column": "key"},
        }
    )


def ids_of(bench: Bench) -> list[str]:
    """Every transactional id of the sink that the brokers remember, the commit log's own left out."""
    with Admin(bench.connection) as admin:
        listed = [x.transactional_id for x in list_transactions(admin, namespace(bench.sink_id), ())]
    return [i for i in listed if not i.endswith(":log")]


def assert_all_rows_once(bench: Bench) -> None:
    """In any order: a key's rows may change their part, and their partition, with the scale."""
    bench.assert_settled()
    assert sorted(bench.visible()) == sorted(bench.input.expected())


@pytest.mark.long
def test_a_stream_rescaled_from_8_to_3_to_8_parts_over_crashes_loses_and_leaves_nothing(
    bench: Bench, driver: StartDriver, warm: SparkDriver
) -> None:
    """Guards against transactions of parts that exist no more: open forever, as a start with fewer parts looks for
    its own ids only; and against ids that grow with every change.
    """
    bench.input.add()
    for parts, point, open_parts in ((8, "all-prepared", 8), (3, "all-prepared", 3), (8, "decided", 8)):
        victim = driver()
        victim.arm(point)
        run = victim.start(in_parts(bench, parts).until_stopped())
        run.await_true(point, lambda v=victim, p=point: v.has_reached(p))
        victim.kill9()
        assert bench.open_parts() == open_parts
    assert len(bench.log().decisions[-1].handles) == 8

    bench.complete(warm, in_parts(bench, 3))
    bench.complete(warm, in_parts(bench, 8))

    assert_all_rows_once(bench)
    assert bench.decided_batches() == [0, 1, 2]
    assert len(ids_of(bench)) <= 8 * SLOTS * VARIANTS


@pytest.mark.long
def test_partitions_that_are_added_while_the_stream_runs_are_used_and_lose_nothing(
    bench: Bench, warm: SparkDriver
) -> None:
    """Guards against rows for a partition that the producer does not know, and against a sweep that looks at the old
    partitions only.
    """
    run = bench.begin(warm, bench.job.having(kafka_metadata_max_age_ms="500"))
    grow_topic(bench.connection.bootstrap_servers, bench.topic, 8)
    batches = count(1)

    def one_more_uses_them() -> bool:
        bench.input.add()
        run.await_commit(next(batches))
        return any(m.partition > 3 for m in oracle.read(bench.connection, [bench.topic]))

    run.await_true("records in new partitions", one_more_uses_them)
    run.stop()()

    assert_all_rows_once(bench)


@pytest.mark.long
def test_a_topic_that_is_deleted_and_made_again_stops_the_stream_until_somebody_says_go_on(
    bench: Bench, warm: SparkDriver
) -> None:
    """Guards against a stream that writes on into an empty topic as if nothing had happened: what it had committed
    there is gone.
    """
    run = bench.begin(warm)
    delete_topic(bench.connection.bootstrap_servers, bench.topic)
    create_topic(bench.connection.bootstrap_servers, bench.topic, partitions=4)
    bench.input.add()

    ended = run.end().with_code("EO-TOPIC-RECREATED")
    assert bench.topic in ended.sentence
    assert bench.decided_batches() == [0]
    assert warm.run(bench.job).code == "EO-TOPIC-RECREATED"
    warm.complete(bench.job.having(**ended.consent("sink.adopt")))
    bench.complete(warm)
    bench.assert_exactly(bench.input.expected(slice(1, None)))


@pytest.mark.long
def test_a_topic_that_is_gone_stops_the_stream_with_its_name(bench: Bench, warm: SparkDriver) -> None:
    """Guards against a stream that waits forever, or makes the topic itself."""
    run = bench.begin(warm)
    delete_topic(bench.connection.bootstrap_servers, bench.topic)
    bench.input.add()

    ended = run.end()

    assert ended.code in ("EO-RECORD", "EO-TOPIC", "EO-PREPARE"), ended.failure
    assert bench.topic in ended.sentence
    assert bench.decided_batches() == [0]
