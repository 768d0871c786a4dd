"""The private names of kafka-clients, which TransactionalProducer.java reaches by reflection, and what its producer
does with an open transaction: in the JVM of Spark's Kafka connector, without Spark.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.sparkenv.jars import session_jars
from exactly_once.txn.coordinators import describe
from testkit.broker import create_topic, fresh_name
from testkit.java import running_java, sparks_jars
from testkit.processes import until

PRODUCER = "org.apache.kafka.clients.producer.KafkaProducer"
MANAGER = "org.apache.kafka.clients.producer.internals.TransactionManager"
IDENTITY = "org.apache.kafka.common.utils.ProducerIdAndEpoch"

#: Class -> its private fields that the sink reads or sets.
FIELDS = {
    PRODUCER: ("transactionManager",),
    MANAGER: (
        "transactionCoordinator",
        "transactionalId",
        "currentState",
        "producerIdAndEpoch",
        "txnPartitionMap",
        "newPartitionsInTransaction",
        "pendingPartitionsInTransaction",
        "partitionsInTransaction",
        "transactionStarted",
        "lastError",
    ),
    IDENTITY: ("NONE", "producerId", "epoch"),
}


@pytest.fixture(scope="module")
def java() -> Iterator[Any]:
    with running_java([*session_jars(), *sparks_jars("slf4j-api", "lz4-java", "jackson")]) as running:
        yield running.jvm


def producer(java: Any, connection: Connection, name: str, **settings: str) -> Any:
    """A transactional producer of this kafka-clients."""
    given = java.java.util.Properties()
    serializer = "org.apache.kafka.common.serialization.StringSerializer"
    every = {
        "bootstrap.servers": connection.bootstrap_servers,
        "transactional.id": name,
        "key.serializer": serializer,
        "value.serializer": serializer,
    }
    for key, value in (every | {k.replace("_", "."): v for k, v in settings.items()}).items():
        given.setProperty(key, value)
    return java.org.apache.kafka.clients.producer.KafkaProducer(given)


@pytest.mark.parametrize(("owner", "name"), [(owner, name) for owner, names in FIELDS.items() for name in names])
def test_kafka_clients_has_the_private_field(owner: str, name: str, java: Any) -> None:
    """Mishap: each part has a new producer, which takes some 20 ms and a log-in."""
    assert java.java.lang.Class.forName(owner).getDeclaredField(name).getName() == name


def test_a_producer_can_be_reused(java: Any) -> None:
    """Mishap: as above, for whatever else the sink looks up (a method, a state's name)."""
    states = java.java.lang.Class.forName(f"{MANAGER}$State").getEnumConstants()
    assert "UNINITIALIZED" in {str(one) for one in states}
    its = java.java.lang.Class.forName("exactlyonce.producer.TransactionalProducer")
    looked = its.getDeclaredMethod("isReusable", None)
    looked.setAccessible(True)
    assert looked.invoke(None, None) is True


@pytest.mark.parametrize(("timed", "left"), [(False, "CompleteAbort"), (True, "Ongoing")], ids=["close()", "close(0)"])
def test_closing_a_producer_aborts_its_transaction_and_closing_it_at_once_leaves_it_open(
    timed: bool, left: str, java: Any, connection: Connection, admin: Admin
) -> None:
    """Loss: a producer that is closed in time would roll back what its task has prepared."""
    topic, name = create_topic(connection.bootstrap_servers), fresh_name("id")
    opened = producer(java, connection, name)
    opened.initTransactions()
    opened.beginTransaction()
    opened.send(java.org.apache.kafka.clients.producer.ProducerRecord(topic, "a"))
    opened.flush()
    if timed:
        opened.close(java.java.time.Duration.ZERO)
    else:
        opened.close()
    until(left, lambda: describe(admin, [name])[name].state == left, 10)


def test_a_new_producer_sleeps_one_retry_backoff_in_its_first_initialisation(java: Any, connection: Connection) -> None:
    """Mishap: 100 ms of each part, by default; the sink sets it lower and keeps producers."""
    took = {}
    for backoff in ("50", "1500"):
        opened = producer(java, connection, fresh_name("id"), retry_backoff_ms=backoff, retry_backoff_max_ms=backoff)
        began = time.monotonic()
        opened.initTransactions()
        took[backoff] = time.monotonic() - began
        opened.close(java.java.time.Duration.ZERO)
    assert took["1500"] > 1.0 and took["1500"] > took["50"] + 0.7
