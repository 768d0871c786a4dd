"""An inspection against real brokers: what is open, what is decided, who waits for it, and nothing else."""

import json

import pytest
from confluent_kafka import Producer, TopicPartition

from exactly_once.deadline import Deadline
from exactly_once.errors import BrokerUnreachable
from exactly_once.inspection.sink import inspect_sink, sinks
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.protocol.records import Decision, PreparedPart, PreparedTransaction
from exactly_once.txn.coordinators import describe, end_one, end_txn_version
from testkit import broker as brokers
from testkit.dead_sink import DeadSink
from testkit.part_ids import part_id


@pytest.fixture
def sink(connection, topic):
    return DeadSink(connection, topic)


def commit_offset(connection, group, topic, partition):
    """A group that has read ``partition`` and is gone."""
    brokers.commit_offsets(connection, group, [TopicPartition(topic, partition, 0)])


def test_a_sink_that_was_never_used_is_quiet(connection):
    found = inspect_sink(connection, brokers.fresh_name("unused"))
    assert found.quiet and found.owner is None and found.recent == ()


def test_open_transactions_are_told_by_their_verdict_oldest_first(connection, sink):
    """Duplicate: an undecided transaction that passes for a decided one would be committed, and written again."""
    decided, undecided = sink.open_part(0), sink.open_part(1)
    sink.decide(decided)
    found = inspect_sink(connection, sink.sink_id)
    parts = [t for t in found.open if t.verdict != "log"]  # the write of the decision may still get its end marker
    assert [(t.transactional_id, t.verdict) for t in parts] == [(decided, "decided"), (undecided, "undecided")]
    assert (parts[0].batch_id, parts[0].records, parts[0].timeout_s) == (0, 1, 60.0)
    assert [(d.batch_id, d.parts[0].state) for d in found.decided] == [(0, "decided")]
    assert {(b.topic, b.partition) for b in found.blocked} == {p for t in found.open for p in t.partitions}
    assert all(b.ours and b.waiting == 1 and b.groups == () for b in found.blocked)
    assert found.owner.claim.host == "elsewhere" and found.owner.alive is None
    assert found.readers_complete is None
    json.dumps(found.as_json())


def test_what_became_of_a_decided_part_is_the_coordinators_word(connection, sink):
    """Loss: an aborted part that looks committed would never be missed."""
    committed, aborted, waiting = (sink.open_part(p) for p in range(3))
    sink.decide(committed, aborted, waiting)
    handles = {h.transactional_id: h for h in sink.read().decisions[0].handles}
    with Admin(connection) as admin:
        version = end_txn_version(admin)
        for name, commit in ((committed, True), (aborted, False)):
            end_one(admin, name, handles[name].producer_id, handles[name].epoch, commit, version)
    parts = {p.transactional_id: p.state for p in inspect_sink(connection, sink.sink_id).decided[0].parts}
    assert parts == {committed: "committed", aborted: "lost", waiting: "decided"}
    # the id serves a new transaction: nothing is known of the old one any more
    sink.open_part(0)
    pending = inspect_sink(connection, sink.sink_id).decided[0]
    assert (pending.count("unknown"), pending.count("lost"), pending.count("decided")) == (1, 1, 1)


def test_a_batch_that_waits_for_another_output_says_so(connection, sink):
    """Mishap: the parts in Kafka are committed, the batch is not proven, and nothing tells what it waits for."""
    part = PreparedPart("warehouse", f"eo:{sink.sink_id}:1:0:3:0.0:warehouse", 3, 7, "d")
    name = sink.open_part(0)
    with Admin(connection) as admin:
        version = end_txn_version(admin)
        described = describe(admin, [name])[name]
        handle = PreparedTransaction(name, described.producer_id, described.producer_epoch, 0, 1, digest="d")
        sink.log.append(Decision("q", 0, 1, (handle, part), "digest", version, 0, topics=(sink.topic,)), Deadline(30))
        end_one(admin, name, handle.producer_id, handle.epoch, True, version)
    (pending,) = inspect_sink(connection, sink.sink_id).decided
    assert [(p.participant, p.part, p.records, p.state) for p in pending.parts] == [
        ("kafka", 0, 1, "committed"),
        ("warehouse", 3, 7, "unasked"),
    ]
    assert pending.unasked == {"warehouse": 1}


def test_consumer_groups_that_wait_are_named(connection, sink):
    """Mishap: whom a stuck transaction hurts is the first question at night."""
    sink.open_part(2)
    waiting, elsewhere = brokers.fresh_name("waits"), brokers.fresh_name("reads-elsewhere")
    commit_offset(connection, waiting, sink.topic, 2)
    commit_offset(connection, elsewhere, sink.topic, 3)
    found = inspect_sink(connection, sink.sink_id, readers=True)
    assert [(b.partition, b.groups) for b in found.blocked] == [(2, (waiting,))]
    assert found.readers_complete is True


def test_a_foreign_transaction_that_blocks_our_topic_is_not_called_ours(connection, sink):
    """Mishap: a recovery of this sink would not help its readers."""
    sink.decide(sink.open_part(0))
    foreign = brokers.open_transaction(connection)
    foreign.produce(sink.topic, "x", partition=3)
    foreign.flush(30)
    found = inspect_sink(connection, sink.sink_id)
    assert [(b.partition, b.ours) for b in found.blocked] == [(0, True), (3, False)]
    foreign.abort_transaction(30)


def test_sinks_are_found_by_their_logs_and_by_their_ids(connection, sink):
    """Mishap: a sink whose log was deleted still holds transactions open."""
    only_ids = brokers.fresh_name("no-log")
    name = part_id(only_ids, 1, 0, "0.0")
    producer = Producer({**connection.librdkafka(), "transactional.id": name})
    producer.init_transactions(30)
    assert {sink.sink_id, only_ids} <= set(sinks(connection))


def test_a_silent_cluster_is_said_within_the_budget():
    with pytest.raises(BrokerUnreachable):
        inspect_sink(Connection("127.0.0.1:1"), "s", budget_s=1.0)
