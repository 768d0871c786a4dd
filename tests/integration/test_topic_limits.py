"""Topics that take smaller batches than the sink makes, and topics that change while a stream runs."""

from __future__ import annotations

import itertools
import random
import re
from dataclasses import asdict

import pytest

from testkit import oracle
from testkit.broker import change_topic, create_topic, delete_topic, grow_topic
from testkit.fixtures import Bench
from testkit.stream import Job, Row, SparkDriver

#: Kafka's default is 1 MiB.
LIMIT = 30_000

#: How long the client repeats a batch that the brokers refuse.
DELIVERY_MS = "30000"

_FIRST = itertools.count()


def limited(bench: Bench) -> Job:
    """The bench's job into a topic with a low limit."""
    topic = create_topic(bench.connection.bootstrap_servers, partitions=2, config={"max.message.bytes": str(LIMIT)})
    bench.topic = topic
    return bench.job.having(topic=topic, kafka_delivery_timeout_ms=DELIVERY_MS)


def rows(count: int, compress: bool) -> list[Row]:
    """Rows of a kilobyte each; no two have one key."""
    first = next(_FIRST)
    some = random.Random(first)
    return [(f"k{first}.{n}", "x" * 1000 if compress else some.randbytes(500).hex()) for n in range(count)]


def assert_once(bench: Bench) -> None:
    """All input is in the output once, and nothing is under way."""
    bench.assert_settled()
    assert sorted(bench.visible()) == sorted(bench.input.expected())


@pytest.mark.quick("lz4")
@pytest.mark.parametrize("codec", ["none", "lz4", pytest.param("zstd", marks=pytest.mark.long)])
def test_a_stream_writes_to_a_topic_whose_limit_is_below_the_batches_of_the_sink(
    codec: str, bench: Bench, warm: SparkDriver
) -> None:
    """Guards against batches that the client splits into as large ones, for ever: a restart loop over healthy brokers.
    Rows that compress well come first, and let the client expect as much of the next ones.
    """
    job = limited(bench).having(kafka_compression_type=codec)
    bench.input.add_rows([[*rows(400, compress=True), *rows(200, compress=False)]])
    bench.input.add_rows([rows(300, compress=False), rows(300, compress=True)])
    warm.complete(job)
    assert_once(bench)


@pytest.mark.long
@pytest.mark.parametrize("first", ["with the low limit", "with Kafka's limit"])
def test_rows_that_name_their_topics_are_written_to_one_with_a_low_limit(
    first: str, bench: Bench, warm: SparkDriver
) -> None:
    """Guards against the same loop where no part knows to which topics it will write: a producer has one size for the
    batches of all topics.
    """
    usual, job = bench.topic, limited(bench)
    names = (bench.topic, usual) if first == "with the low limit" else (usual, bench.topic)
    topic = f"if(cast(split(value, '[.|]')[1] as int) % 2 = 0, '{names[0]}', '{names[1]}') topic"
    job = Job(**{**asdict(job.having(topic=None)), "select": [*job.select, topic]})
    bench.input.add_rows([rows(400, compress=False)])
    warm.complete(job)
    oracle.assert_settled(bench.connection, bench.sink_id, names)
    found = oracle.read(bench.connection, names)
    assert sorted((m.key, m.value) for m in found) == sorted(bench.input.expected())
    assert {m.topic for m in found} == set(names)


def test_a_batch_size_of_the_user_s_above_the_limit_is_lowered_and_warned_of_once(
    bench: Bench, warm: SparkDriver
) -> None:
    """Guards against the same loop by a setting that was copied from elsewhere, and against a log full of it."""
    before = len(warm.log.read_bytes())
    job = limited(bench).having(kafka_batch_size="200000")
    for _ in range(2):
        bench.input.add_rows([rows(200, compress=False), rows(200, compress=False)])
    warm.complete(job)
    assert_once(bench)
    said = warm.log.read_bytes()[before:].decode()
    assert len(re.findall(rf"kafka\.batch\.size=200000 [^=]*max\.message\.bytes={LIMIT}", said)) == 1


@pytest.mark.long
def test_a_batch_size_of_the_user_s_that_the_memory_has_no_room_for_is_lowered_and_warned_of_once(
    bench: Bench, warm: SparkDriver
) -> None:
    """Guards against batches that go out half empty, all partitions at once, and nobody knows why; and against a log
    full of it.
    """
    before = len(warm.log.read_bytes())
    job = bench.job.having(kafka_batch_size="200000", kafka_buffer_memory="800000")
    bench.complete_exactly_once(warm, job, batches=2)
    said = warm.log.read_bytes()[before:].decode()
    warning = "kafka.batch.size=200000 times 4 partitions does not fit into kafka.buffer.memory; the sink uses 100000"
    assert said.count(warning) == 1


def test_a_limit_that_is_lowered_under_a_stream_holds_for_its_next_batch(bench: Bench, warm: SparkDriver) -> None:
    """Guards against an executor that remembers a limit from before: the next batch waits out its delivery timeout, and
    the stream ends.
    """
    job = limited(bench).having(kafka_delivery_timeout_ms="10000", kafka_compression_type="none").until_stopped()
    bench.input.add_rows([rows(100, compress=False)])
    run = warm.start(job)
    run.await_commit(0)
    change_topic(bench.connection.bootstrap_servers, bench.topic, "max.message.bytes", "10000")
    bench.input.add_rows([rows(100, compress=False)])
    run.await_commit(1)
    run.stop()()
    assert_once(bench)


@pytest.mark.long
def test_a_limit_that_is_lowered_under_a_part_is_named_with_its_topic_and_the_next_try_keeps_it(
    bench: Bench, warm: SparkDriver
) -> None:
    """Guards against "Expiring 61 record(s)", which sends a person to look for a broker that is slow."""
    job = limited(bench).having(kafka_delivery_timeout_ms="10000", kafka_compression_type="none")
    bench.input.add_rows([rows(100, compress=False)])
    warm.arm("mid-write", "wait")
    run = warm.start(job)
    run.await_true("the first row", lambda: warm.who_reached("mid-write"))
    change_topic(bench.connection.bootstrap_servers, bench.topic, "max.message.bytes", "10000")
    warm.release("mid-write")
    ended = run.end().with_code("EO-TOPIC-LIMIT")
    assert all(said in ended.sentence for said in (bench.topic, "max.message.bytes", "10000", f"{LIMIT}")), (
        ended.failure
    )
    assert bench.visible() == []
    warm.complete(job)
    assert_once(bench)


@pytest.mark.long
@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_a_stream_goes_on_in_a_topic_that_was_made_anew_with_fewer_partitions(
    guarantee: str, bench: Bench, warm: SparkDriver
) -> None:
    """Guards against a producer that goes on with what it knew of the topic: it waits for partitions that are gone."""
    job = bench.job.having(sink_guarantee=guarantee, kafka_delivery_timeout_ms="60000").until_stopped()
    bench.input.add()
    run = warm.start(job)
    run.await_commit(0)
    servers = bench.connection.bootstrap_servers
    delete_topic(servers, bench.topic)
    create_topic(servers, bench.topic, partitions=1)
    bench.input.add()
    if guarantee == "exactly_once":  # what the first batch wrote is gone, and nobody has said that it may be
        run.end(40).with_code("EO-TOPIC-RECREATED")
        assert bench.visible() == []
        return
    run.await_commit(1, 40)
    run.stop()()
    assert sorted(bench.visible()) == sorted(bench.input.expected(slice(1, 2)))


def test_rows_go_to_the_new_partitions_of_a_topic_that_grew_with_the_next_batch(
    bench: Bench, warm: SparkDriver
) -> None:
    """Guards against producers that do not hear of it for five minutes, while others already do: rows of one key would
    lie in two partitions in no order.
    """
    run = warm.start(bench.job.until_stopped())
    bench.input.add()
    run.await_commit(0)
    grow_topic(bench.connection.bootstrap_servers, bench.topic, 8)
    bench.input.add_rows([[(f"k{n}", f"new-{n}") for n in range(100)]])
    run.await_commit(1)
    run.stop()()
    fresh = [m for m in oracle.read(bench.connection, [bench.topic]) if (m.value or "").startswith("new-")]
    assert {m.partition for m in fresh} == set(range(8)) and len(fresh) == 100
