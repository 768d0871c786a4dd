"""Kafka's own Java client in a JVM, by py4j: neither the sink nor its checker is made of it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pyspark
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from exactly_once.local.jars import broker_classpath
from exactly_once.local.java import find_java

#: Of one poll: its answer comes at once where there is one.
_POLL_MS = 200


class Record(NamedTuple):
    """One record as Java's consumer gets it."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


@contextmanager
def running_java() -> Iterator[Any]:
    """A JVM with the broker's jars, among them the client's and those of its codecs."""
    jar = next((Path(pyspark.__file__).parent / "jars").glob("py4j-*.jar"))
    port = launch_gateway(
        jarpath=str(jar), classpath=broker_classpath(), die_on_exit=True, java_path=find_java().executable
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
    yield gateway
    gateway.shutdown()


def read_with_java(
    jvm: Any, servers: str, topics: Sequence[str], committed: bool = True, timeout_s: float = 60.0
) -> list[Record]:
    """Everything in ``topics`` as Java's consumer gets it now, partition by partition in order of offset.

    ``committed``: with ``isolation.level=read_committed``, so up to the last stable offset.
    """
    java = jvm.jvm
    bytes_of = "org.apache.kafka.common.serialization.ByteArrayDeserializer"
    settings = java.java.util.Properties()
    for name, value in {
        "bootstrap.servers": servers,
        "isolation.level": "read_committed" if committed else "read_uncommitted",
        "key.deserializer": bytes_of,
        "value.deserializer": bytes_of,
        "auto.offset.reset": "none",
        "enable.auto.commit": "false",
        "allow.auto.create.topics": "false",
    }.items():
        settings.setProperty(name, value)
    consumer = java.org.apache.kafka.clients.consumer.KafkaConsumer(settings)
    try:
        places = java.java.util.ArrayList()
        for topic in topics:
            for info in consumer.partitionsFor(topic):
                places.add(java.org.apache.kafka.common.TopicPartition(topic, info.partition()))
        consumer.assign(places)
        consumer.seekToBeginning(places)
        ends = {place: consumer.endOffsets(places)[place] for place in places}
        found: list[Record] = []
        deadline = time.monotonic() + timeout_s
        while any(consumer.position(place) < end for place, end in ends.items()):
            assert time.monotonic() < deadline, f"Java's consumer does not come to {ends}: it has {len(found)} records"
            found += _each(consumer.poll(java.java.time.Duration.ofMillis(_POLL_MS)))
        return sorted(found)
    finally:
        consumer.close()


def _each(records: Any) -> Iterator[Record]:
    some = records.iterator()
    while some.hasNext():
        r = some.next()
        yield Record(r.topic(), r.partition(), r.offset(), r.key(), r.value())
