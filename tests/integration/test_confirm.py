"""What the driver finds out before it decides, on a real broker: is each part open, and does it hold all its rows?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from exactly_once.deadline import now_ms
from exactly_once.errors import Expiring
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.participant import Proposal
from exactly_once.participants.kafka.transactions import confirm
from exactly_once.protocol.outcomes import Outcome
from exactly_once.protocol.planning import Batch
from exactly_once.protocol.records import Decision
from exactly_once.txn.coordinators import end_one, initialise
from exactly_once_local.cluster.embedded_broker import EmbeddedBroker
from testkit.broker import create_topic, fresh_name
from testkit.hanging import mark_aborted
from testkit.kafka_part import PartTransaction
from testkit.processes import until


@contextmanager
def part(connection: Connection) -> Iterator[tuple[PartTransaction, Admin]]:
    """An open transaction, aborted at the end."""
    with Admin(connection) as admin:
        opened = PartTransaction(connection, {}, f"eo:{fresh_name()}:1:0:0.0", 60_000, admin)
        try:
            yield opened, admin
        finally:
            opened.abort()


def send(opened: PartTransaction, topic: str) -> None:
    """Ten rows in two partitions."""
    for n in range(10):
        opened.send(topic, None, b"%d" % n, n % 2)
    opened.flush(30)


def refused(opened: PartTransaction, admin: Admin, why: str) -> None:
    """The batch of this one part is not decided."""
    decision = Decision("q", 0, 1, (opened.prepare(0, 30),), "d", 5, 0)
    proposal = Proposal("s", "/c", Batch("q", 0, "d"), decision, None, now_ms(), 60_000, 0, 0)
    with pytest.raises(Expiring, match=why):
        confirm(proposal, admin.renew(60), lambda topic_id: False)


def test_a_part_of_which_an_abort_marker_took_the_head_is_not_decided(connection: Connection) -> None:
    """Guards against a silent loss: the coordinator calls the transaction open, and commits what was sent behind the
    marker, without the rows before it.
    """
    topic = create_topic(connection.bootstrap_servers, partitions=2)
    with part(connection) as (opened, admin):
        behead(opened, topic, connection)
        refused(opened, admin, f"the leader of {topic}-1 .*at offset 6 instead of 0")


def behead(opened: PartTransaction, topic: str, connection: Connection) -> None:
    """Send rows to two partitions, of which partition 1 loses the first ones."""
    send(opened, topic)
    mark_aborted(connection, topic, 1)
    send(opened, topic)


@pytest.mark.long
def test_a_leader_that_is_down_does_not_hide_what_another_one_lost(own_broker: Callable[..., EmbeddedBroker]) -> None:
    """Guards against a silent loss beside a broker's failure, when losses come: one leader that cannot be asked kept
    all others from being heard.
    """
    broker = own_broker(nodes=3)
    connection, topic = Connection(broker.bootstrap_servers), fresh_name()
    client = AdminClient(connection.librdkafka())
    client.create_topics([NewTopic(topic, 2, replica_assignment=[[2], [1]])], operation_timeout=30)[topic].result(30)
    with part(connection) as (opened, admin):
        behead(opened, topic, connection)
        broker.kill(2)
        until("a partition without a leader", lambda: led_by(client, topic)[0] < 0, 60, 0.2)
        refused(opened, admin, f"the leader of {topic}-1 .*at offset 6 instead of 0")


def led_by(client: AdminClient, topic: str) -> dict[int, int]:
    """The leader of each partition; -1 for one that has none."""
    return {n: p.leader for n, p in client.list_topics(topic, timeout=10).topics[topic].partitions.items()}


def test_a_transaction_that_began_anew_between_two_requests_of_its_task_is_not_decided(connection: Connection) -> None:
    """Guards against a silent loss: where clients add partitions to a transaction, the next partition of one that
    somebody has ended begins another, under the same epoch, and half of the rows would be decided.
    """
    topic = create_topic(connection.bootstrap_servers, partitions=2)
    with part(connection) as (opened, admin):
        opened.send(topic, None, b"a", 0)
        opened.flush(30)
        assert end_one(admin, opened.name, opened.producer_id, opened.epoch, False, 4) is Outcome.DONE
        opened.send(topic, None, b"b", 1)
        refused(opened, admin, f"coordinator does not name {topic}-0")


def test_a_part_that_was_initialised_again_elsewhere_is_not_decided(connection: Connection) -> None:
    """Guards against a decision on a transaction that another attempt has aborted."""
    topic = create_topic(connection.bootstrap_servers, partitions=2)
    with part(connection) as (opened, admin):
        send(opened, topic)
        initialise(admin, opened.name, 60_000)
        refused(opened, admin, "is gone")
