"""True hanging transactions on a real broker: found at the leaders, told from ordinary ones, and ended."""

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from exactly_once.deadline import Deadline
from exactly_once.errors import BrokerUnreachable
from exactly_once.kafka import leaders
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.kafka.leaders import abort_hanging, find_hanging
from exactly_once.protocol.names import part_id
from tests.support import broker as brokers
from tests.support.hanging import UNVERIFIED, leave_hanging
from tests.support.processes import until


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """The second look comes at once: no coordinator dies here."""
    monkeypatch.setattr(leaders, "_SECOND_LOOK_S", 0.1)


@pytest.fixture
def unverified(own_broker):
    """A broker that lets a transaction begin without its coordinator, as those before Kafka 3.6 did."""
    return Connection(own_broker(properties=UNVERIFIED).bootstrap_servers)


def open_ordinary(connection, topic, partition, name):
    """An ongoing transaction as any client opens one; its record looks an hour old."""
    producer = Producer({**connection.librdkafka(), "transactional.id": name})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, "ordinary", partition=partition, timestamp=1_000)
    producer.flush(30)
    return producer


def blocked(connection, topic):
    with Admin(connection) as admin:
        return [p for p, w in admin.watermarks(topic).items() if w.last_stable < w.high]


def wait_until_readable(connection, topic, partition):
    for _ in Deadline(10).tries():
        if partition not in blocked(connection, topic):
            return
    raise AssertionError(f"{topic}-{partition} is still blocked")


def test_hanging_transactions_are_found_and_ended_and_ordinary_ones_are_let_be(unverified):
    """Mishap: readers of a partition wait forever behind a transaction that no time-out ends. Loss: an ordinary
    transaction that is taken for a hanging one and aborted.
    """
    topic = brokers.create_topic(unverified.bootstrap_servers, partitions=4)
    ours = open_ordinary(unverified, topic, 0, part_id("s", 1, 0, "0.0"))
    foreign = open_ordinary(unverified, topic, 1, "foreign")
    known_id = brokers.fresh_name("known")
    unknown, known = (
        leave_hanging(unverified, topic, 2),
        leave_hanging(unverified, topic, 3, known_id),
    )
    assert blocked(unverified, topic) == [0, 1, 2, 3]

    found = sorted(find_hanging(unverified, [topic]), key=lambda h: h.partition)
    assert [(h.partition, h.producer_id, h.transactional_id) for h in found] == [
        (2, unknown, None),
        (3, known, known_id),
    ]
    assert [h.name for h in found] == [f"{topic}-2@0", f"{topic}-3@0"]

    # the coordinator knows the id of the second and can do nothing for this partition: only the leader can
    for h in found:
        assert abort_hanging(unverified, h) is True
        wait_until_readable(unverified, topic, h.partition)
        assert abort_hanging(unverified, h) is False
    assert find_hanging(unverified, [topic], older_than_s=0) == []
    assert blocked(unverified, topic) == [0, 1]
    for producer in (ours, foreign):
        producer.commit_transaction(30)  # nobody ended them
    wait_until_readable(unverified, topic, 0)
    assert blocked(unverified, topic) == []


@pytest.mark.long
def test_a_young_transaction_is_not_called_hanging(unverified):
    """Mishap: one that has just begun can be at its leader before its coordinator is seen to know."""
    topic = brokers.create_topic(unverified.bootstrap_servers)
    leave_hanging(unverified, topic, 0, age_s=0)
    assert find_hanging(unverified, [topic]) == []
    assert len(find_hanging(unverified, [topic], older_than_s=0)) == 1


@pytest.mark.long
def test_hanging_transactions_are_found_after_their_leader_died(own_broker):
    """Mishap: a tool for bad nights that works on good ones. The next leader knows them from the log."""
    running = own_broker(nodes=3, properties=UNVERIFIED)
    connection = Connection(running.bootstrap_servers)
    topic = brokers.create_topic(connection.bootstrap_servers, partitions=3)
    for partition in range(3):  # one for each leader
        leave_hanging(connection, topic, partition)
    running.kill(2)
    found = find_hanging(connection, [topic], budget_s=60)
    assert sorted(h.partition for h in found) == [0, 1, 2]
    assert all(abort_hanging(connection, h, budget_s=60) for h in found)
    for partition in range(3):
        wait_until_readable(connection, topic, partition)


@pytest.mark.long
@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_that_kafka_ends_without_the_marker_of_a_partition_is_found_and_ended(own_broker, commit):
    """Mishap: readers wait forever behind a transaction that its coordinator calls complete. Kafka 4.3.1 takes a
    partition without a leader for deleted; a version that waits for a leader leaves nothing to be found.
    """
    running = own_broker(nodes=3)
    connection, topic, name = Connection(running.bootstrap_servers), brokers.fresh_name(), brokers.fresh_name("id")
    cluster = AdminClient({"bootstrap.servers": running.bootstrap_servers, "log_level": 0})
    new = NewTopic(topic, 1, 1, config={"min.insync.replicas": "1"})
    cluster.create_topics([new])[topic].result(30)

    def leader():
        return cluster.list_topics(topic, timeout=20).topics[topic].partitions[0].leader

    lost = leader()
    with Admin(connection) as admin:
        ids = [f"{name}-{n}" for n in range(20)]
        nodes = admin.ask(lambda: admin.coordinators(ids))
    producer = Producer({**connection.librdkafka(), "transactional.id": next(i for i in ids if nodes[i] != lost)})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, "v")
    producer.flush(30)
    running.kill(lost)
    until("the end of its session", lambda: leader() == -1, 60, every_s=0.5)
    (producer.commit_transaction if commit else producer.abort_transaction)(30)
    running.restart(lost)
    until("its return", lambda: leader() == lost, 60, every_s=0.5)

    found = find_hanging(connection, [topic], older_than_s=0, budget_s=60)
    assert blocked(connection, topic) == [h.partition for h in found]
    assert all(abort_hanging(connection, h, budget_s=60) for h in found)
    wait_until_readable(connection, topic, 0)


def test_topics_that_do_not_exist_have_no_hanging_transactions(connection):
    assert find_hanging(connection, [brokers.fresh_name("missing")]) == []
    assert find_hanging(connection, []) == []


def test_a_silent_cluster_is_said_within_the_budget():
    with pytest.raises(BrokerUnreachable):
        find_hanging(Connection("127.0.0.1:1"), ["t"], budget_s=1.0)
