"""The changes that a user may make between two starts of a query: the list in docs/reference.md."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once_local.cluster.embedded_broker import EmbeddedBroker
from testkit import oracle
from testkit.broker import create_topic, delete_topic
from testkit.fixtures import Bench, StartDriver, make_bench
from testkit.stream import SparkDriver


@pytest.mark.long
@pytest.mark.parametrize("guarantee", ["at_least_once", "none"])
def test_what_was_decided_is_finished_by_a_start_with_a_weaker_guarantee_and_the_way_back_is_open(
    guarantee: str, bench: Bench, driver: StartDriver, warm: SparkDriver
) -> None:
    """Guards against a decided batch that is never committed (loss), or that is written a second time (duplicate)."""
    bench.kill_at("decided", driver())
    bench.complete(warm, bench.job.having(sink_guarantee=guarantee))

    assert bench.log().open_decisions == ()
    assert bench.decided_batches() == [0, 1]  # batch 2 was not decided, only written
    bench.complete(warm)
    assert bench.decided_batches() == [0, 1, 3]
    bench.assert_exactly_once()


@pytest.mark.long
def test_lost_parts_are_not_left_behind_by_a_weaker_guarantee(
    bench: Bench, driver: StartDriver, warm: SparkDriver
) -> None:
    """Guards against a decided part that is gone for good because its stream was made at_least_once in between."""
    decision = bench.kill_at("decided", driver())
    bench.abort_parts(decision, decision.transactions[0].part)

    ended = warm.run(bench.job.having(sink_guarantee="at_least_once")).with_code("EO-LOST")
    assert "sink.guarantee=exactly_once" in ended.sentence
    bench.complete_exactly_once(warm, batches=0)


@pytest.mark.long
def test_a_stream_that_was_at_least_once_becomes_exactly_once_by_consent(bench: Bench, warm: SparkDriver) -> None:
    """Guards against a history that is taken for a rewound checkpoint forever, and against silence about the batch in
    flight.
    """
    bench.complete(warm, bench.job.having(sink_guarantee="at_least_once"), batches=2)
    assert bench.log().owner is None
    bench.input.add()

    refused = warm.run(bench.job).with_code("EO-REWOUND")
    warm.complete(bench.job.having(**refused.consent("sink.adopt")))
    bench.complete_exactly_once(warm)
    assert bench.decided_batches() == [2, 3]


@pytest.mark.long
def test_another_sink_id_is_refused_until_somebody_says_go_on(bench: Bench, warm: SparkDriver) -> None:
    """Guards against a new sink that writes the last batch of the old one again."""
    bench.complete(warm)
    bench.input.add()
    other = f"{bench.sink_id}-new"

    refused = warm.run(bench.job.having(sink_id=other)).with_code("EO-REWOUND")
    bench.complete_exactly_once(warm, bench.job.having(sink_id=other, **refused.consent("sink.adopt")), batches=0)


@pytest.mark.long
def test_another_topic_gets_the_rows_from_the_next_undecided_batch_on(
    bench: Bench, driver: StartDriver, warm: SparkDriver
) -> None:
    """Guards against a batch in both topics, or in neither: the decided one stays where it was decided to be."""
    bench.kill_at("decided", driver())
    new = create_topic(bench.connection.bootstrap_servers, f"{bench.topic}-new", partitions=4)
    bench.complete(warm, bench.job.having(topic=new))

    bench.assert_exactly(bench.input.expected(slice(0, 2)))
    oracle.assert_exactly(oracle.read(bench.connection, [new]), bench.input.expected(slice(2, 3)))


@pytest.mark.long
def test_lost_parts_of_a_batch_for_the_old_topic_do_not_slip_into_the_new_one(
    bench: Bench, driver: StartDriver, warm: SparkDriver
) -> None:
    """Guards against a batch that is torn over two topics."""
    decision = bench.kill_at("decided", driver())
    bench.abort_parts(decision, decision.transactions[3].part)
    new = create_topic(bench.connection.bootstrap_servers, f"{bench.topic}-new", partitions=4)

    ended = warm.run(bench.job.having(topic=new)).with_code("EO-EXPIRED")
    assert new in ended.sentence
    assert oracle.read(bench.connection, [new]) == []
    bench.complete_exactly_once(warm, batches=0)


@pytest.mark.long
def test_a_topic_that_is_deleted_under_a_running_stream_stays_deleted_and_stops_it(
    own_broker: Callable[..., EmbeddedBroker], tmp_path: Path, warm: SparkDriver
) -> None:
    """Guards against a topic that comes back empty by itself, on brokers that make topics by their names: the stream
    would go on into it as if nothing had been lost. The next start is refused, too.
    """
    broker = own_broker(properties={"auto.create.topics.enable": "true"})
    bench = make_bench(Connection(broker.bootstrap_servers), tmp_path / "bench")
    run = bench.begin(warm)
    delete_topic(broker.bootstrap_servers, bench.topic)
    bench.input.add()

    ended = run.end()

    assert ended.code == "EO-RECORD" and f"does not exist ({bench.topic}, key 'k" in ended.sentence, ended.failure
    assert warm.run(bench.job).code == "EO-TOPIC"
    with Admin(bench.connection) as admin:
        assert admin.topic_ids([bench.topic]) == {}
    assert bench.decided_batches() == [0]
