"""A part on its way to the brokers by librdkafka: what arrives, and what is said when it does not."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from exactly_once.deadline import now_ms
from exactly_once.errors import Expiring, InvalidRecord, PrepareFailed
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.participant import Proposal
from exactly_once.participants.kafka.digest_scope import CHOOSE, NOW, Headers
from exactly_once.participants.kafka.transactions import confirm
from exactly_once.protocol.outcomes import Outcome
from exactly_once.protocol.planning import Batch
from exactly_once.protocol.records import Decision, Extent, PreparedTransaction
from exactly_once.txn.coordinators import end_one, end_txn_version, initialise
from exactly_once_local.cluster.embedded_broker import EmbeddedBroker
from testkit import oracle
from testkit.broker import create_topic, delete_topic, fresh_name
from testkit.hanging import mark_aborted
from testkit.kafka_part import PartTransaction
from testkit.processes import until


class Row(NamedTuple):
    """A row as a task sends it."""

    key: bytes | None
    value: bytes | None
    partition: int = CHOOSE
    headers: Headers = None
    timestamp_ms: int | None = NOW


@contextmanager
def part(connection: Connection, **settings: str) -> Iterator[PartTransaction]:
    """An open transaction, aborted at the end."""
    producer = {"message.max.bytes": "1048576", **{k.replace("_", "."): v for k, v in settings.items()}}
    with Admin(connection) as admin:
        opened = PartTransaction(connection, producer, f"eo:{fresh_name()}:1:0:0.0", 60_000, admin)
        try:
            yield opened
        finally:
            opened.abort()


def send(opened: PartTransaction, topic: str, rows: Iterable[Row]) -> None:
    for row in rows:
        opened.send(topic, *row)


def pairs(count: int, size: int = 20) -> list[Row]:
    return [Row(b"k%d" % n, b"%d" % n + b"x" * size) for n in range(count)]


def committed(connection: Connection, handle: PreparedTransaction, topic: str) -> None:
    """Commit, and wait for the markers: the coordinator answers before the leaders have them."""
    with Admin(connection) as admin:
        end = (handle.transactional_id, handle.producer_id, handle.epoch, True, end_txn_version(admin))
        assert end_one(admin, *end) is Outcome.DONE
        until("the markers", lambda: not oracle.held_back(admin, [topic]))


def written_to(topic: str, found: list[oracle.Message]) -> dict[tuple[str, int], Extent]:
    """What a part wrote that is alone in its topic, as a reader finds it."""
    offsets: dict[int, list[int]] = {}
    for m in found:
        offsets.setdefault(m.partition, []).append(m.offset)
    return {(topic, p): Extent(min(some), len(some)) for p, some in offsets.items()}


EVERY_COLUMN = [
    Row(b"k", b"v", 3, [("h", b"1"), ("h", None)], 1_357_034_400_123),
    Row(None, b"", 0),
    Row(b"", None, CHOOSE, None, 1_700_000_000_000),
    Row(b"k", b"tombstone? no", 2, None, 1),
    Row(b"other", "ä€".encode(), CHOOSE, [("", b"")]),
]


def test_every_column_arrives_and_the_handle_says_where(connection: Connection) -> None:
    """Guards against an empty value for a tombstone, a lost header, an hour of time, and a handle of other offsets."""
    topic = create_topic(connection.bootstrap_servers, partitions=4)
    rows = [*EVERY_COLUMN, *pairs(500)]
    with part(connection) as opened:
        send(opened, topic, rows)
        handle = opened.prepare(7, 30)
        assert oracle.read(connection, [topic]) == []
        committed(connection, handle, topic)
    size = sum(len(r.key or b"") + len(r.value or b"") for r in rows)
    assert (handle.part, handle.records, handle.bytes, handle.form) == (7, 505, size, "mixed")
    found = oracle.read(connection, [topic])
    assert len(found) == 505
    assert {p: Extent(e.first_offset, e.records) for p, e in handle.written.items()} == written_to(topic, found)
    for (_, partition), extent in handle.written.items():
        assert extent.oldest_ms == min(m.timestamp_ms for m in found if m.partition == partition)
    keyed = {(m.key, m.value): m for m in found}
    for row in EVERY_COLUMN:
        cells = (None if c is None else c.decode() for c in (row.key, row.value))
        m = keyed[tuple(cells)]  # type: ignore[index]
        assert row.partition in (CHOOSE, m.partition) and row.timestamp_ms in (NOW, m.timestamp_ms)
        assert [tuple(h) for h in m.headers or ()] == list(row.headers or ()), row


#: What a topic refuses -> its settings, the rows, what the broker says.
DAY_AFTER_TOMORROW = int(time.time() * 1000) + 2 * 86_400_000


def test_a_part_of_which_an_abort_marker_took_the_head_is_not_decided(connection: Connection) -> None:
    """Guards against a silent loss: the coordinator calls the transaction open, and commits what was sent behind the
    marker, without the rows before it.
    """
    topic = create_topic(connection.bootstrap_servers, partitions=2)
    with part(connection) as opened, Admin(connection) as admin:
        proposal = beheaded(opened, topic, connection)
        with pytest.raises(Expiring, match=f"the leader of {topic}-1 .*at offset 6 instead of 0"):
            confirm(proposal, admin, lambda topic_id: False)


def beheaded(opened: PartTransaction, topic: str, connection: Connection) -> Proposal:
    """A batch of one part with rows in two partitions, of which partition 1 has lost the first ones."""
    rows = [Row(None, b"%d" % n, n % 2) for n in range(10)]
    send(opened, topic, rows)
    opened.flush(30)
    mark_aborted(connection, topic, 1)
    send(opened, topic, rows)
    decision = Decision("q", 0, 1, (opened.prepare(0, 30),), "d", 5, 0)
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
    with part(connection) as opened, Admin(connection) as admin:
        proposal = beheaded(opened, topic, connection)
        broker.kill(2)
        until("a partition without a leader", lambda: led_by(client, topic)[0] < 0, 60, 0.2)
        with pytest.raises(Expiring, match=f"the leader of {topic}-1 .*at offset 6 instead of 0"):
            confirm(proposal, admin, lambda topic_id: False)


def led_by(client: AdminClient, topic: str) -> dict[int, int]:
    """The leader of each partition; -1 for one that has none."""
    return {n: p.leader for n, p in client.list_topics(topic, timeout=10).topics[topic].partitions.items()}


def test_a_transaction_that_began_anew_between_two_requests_of_its_task_is_not_prepared(
    connection: Connection,
) -> None:
    """Guards against a silent loss: where clients add partitions to a transaction, the next partition of one that
    somebody has ended begins another, under the same epoch, and the task would hand over half of its rows.
    """
    topic = create_topic(connection.bootstrap_servers, partitions=2)
    with part(connection) as opened, Admin(connection) as admin:
        opened.send(topic, None, b"a", 0)
        opened.flush(30)
        end = (opened.name, opened.producer_id, opened.epoch, False, 4)
        assert end_one(admin, *end) is Outcome.DONE
        opened.send(topic, None, b"b", 1)
        with pytest.raises(Expiring, match=f"coordinator does not name {topic}-0"):
            opened.prepare(0, 30)


def test_a_part_that_was_initialised_again_elsewhere_is_not_prepared(connection: Connection) -> None:
    """Guards against a handle for a transaction that another attempt has aborted."""
    topic = create_topic(connection.bootstrap_servers)
    with part(connection) as opened, Admin(connection) as admin:
        send(opened, topic, pairs(10))
        opened.flush(30)
        initialise(admin, opened.name, 60_000)
        send(opened, topic, pairs(10))
        with pytest.raises(PrepareFailed):
            opened.prepare(0, 30)
    assert oracle.read(connection, [topic]) == []


def test_an_aborted_part_leaves_nothing_open(connection: Connection) -> None:
    """Guards against readers that wait for a transaction until it times out."""
    topic = create_topic(connection.bootstrap_servers)
    with part(connection) as opened:
        send(opened, topic, pairs(1_000))
        opened.flush(30)
    with Admin(connection) as admin:
        until("no open transaction", lambda: all(m.last_stable == m.high for m in admin.watermarks(topic).values()), 10)
    assert oracle.read(connection, [topic]) == []


@pytest.mark.long
def test_a_topic_that_was_deleted_does_not_come_back(own_broker: Callable[..., EmbeddedBroker]) -> None:
    """Guards against a producer that makes the topic anew by naming it: empty, with the brokers' number of partitions,
    and nobody learns that what was in it is gone.
    """
    broker = own_broker(properties={"auto.create.topics.enable": "true"})
    connection = Connection(broker.bootstrap_servers)
    topic = create_topic(broker.bootstrap_servers, partitions=4)
    with part(connection, topic_metadata_propagation_max_ms="500") as opened, Admin(connection) as admin:
        opened.send(topic, b"k", b"before")
        opened.flush(30)
        delete_topic(broker.bootstrap_servers, topic)
        with pytest.raises(InvalidRecord, match=f"does not exist .*{topic}.* deleted while"):
            for n in range(1000):
                opened.send(topic, b"k%d" % n, b"after")
            opened.prepare(0, 40)
        assert admin.topic_ids([topic]) == {}
