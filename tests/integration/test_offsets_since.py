"""The brokers' look-up of offsets by time, and what of it a backfill may lean on."""

from confluent_kafka import Producer

from exactly_once.kafka.admin import Admin
from testkit import broker as brokers
from testkit import oracle
from testkit.processes import until

DAY_MS = 24 * 3600 * 1000
FIRST_DAY_MS = 1_356_998_400_000  # 2013-01-01


def test_in_a_transactional_topic_of_old_events_it_finds_markers_and_is_only_a_lower_bound(connection):
    """Guards against taking it for the beginning of a day: every day but the first would begin at the first marker, and
    be empty.
    """
    topic = brokers.create_topic(connection.bootstrap_servers, partitions=2, config={"retention.ms": "-1"})
    producer = Producer({**connection.librdkafka(), "transactional.id": topic})
    producer.init_transactions(30)
    for day in range(4):  # three records and a marker each
        producer.begin_transaction()
        for n in range(3):
            producer.produce(topic, b"x", partition=0, timestamp=FIRST_DAY_MS + day * DAY_MS + n)
        producer.commit_transaction(30)
    with Admin(connection, 30) as cluster:
        until("the markers", lambda: not oracle.held_back(cluster, [topic]))
        found = [cluster.offsets_since(topic, FIRST_DAY_MS + day * DAY_MS)[0] for day in range(4)]
        assert found == [0, 3, 3, 3]  # the days begin at 0, 4, 8 and 12; at 3 lies the first marker
        assert cluster.offsets_since(topic, 2 * 1_795_000_000_000) == {0: None, 1: None}
        assert cluster.offsets_since(topic, 0) == {0: 0, 1: None}
