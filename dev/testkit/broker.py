"""Topics and brokers for tests."""

from __future__ import annotations

import itertools
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from exactly_once.kafka.connection import Connection
from exactly_once.sparkenv.jars import broker_classpath, resolve_configuration
from exactly_once_local.cluster.embedded_broker import EmbeddedBroker
from testkit.processes import until

# A broker whose transactions time out when they should, not up to ten seconds later.
FAST_TIME_OUTS = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "1000",
}
#: A release of ivy-kafkas.xml, for make test-kafkas. Default: the embedded broker's.
KAFKA = os.environ.get("TEST_KAFKA") or None
_counter = itertools.count(1)


def kafka_classpath() -> str:
    """Return the class path of the tests' brokers."""
    if KAFKA is None:
        return broker_classpath()
    return os.pathsep.join(map(str, resolve_configuration(Path(__file__).with_name("ivy-kafkas.xml"), KAFKA)))


def test_broker(data_dir: Path, *, nodes: int = 1, properties: dict[str, str] | None = None) -> EmbeddedBroker:
    """A broker for a test: in a fresh folder, on free ports, with fast transaction time-outs, of the release
    :data:`KAFKA`. Not started.
    """
    settings = FAST_TIME_OUTS | (properties or {})
    return EmbeddedBroker(data_dir, nodes=nodes, properties=settings, classpath=kafka_classpath())


test_broker.__test__ = False  # type: ignore[attr-defined]  # a helper, not a test


@contextmanager
def running_broker(data_dir: Path, properties: dict[str, str] | None = None) -> Iterator[EmbeddedBroker]:
    """Yield a broker for a test, started.

    It is killed in the end: nobody uses its folder again, and an orderly stop is slow.
    """
    with test_broker(data_dir, properties=properties) as broker:
        try:
            yield broker
        finally:
            broker.kill()


def fresh_name(prefix: str = "t") -> str:
    """Return a name no other test uses, fit for a topic, a sink id, a group."""
    return f"{prefix}-{next(_counter)}-{uuid.uuid4().hex[:6]}"


def _admin(bootstrap_servers: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})


def create_topic(
    bootstrap_servers: str,
    name: str | None = None,
    partitions: int = 1,
    config: dict[str, str] | None = None,
) -> str:
    """Create a topic (with a name of its own when none is given), wait until it can be written, return its name."""
    name = name or fresh_name()
    create_topics(bootstrap_servers, {name: partitions}, config)
    return name


def create_topics(bootstrap_servers: str, partitions: dict[str, int], config: dict[str, str] | None = None) -> None:
    """Create several topics, ``partitions`` by name, and wait until all of them can be written."""
    admin = _admin(bootstrap_servers)
    topics = [NewTopic(name, num_partitions=count, config=config or {}) for name, count in partitions.items()]
    for creation in admin.create_topics(topics, operation_timeout=30, request_timeout=30).values():
        creation.result(30)
    _await_partitions(admin, partitions)


def grow_topic(bootstrap_servers: str, name: str, partitions: int) -> None:
    """Add partitions to a topic until it has so many, and wait until they can be written."""
    admin = _admin(bootstrap_servers)
    admin.create_partitions([NewPartitions(name, partitions)])[name].result(30)
    _await_partitions(admin, {name: partitions})


def _await_partitions(admin: AdminClient, partitions: dict[str, int]) -> None:
    for name, count in partitions.items():  # the controller has made it; a broker hears of it a moment later

        def is_known(name: str = name, count: int = count) -> bool:
            seen = admin.list_topics(name, 10).topics[name]
            return seen.error is None and len(seen.partitions) == count

        until(f"topic {name}", is_known)


def change_topic(bootstrap_servers: str, name: str, setting: str, value: str) -> None:
    """Change a setting of a topic, and wait until the broker has it."""
    admin = _admin(bootstrap_servers)
    entry = ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
    change = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
    for done in admin.incremental_alter_configs([change]).values():
        done.result(30)

    def is_set() -> bool:
        described = admin.describe_configs([ConfigResource(ResourceType.TOPIC, name)])
        return all(entries.result(30)[setting].value == value for entries in described.values())

    until(f"{setting} of topic {name}", is_set)


def delete_topic(bootstrap_servers: str, name: str) -> None:
    """Delete a topic, and wait until no broker that is asked knows it."""
    admin = _admin(bootstrap_servers)
    admin.delete_topics([name], operation_timeout=30)[name].result(30)
    until(f"topic {name} gone", lambda: name not in admin.list_topics(timeout=10).topics)


def open_transaction(connection: Connection, name: str = "", **settings: Any) -> Producer:
    """Return the producer of an open transaction, under ``name`` or an id that no other test uses."""
    of_it = {"transactional.id": name or fresh_name("id"), "transaction.timeout.ms": 60_000, "log_level": 2}
    producer = Producer({**connection.librdkafka(), **of_it, **settings})
    producer.init_transactions(30)
    producer.begin_transaction()
    return producer


def send_offsets(connection: Connection, group: str, ends: list[TopicPartition]) -> Producer:
    """Commit offsets of a group in a transaction that stays open; returns its producer."""
    producer = open_transaction(connection)
    member = Consumer({**connection.librdkafka(), "group.id": group})
    producer.send_offsets_to_transaction(ends, member.consumer_group_metadata(), 30)
    member.close()
    return producer


def commit_offsets(connection: Connection, group: str, ends: list[TopicPartition]) -> None:
    """Commit offsets of a group that nobody reads with: a fresh broker refuses it while it loads its groups."""
    consumer = Consumer({**connection.librdkafka(), "group.id": group})

    def committed() -> bool:
        try:
            consumer.commit(offsets=ends, asynchronous=False)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.COORDINATOR_LOAD_IN_PROGRESS:
                raise
            return False
        return True

    try:
        until("the offsets", committed, 30, every_s=0.1)
    finally:
        consumer.close()
