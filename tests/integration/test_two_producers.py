"""The two ways of a part to the brokers, record batches of our own and librdkafka: same records, same errors."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from exactly_once.deadline import now_ms
from exactly_once.errors import Expiring, InvalidRecord, PrepareFailed
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.kafka.open_transaction import Opening
from exactly_once.kafka.produce.records import CHOOSE, NOW, Records
from exactly_once.kafka.produce.sender import Routes, Settings
from exactly_once.kafka.produce.transaction import ArrowTransaction
from exactly_once.kafka.transaction import PartTransaction
from exactly_once.kafka.transactions import end_one, initialise
from exactly_once.local.embedded_broker import EmbeddedBroker
from exactly_once.participant import Proposal
from exactly_once.participants.kafka_transactions import confirm
from exactly_once.protocol.outcomes import Outcome
from exactly_once.protocol.planning import Batch
from exactly_once.protocol.records import Decision, Extent, PreparedTransaction
from tests.support import oracle
from tests.support.broker import create_topic, delete_topic, fresh_name
from tests.support.hanging import mark_aborted
from tests.support.processes import until
from tests.support.record_rows import HEADERS

#: Way -> the version of EndTxn that belongs to it.
WAYS = {"arrow, EndTxn v5": 5, "arrow, EndTxn v4": 4, "librdkafka": 5}
ARROW = [way for way in WAYS if way != "librdkafka"]

AnyTransaction = ArrowTransaction | PartTransaction


@contextmanager
def opened(way: str, connection: Connection, **settings: str) -> Iterator[AnyTransaction]:
    """An open transaction, aborted at the end."""
    producer = {"message.max.bytes": "1048576", **{k.replace("_", "."): v for k, v in settings.items()}}
    name = f"eo:{fresh_name()}:1:0:0.0"
    with Admin(connection) as admin:
        transaction: AnyTransaction
        if way == "librdkafka":
            transaction = PartTransaction(connection, producer, name, 60_000, admin)
        else:
            delivery_s = int(producer.get("delivery.timeout.ms", 60_000)) / 1000
            version = WAYS[way]
            transaction = ArrowTransaction(
                Routes(admin),
                Settings.of(producer, delivery_s),
                Opening(admin, name, 60_000, None),
                version,
                version >= 5,
            )
        try:
            yield transaction
        finally:
            transaction.abort()


def committed(way: str, connection: Connection, handle: PreparedTransaction, topic: str) -> None:
    """Commit, and wait for the markers: the coordinator answers before the leaders have them."""
    with Admin(connection) as admin:
        outcome = end_one(admin, handle.transactional_id, handle.producer_id, handle.epoch, True, WAYS[way])
        assert outcome is Outcome.DONE
        until("the markers", lambda: not oracle.held_back(admin, [topic]))


def binary(*cells: bytes | None) -> pa.Array:
    return pa.array(cells, pa.binary())


def pairs(count: int, size: int = 20) -> Records:
    return Records(
        binary(*(b"k%d" % n for n in range(count))), binary(*(b"%d" % n + b"x" * size for n in range(count)))
    )


def written_to(topic: str, found: list[oracle.Message]) -> dict[tuple[str, int], Extent]:
    """What a part wrote that is alone in its topic, as a reader finds it."""
    offsets: dict[int, list[int]] = {}
    for m in found:
        offsets.setdefault(m.partition, []).append(m.offset)
    return {(topic, p): Extent(min(some), len(some)) for p, some in offsets.items()}


EVERY_COLUMN = Records(
    binary(b"k", None, b"", b"k", b"other"),
    binary(b"v", b"", None, b"tombstone? no", "ä€".encode()),
    pa.array(
        [[{"key": "h", "value": b"1"}, {"key": "h", "value": None}], [], None, None, [{"key": "", "value": b""}]],
        HEADERS,
    ),
    np.array([1_357_034_400_123, NOW, 1_700_000_000_000, 1, NOW]),
    np.array([3, 0, CHOOSE, 2, CHOOSE]),
)


def test_every_column_arrives_the_same_by_each_way(connection: Connection) -> None:
    """Guards against records that change when a user changes the way: another partition for a key, an empty value for
    a tombstone, a lost header, an hour of time.
    """
    seen = []
    for way in WAYS:
        topic = create_topic(connection.bootstrap_servers, partitions=4)
        with opened(way, connection) as transaction:
            transaction.send_columns(topic, EVERY_COLUMN)
            transaction.flush(30)  # the next ones have other columns
            transaction.send_columns(topic, pairs(500))
            handle = transaction.prepare(7, 30)
            assert oracle.read(connection, [topic]) == []
            committed(way, connection, handle, topic)
        assert (handle.part, handle.records, handle.bytes) == (7, 505, EVERY_COLUMN.bytes + pairs(500).bytes)
        found = oracle.read(connection, [topic])
        chosen = {1_357_034_400_123, 1_700_000_000_000, 1}
        rows = [
            (m.partition, m.key, m.value, m.headers, m.timestamp_ms if m.timestamp_ms in chosen else 0) for m in found
        ]
        seen.append(sorted(rows, key=repr))
        assert handle.written == written_to(topic, found)
    assert seen[0] == seen[1] == seen[2]
    assert len(seen[0]) == 505


#: What a topic refuses -> its settings, the rows, the row to be named, what the broker says.
DAY_AFTER_TOMORROW = int(time.time() * 1000) + 2 * 86_400_000
REFUSED = {
    "no key for a compacted topic": (
        {"cleanup.policy": "compact"},
        Records(binary(b"k0", None, b"k2"), binary(b"v", b"v", b"v")),
        "key None",
        "key",
    ),
    "a timestamp ahead of the brokers": (
        {"message.timestamp.after.max.ms": "3600000"},
        Records(binary(b"k0", b"k1", b"k2"), binary(b"v", b"v", b"v"), None, np.array([NOW, DAY_AFTER_TOMORROW, NOW])),
        "key b'k1'",
        "imestamp",
    ),
}


@pytest.mark.parametrize("way", [ARROW[0], "librdkafka"])
@pytest.mark.parametrize("refused", REFUSED)
def test_a_record_that_the_brokers_refuse_is_named_and_restarts_nothing(
    refused: str, way: str, connection: Connection
) -> None:
    """A restart storm over one row, with a notice that blames healthy brokers and names no key. librdkafka fails a
    batch, and does not tell which record of it.
    """
    settings, rows, row, said = REFUSED[refused]
    topic = create_topic(connection.bootstrap_servers, partitions=1, config=settings)
    with opened(way, connection) as transaction, pytest.raises(InvalidRecord) as raised:
        transaction.send_columns(topic, rows)
        transaction.prepare(0, 30)
    assert not raised.value.restart_heals
    row = "first key b'k0'" if way == "librdkafka" else row
    assert topic in raised.value.what and row in raised.value.what and said in raised.value.what, raised.value


@pytest.mark.parametrize(("way", "codec"), [(ARROW[0], "none"), (ARROW[1], "lz4"), (ARROW[0], "gzip")])
def test_a_part_of_many_requests_arrives_in_order(way: str, codec: str, connection: Connection) -> None:
    """Guards against batches that overtake each other: the order of a key is all that Kafka promises."""
    topic = create_topic(connection.bootstrap_servers, partitions=3)
    rows = pairs(20_000, 50)
    with opened(way, connection, batch_size="3000", compression_type=codec) as transaction:
        for start in range(0, len(rows), 7_000):
            transaction.send_columns(topic, rows.slice(start, min(7_000, len(rows) - start)))
        handle = transaction.prepare(0, 60)
        committed(way, connection, handle, topic)
    found = oracle.read(connection, [topic])
    assert len(found) == len(rows)
    for partition in range(3):
        numbers = [int((m.key or "")[1:]) for m in found if m.partition == partition]
        assert numbers and numbers == sorted(numbers)
    assert handle.written == written_to(topic, found)
    assert handle.place == (topic, 0, handle.written[topic, 0].first_offset)


@pytest.mark.parametrize("way", [ARROW[0], "librdkafka"])
def test_a_part_of_which_an_abort_marker_took_the_head_is_not_decided(way: str, connection: Connection) -> None:
    """Guards against a silent loss: the coordinator calls the transaction open, and commits what was sent behind the
    marker, without the rows before it.
    """
    topic = create_topic(connection.bootstrap_servers, partitions=2)
    with opened(way, connection) as transaction, Admin(connection) as admin:
        proposal = beheaded(transaction, topic, connection, WAYS[way])
        with pytest.raises(Expiring, match=f"the leader of {topic}-1 says that it begins at offset 6, and not at 0"):
            confirm(proposal, admin, lambda topic_id: False)


def beheaded(transaction: AnyTransaction, topic: str, connection: Connection, version: int) -> Proposal:
    """A batch of one part with rows in two partitions, of which partition 1 has lost the first ones."""
    rows = Records(None, binary(*(b"%d" % n for n in range(10))), partitions=np.array([0, 1] * 5))
    transaction.send_columns(topic, rows)
    transaction.flush(30)
    mark_aborted(connection, topic, 1)
    transaction.send_columns(topic, rows)
    decision = Decision("q", 0, 1, (transaction.prepare(0, 30),), "d", version, 0)
    return Proposal("s", "/c", Batch("q", 0, "d"), decision, None, now_ms(), 60_000, 0, 0)


@pytest.mark.long
def test_a_leader_that_is_down_does_not_hide_what_another_one_lost(own_broker: Callable[..., EmbeddedBroker]) -> None:
    """Guards against a silent loss beside a broker's failure, when losses come: one leader that cannot be asked kept
    all others from being heard.
    """
    broker = own_broker(nodes=3)
    connection, topic = Connection(broker.bootstrap_servers), fresh_name()
    client = AdminClient(connection.librdkafka())
    client.create_topics([NewTopic(topic, 2, replica_assignment=[[2], [1]])], operation_timeout=30)[topic].result(30)
    with opened(ARROW[0], connection) as transaction, Admin(connection) as admin:
        proposal = beheaded(transaction, topic, connection, 5)
        broker.kill(2)
        until("a partition without a leader", lambda: led_by(client, topic)[0] < 0, 60, 0.2)
        with pytest.raises(Expiring, match=f"the leader of {topic}-1 says that it begins at offset 6, and not at 0"):
            confirm(proposal, admin, lambda topic_id: False)


def led_by(client: AdminClient, topic: str) -> dict[int, int]:
    """The leader of each partition; -1 for one that has none."""
    return {n: p.leader for n, p in client.list_topics(topic, timeout=10).topics[topic].partitions.items()}


@pytest.mark.parametrize("way", [ARROW[1], "librdkafka"])
def test_a_transaction_that_began_anew_between_two_requests_of_its_task_is_not_prepared(
    way: str, connection: Connection
) -> None:
    """Guards against a silent loss: where clients add partitions to a transaction, the next partition of one that
    somebody has ended begins another, under the same epoch, and the task would hand over half of its rows.
    """
    topic = create_topic(connection.bootstrap_servers, partitions=2)
    with opened(way, connection) as transaction, Admin(connection) as admin:
        transaction.send_columns(topic, Records(None, binary(b"a"), partitions=np.array([0])))
        transaction.flush(30)
        mine = transaction.open
        end = (mine.transactional_id, mine.producer_id, mine.epoch, False, 4)
        assert end_one(admin, *end) is Outcome.DONE
        transaction.send_columns(topic, Records(None, binary(b"b"), partitions=np.array([1])))
        with pytest.raises(Expiring, match=f"its coordinator does not name {topic}-0, to which the task wrote"):
            transaction.prepare(0, 30)


def test_rows_without_a_key_are_spread_over_the_partitions(connection: Connection) -> None:
    """Guards against a hot partition."""
    topic = create_topic(connection.bootstrap_servers, partitions=4)
    with opened(ARROW[0], connection) as transaction:
        transaction.send_columns(topic, Records(None, binary(*(b"x" * 1_000 for _ in range(400)))))
        committed(ARROW[0], connection, transaction.prepare(0, 30), topic)
    found = oracle.read(connection, [topic])
    assert sorted({m.partition for m in found}) == [0, 1, 2, 3] and len(found) == 400


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", [20_000, 900])
def test_a_record_that_the_topic_refuses_is_named_with_its_key_and_size(
    size: int, way: str, connection: Connection
) -> None:
    """Guards against an error that blames a client's limit, and the first record of the request in place of the large
    one: nobody would find it. The second size is allowed, but not the request that it is sent in.
    """
    topic = create_topic(connection.bootstrap_servers, config={"max.message.bytes": "10000"})
    keys = binary(*(b"small-%d" % n for n in range(30)), b"large")
    values = binary(*(b"x" * 500 for _ in range(30)), b"x" * size)
    with opened(way, connection, linger_ms="200") as transaction:
        transaction.send_columns(topic, Records(keys, values))
        with pytest.raises(InvalidRecord) as refused:
            transaction.prepare(0, 30)
    said = str(refused.value)
    assert f"max.message.bytes of topic '{topic}'" in said and f"the key b'large' and a value of {size} bytes" in said
    assert "max.request.size" not in said


@pytest.mark.parametrize("way", WAYS)
def test_a_record_above_the_users_own_limit_is_refused_before_it_is_sent(way: str, connection: Connection) -> None:
    """Guards against a limit that only one of the ways keeps."""
    topic = create_topic(connection.bootstrap_servers)
    with opened(way, connection, message_max_bytes="5000") as transaction, pytest.raises(InvalidRecord) as refused:
        transaction.send_columns(topic, Records(binary(b"a", b"big"), binary(b"1", b"x" * 9_000)))
        transaction.prepare(0, 30)
    assert "key b'big', value of 9000 bytes" in str(refused.value) and "max.request.size" in str(refused.value)


@pytest.mark.parametrize("way", WAYS)
def test_a_partition_that_does_not_exist_is_named(way: str, connection: Connection) -> None:
    """Guards against rows that wait for a partition that never comes."""
    topic = create_topic(connection.bootstrap_servers, partitions=2)
    rows = Records(None, binary(b"v"), partitions=np.array([9]))
    with opened(way, connection, message_timeout_ms="5000") as transaction, pytest.raises(InvalidRecord, match=topic):
        transaction.send_columns(topic, rows)
        transaction.prepare(0, 30)


def test_a_partition_that_is_added_while_a_part_is_written_can_be_named(connection: Connection) -> None:
    """Guards against a part that fails over leaders which it asked for before the topic grew."""
    topic = create_topic(connection.bootstrap_servers, partitions=1)
    with opened(ARROW[0], connection) as transaction:
        transaction.send_columns(topic, Records(None, binary(b"v"), partitions=np.array([0])))
        transaction.flush(30)
        client = AdminClient(connection.librdkafka())
        client.create_partitions([NewPartitions(topic, 3)])[topic].result(30)
        transaction.send_columns(topic, Records(None, binary(b"w"), partitions=np.array([2])))
        committed(ARROW[0], connection, transaction.prepare(0, 30), topic)
    assert [(m.partition, m.value) for m in oracle.read(connection, [topic])] == [(0, "v"), (2, "w")]


@pytest.mark.parametrize("way", WAYS)
def test_a_part_that_was_initialised_again_elsewhere_is_not_prepared(way: str, connection: Connection) -> None:
    """Guards against a handle for a transaction that another attempt has aborted."""
    topic = create_topic(connection.bootstrap_servers)
    with opened(way, connection) as transaction, Admin(connection) as admin:
        transaction.send_columns(topic, pairs(10))
        transaction.flush(30)
        initialise(admin, transaction.open.transactional_id, 60_000)
        transaction.send_columns(topic, pairs(10))
        with pytest.raises(PrepareFailed):
            transaction.prepare(0, 30)
    assert oracle.read(connection, [topic]) == []


@pytest.mark.parametrize("way", WAYS)
def test_an_aborted_part_leaves_nothing_open(way: str, connection: Connection) -> None:
    """Guards against readers that wait for a transaction until it times out."""
    topic = create_topic(connection.bootstrap_servers)
    with opened(way, connection) as transaction:
        transaction.send_columns(topic, pairs(1_000))
        transaction.flush(30)
    with Admin(connection) as admin:
        until("no open transaction", lambda: all(m.last_stable == m.high for m in admin.watermarks(topic).values()), 10)
    assert oracle.read(connection, [topic]) == []


@pytest.mark.parametrize("way", [ARROW[0], pytest.param(ARROW[1], marks=pytest.mark.long)])
def test_a_broker_that_is_killed_while_a_part_is_sent_costs_no_record_and_doubles_none(
    way: str, own_broker: Callable[..., EmbeddedBroker]
) -> None:
    """Guards against a batch that is lost with its unanswered request, or is there twice after it was sent again."""
    broker = own_broker()
    connection = Connection(broker.bootstrap_servers)
    topic = create_topic(broker.bootstrap_servers, partitions=4)
    rows = pairs(60_000, 100)
    with opened(way, connection, batch_size="4000", delivery_timeout_ms="60000") as transaction:
        timer = threading.Timer(0.05, lambda: (broker.kill(), broker.restart()))
        timer.start()
        for start in range(0, len(rows), 10_000):
            transaction.send_columns(topic, rows.slice(start, 10_000))
        handle = transaction.prepare(0, 60)
        timer.join()
        committed(way, connection, handle, topic)
    found = oracle.read(connection, [topic])
    assert sorted(int((m.key or "")[1:]) for m in found) == list(range(len(rows)))


@pytest.mark.long
@pytest.mark.parametrize("way", ARROW)
def test_leaders_and_coordinators_that_move_while_a_part_is_sent_cost_no_record(
    way: str, own_broker: Callable[..., EmbeddedBroker]
) -> None:
    """Guards against a part that is sent to deposed leaders, and records out of order after a move."""
    cluster = own_broker(nodes=3)
    connection = Connection(cluster.bootstrap_servers)
    topic = create_topic(cluster.bootstrap_servers, partitions=6)
    rows, rng = pairs(60_000, 100), random.Random(1)
    with opened(way, connection, batch_size="4000", delivery_timeout_ms="60000") as transaction:
        for start in range(0, len(rows), 6_000):
            if start % 24_000 == 6_000:
                node = rng.randrange(1, 4)
                cluster.kill(node)
                restart = threading.Thread(target=cluster.restart, args=(node,))
                restart.start()
            transaction.send_columns(topic, rows.slice(start, 6_000))
            transaction.flush(60)
        handle = transaction.prepare(0, 60)
        restart.join()
        committed(way, connection, handle, topic)
    found = oracle.read(connection, [topic])
    assert sorted(int((m.key or "")[1:]) for m in found) == list(range(len(rows)))
    for partition in range(6):
        numbers = [int((m.key or "")[1:]) for m in found if m.partition == partition]
        assert numbers == sorted(numbers)


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
def test_a_topic_that_was_deleted_does_not_come_back(way: str, own_broker: Callable[..., EmbeddedBroker]) -> None:
    """Guards against a producer that makes the topic anew by naming it: empty, with the brokers' number of partitions,
    and nobody learns that what was in it is gone.
    """
    broker = own_broker(properties={"auto.create.topics.enable": "true"})
    connection = Connection(broker.bootstrap_servers)
    topic = create_topic(broker.bootstrap_servers, partitions=4)
    with opened(way, connection, topic_metadata_propagation_max_ms="500") as transaction, Admin(connection) as admin:
        transaction.send_columns(topic, pairs(1))
        transaction.flush(30)
        delete_topic(broker.bootstrap_servers, topic)
        with pytest.raises(InvalidRecord, match=f"does not exist .*{topic}.* deleted while the stream was running"):
            transaction.send_columns(topic, pairs(1_000))
            transaction.prepare(0, 60)
        assert admin.topic_ids([topic]) == {}
