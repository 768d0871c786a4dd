"""The feed: every event once, in order, although it was killed half-way; and nothing to do when it is run again."""

import dagster as dg
import pytest

from dagster_exactly_once.resources import kafka
from dagster_exactly_once.resources.kafka import KafkaTransactionalProducerFactory
from exactly_once.kafka.admin import Admin
from exactly_once.txn.coordinators import list_transactions
from exactly_once_local.duel.departures import DEPARTURES, events
from platform_assets.constants import FEED_TRANSACTIONAL_ID, FLIGHTS
from platform_assets.flights.asset import flights
from platform_assets.flights.expected import expected_delays
from platform_assets.flights.feed import FeedPositionUnknown, committed_position, feed
from platform_assets.local.ui import why_at_rest
from platform_assets.report.contents import Contents
from platform_assets.report.reader import read_committed
from testkit import broker as brokers
from testkit.processes import kill_session, until


def run_feed(site):
    """A run in this process; returns its numbers."""
    factory = KafkaTransactionalProducerFactory(bootstrap_servers=site.bootstrap_servers)
    result = dg.materialize([flights], resources={"kafka": factory}, instance=dg.DagsterInstance.ephemeral())
    (event,) = result.get_asset_materialization_events()
    return {name: value.value for name, value in event.materialization.metadata.items()}


@pytest.mark.long
def test_a_feed_that_is_killed_goes_on_exactly_where_its_last_transaction_ended(site):
    slow = {"events_per_second": 30_000, "events_per_transaction": 3_000}
    killed = site.start("flights_feed", {"ops": {"flights": {"config": slow}}})
    until(
        "some transactions",
        lambda: committed_position(site.connection.librdkafka(), FLIGHTS) >= 30_000,
        90,
        every_s=0.2,
    )
    kill_session(killed.pid)
    reached = committed_position(site.connection.librdkafka(), FLIGHTS)
    assert 30_000 <= reached < DEPARTURES and reached % 3_000 == 0

    second = run_feed(site)
    # The last commit may have been on its way when the feeder died: then it counts.
    assert second["records_committed"] in (DEPARTURES - reached, DEPARTURES - reached - 3_000)
    assert second["position"] == DEPARTURES
    third = run_feed(site)
    assert (third["records_committed"], third["transactions"], third["position"]) == (0, 0, DEPARTURES)

    contents = Contents((e.value for e in events()), expected_delays())
    for record in read_committed(site.connection, FLIGHTS):
        contents.add_input(record)
    found = contents.findings()
    assert (found.records_in, found.foreign, found.faults) == (DEPARTURES, 0, {})
    with Admin(site.connection) as admin:
        assert list_transactions(admin, FEED_TRANSACTIONAL_ID, ("Ongoing", "PrepareCommit", "PrepareAbort")) == []
        assert all(w.last_stable == w.high for w in admin.watermarks(FLIGHTS).values())


@pytest.fixture
def factory(bootstrap_servers):
    return KafkaTransactionalProducerFactory(bootstrap_servers=bootstrap_servers)


def some(first):
    return (e for e in (e for e, _ in zip(events(), range(100), strict=False)) if e.sequence >= first)


@pytest.mark.long
def test_the_position_is_that_of_what_is_committed(factory, connection, topic):
    assert committed_position(connection.librdkafka(), "no-such-topic") == 0
    assert committed_position(connection.librdkafka(), topic) == 0
    with factory.producer(brokers.fresh_name("feed")) as producer:
        done = feed(producer, topic, some, 0, 100, 40, lambda d: None)
        assert (done.events, done.transactions) == (100, 3)
        assert committed_position(connection.librdkafka(), topic) == 100
        with pytest.raises(KeyboardInterrupt), producer.transaction():
            for event in some(0):
                producer.send(topic, event.value.replace(b'"sequence":', b'"sequence":7'), event.key)
            raise KeyboardInterrupt
    assert committed_position(connection.librdkafka(), topic) == 100


def test_records_of_others_do_not_move_the_position(factory, connection, topic):
    with factory.producer(brokers.fresh_name("feed")) as producer:
        feed(producer, topic, some, 0, 100, 100, lambda d: None)
        with producer.transaction():
            for n in range(60):
                producer.send(topic, b"{broken" if n % 2 else b'"x"', str(n).encode())
    assert committed_position(connection.librdkafka(), topic) == 100


def test_make_ui_says_why_nothing_moves_once_all_flights_are_fed(factory, connection, topic):
    """Mishap: behind make run, "the same, live" was a still: lag 0, empty plots, and no word why."""
    with factory.producer(brokers.fresh_name("feed")) as producer:
        for last, still in ((DEPARTURES - 2, False), (DEPARTURES - 1, True)):
            with producer.transaction():
                producer.send(topic, b'{"sequence": %d}' % last, b"k")
            assert ("make clean" in why_at_rest(factory, True, topic)) is still


def test_a_topic_that_lost_its_records_is_refused(factory, connection, topic):
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    with factory.producer(brokers.fresh_name("feed")) as producer:
        feed(producer, topic, some, 0, 100, 100, lambda d: None)
    admin = AdminClient({"bootstrap.servers": connection.bootstrap_servers, "log_level": 0})
    for deletion in admin.delete_records([TopicPartition(topic, p, -1) for p in range(4)]).values():
        deletion.result(30)
    with pytest.raises(FeedPositionUnknown, match="were deleted"):
        committed_position(connection.librdkafka(), topic)


def test_brokers_that_do_not_answer_end_the_run_with_a_classified_failure(monkeypatch):
    monkeypatch.setattr(kafka, "STEP_BUDGET_S", 1.0)
    nobody = KafkaTransactionalProducerFactory(bootstrap_servers="127.0.0.1:1")
    instance = dg.DagsterInstance.ephemeral()
    result = dg.materialize([flights], resources={"kafka": nobody}, instance=instance, raise_on_error=False)
    (failed,) = result.get_step_failure_events()
    metadata = {k: v.value for k, v in failed.step_failure_data.user_failure_data.metadata.items()}
    assert metadata["code"] == "EO-UNREACHABLE" and metadata["restart_heals"] is True
    assert "127.0.0.1:1" in metadata["cause"] and metadata["way_out"]
