"""True hanging transactions on a real broker: found at the leaders, told from ordinary ones, and ended."""

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from exactly_once.coordinator import resolve
from exactly_once.coordinator.consent import Consent
from exactly_once.coordinator.recover import recover
from exactly_once.coordinator.session import Session
from exactly_once.deadline import Deadline
from exactly_once.errors import BrokerUnreachable
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.protocol.records import ACCEPTED, PreparedTransaction
from exactly_once.tools.operation.end_hanging import COMMIT_HANGING, HangingParameters, list_hanging
from exactly_once.tools.operation.model import OperationContext
from exactly_once.tools.operation.rules import Refused
from exactly_once.txn import leaders
from exactly_once.txn.coordinators import end_one
from exactly_once.txn.leaders import end_by_marker, find_hanging
from testkit import broker as brokers
from testkit import oracle
from testkit.dead_sink import DeadSink
from testkit.hanging import UNVERIFIED, blocked, leave_hanging, wait_until_readable
from testkit.made_sink import MadeSink
from testkit.part_ids import part_id
from testkit.processes import until


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """The second look comes at once: no coordinator dies here."""
    monkeypatch.setattr(leaders, "_ASK_AGAIN_S", 0.1)


@pytest.fixture
def unverified(own_broker):
    """A broker that lets a transaction begin without its coordinator, as those before Kafka 3.6 did."""
    return Connection(own_broker(properties=UNVERIFIED).bootstrap_servers)


def open_ordinary(connection, topic, partition, name):
    """An ongoing transaction as any client opens one; its record looks an hour old."""
    producer = brokers.open_transaction(connection, name)
    producer.produce(topic, "ordinary", partition=partition, timestamp=1_000)
    producer.flush(30)
    return producer


def end(connection, name, force="", commit=None):
    """End a hanging transaction; returns whether it was committed."""
    p = HangingParameters(transaction=name, force=force, older_than_s=0, commit=commit)
    return COMMIT_HANGING.apply(OperationContext(connection, budget_s=60), p).value


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
        assert end_by_marker(unverified, h) is True
        wait_until_readable(unverified, topic, h.partition)
        assert end_by_marker(unverified, h) is False
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
    assert all(end_by_marker(connection, h, budget_s=60) for h in found)
    for partition in range(3):
        wait_until_readable(connection, topic, partition)


class Leader:
    """The only replica of a topic's one partition, on a cluster of three nodes."""

    def __init__(self, running):
        self.running, self.topic = running, brokers.fresh_name()
        self.connection = Connection(running.bootstrap_servers)
        self.cluster = AdminClient({"bootstrap.servers": running.bootstrap_servers, "log_level": 0})
        new = NewTopic(self.topic, 1, 1, config={"min.insync.replicas": "1"})
        self.cluster.create_topics([new])[self.topic].result(30)
        until("its leader", lambda: self.now() >= 0)
        self.node = self.now()

    def now(self):
        partitions = self.cluster.list_topics(self.topic, timeout=20).topics[self.topic].partitions
        return partitions[0].leader if partitions else -1

    def coordinates(self, transactional_id):
        with Admin(self.connection) as admin:
            return admin.ask(lambda: admin.coordinators([transactional_id]))[transactional_id] == self.node

    def __enter__(self):
        self.running.kill(self.node)
        until("the end of its session", lambda: self.now() == -1, 60, every_s=0.5)
        return self

    def __exit__(self, *_):
        self.running.restart(self.node)
        until("its return", lambda: self.now() == self.node, 60, every_s=0.5)

    def values(self):
        return [m.value for m in oracle.read(self.connection, [self.topic])]


@pytest.mark.long
@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_that_kafka_ends_without_the_marker_of_a_partition_is_found_and_ended(own_broker, commit):
    """Mishap: readers wait forever behind a transaction that its coordinator calls complete. Kafka 4.3.1 takes a
    partition without a leader for deleted; a version that waits for a leader leaves nothing to be found.
    """
    leader = Leader(own_broker(nodes=3))
    connection, topic = leader.connection, leader.topic
    name = next(n for n in (brokers.fresh_name("id") for _ in range(100)) if not leader.coordinates(n))
    producer = brokers.open_transaction(connection, name)
    producer.produce(topic, "v")
    producer.flush(30)
    with leader:
        (producer.commit_transaction if commit else producer.abort_transaction)(30)
    found = find_hanging(connection, [topic], older_than_s=0, budget_s=60)
    assert blocked(connection, topic) == [h.partition for h in found]
    assert all(end_by_marker(connection, h, commit, 60) for h in found)
    wait_until_readable(connection, topic, 0)
    assert leader.values() == (["v"] if commit else [])


@pytest.mark.long
def test_a_decided_part_that_kafka_left_without_a_marker_is_committed_by_hand(own_broker):
    """Loss: the commit log and the coordinator call the batch complete, its rows are hidden, and an abort would be the
    end of them.
    """
    leader = Leader(own_broker(nodes=3))
    made = (DeadSink(leader.connection, leader.topic) for _ in range(100))
    sink = next(s for s in made if not leader.coordinates(part_id(s.sink_id, 1, 0, "0.0")))
    sink.decide(sink.open_part(0))
    [decision] = sink.read().decisions
    [h] = decision.transactions
    with leader, Admin(leader.connection) as admin:
        end_one(admin, h.transactional_id, h.producer_id, h.epoch, True, decision.end_txn_version)
    recover(leader.connection, sink.sink_id)
    hanging = list_hanging(leader.connection, sink.sink_id, older_than_s=0, budget_s=60)
    if not hanging:
        pytest.skip("this Kafka wrote the marker later")
    [found] = hanging
    assert leader.values() == [] and found.decided is not None
    with pytest.raises(Refused, match=f"Run exactly-once transactions commit --hanging {found.hanging.name}"):
        end(leader.connection, found.hanging.name, commit=False)
    committed = end(leader.connection, found.hanging.name)
    assert committed
    wait_until_readable(leader.connection, leader.topic, 0)
    assert leader.values() == ["part 0"]


def test_topics_that_do_not_exist_have_no_hanging_transactions(connection):
    assert find_hanging(connection, [brokers.fresh_name("missing")]) == []
    assert find_hanging(connection, []) == []


def test_a_silent_cluster_is_said_within_the_budget():
    with pytest.raises(BrokerUnreachable):
        find_hanging(Connection("127.0.0.1:1"), ["t"], budget_s=1.0)


@pytest.mark.long
def test_nothing_shows_the_hanging_rest_of_what_a_person_gave_up_as_lost(unverified):
    """Duplicate: after sink.accept.lost a person writes the missing rows by hand. The log said "completed" as of any
    committed batch, and end_hanging committed the rest that hung on one partition: its rows were there twice.
    """
    topic = brokers.create_topic(unverified.bootstrap_servers)
    sink = MadeSink(unverified, topic)
    sink.claim()
    name = part_id(sink.sink_id, sink.token, 0, "0.0")
    producer_id = leave_hanging(unverified, topic, 0, name)
    decision = sink.decide(0, [PreparedTransaction(name, producer_id, 0, 0, 1)])
    sink.claim()
    with Session.without_driver(unverified, sink.sink_id, (), Deadline(30)) as session:
        consent = Consent(accept_lost=decision.consent)
        found = resolve.complete_decided(session, sink.token, consent, Deadline(30))
    assert [d.batch_id for d in found.completed] == [0]
    assert sink.log.read(Deadline(30), whole=True).marks["q", 0].how == ACCEPTED

    [found] = list_hanging(unverified, sink.sink_id, older_than_s=0, budget_s=60)
    assert found.decided is not None and found.completed == ACCEPTED
    for commit in (None, True):
        with pytest.raises(Refused, match=r"gave up parts .*batch 0"):
            end(unverified, found.hanging.name, commit=commit)
    assert blocked(unverified, topic) == [0]
    phrase = f"lose up to 1 record on {topic}-0, unless written again"
    committed = end(unverified, found.hanging.name, phrase)
    assert not committed
    wait_until_readable(unverified, topic, 0)
    assert oracle.read(unverified, [topic]) == []
