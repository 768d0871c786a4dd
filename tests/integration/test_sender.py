"""What a part's producer does when its topic or its brokers do not take the records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from exactly_once.errors import InvalidRecord
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.kafka.transaction import PartTransaction
from exactly_once.local.embedded_broker import EmbeddedBroker
from tests.support.broker import create_topic, delete_topic, fresh_name


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


@pytest.mark.parametrize("size", [20_000, 900])
def test_a_record_that_the_topic_refuses_is_named_with_its_key_and_size(size: int, connection: Connection) -> None:
    """Guards against an error that blames a client's limit, and the first record of the request in place of the large
    one: nobody would find it. The second size is allowed, but not the request that it is sent in.
    """
    topic = create_topic(connection.bootstrap_servers, config={"max.message.bytes": "10000"})
    with part(connection, linger_ms="200") as opened:
        for n in range(30):
            opened.send(topic, b"small-%d" % n, b"x" * 500)
        opened.send(topic, b"large", b"x" * size)
        with pytest.raises(InvalidRecord) as refused:
            opened.prepare(0, 30)
    said = str(refused.value)
    assert f"max.message.bytes of topic '{topic}'" in said and f"the key b'large' and a value of {size} bytes" in said
    assert "max.request.size" not in said


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
        with pytest.raises(InvalidRecord, match=f"does not exist .*{topic}.* deleted while the stream was running"):
            for n in range(1000):
                opened.send(topic, b"k%d" % n, b"after")
            opened.prepare(0, 40)
        assert admin.topic_ids([topic]) == {}
