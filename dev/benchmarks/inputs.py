"""Input topics, each written once for all systems, and the count of what came out."""

from __future__ import annotations

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from benchmarks.common import Bench
from benchmarks.workloads import PARTITIONS, BenchmarkWorkload
from exactly_once.kafka.connection import Connection

#: Records of one call; more are not faster.
_AT_ONCE = 10_000


def fill(bench: Bench, workload: BenchmarkWorkload, records: int, size: int) -> tuple[str, int]:
    """Write the records of ``workload`` into a fresh topic; return its name and the average size of a record, in bytes
    of key and value.
    """
    topic = bench.topic(f"in-{workload.name}", PARTITIONS)
    settings = {"linger.ms": 50, "compression.type": "lz4", "partitioner": "murmur2_random"}
    producer = Producer({**bench.connection.librdkafka(), **settings})
    total = 0
    for key, value in workload.records(records, size):
        total += len(key or b"") + len(value)
        while True:
            try:
                producer.produce(topic, value, key)
                break
            except BufferError:
                producer.poll(0.05)
    if left := producer.flush(120):
        raise RuntimeError(f"{left} input records of {workload.name} were not written within 120 s")
    return topic, round(total / records)


def count(connection: Connection, topic: str, partitions: int) -> int:
    """Return how many records a read_committed reader finds in ``topic``."""
    settings = {"isolation.level": "read_committed", "enable.partition.eof": True, "enable.auto.commit": False}
    consumer = Consumer({**connection.librdkafka(), **settings, "group.id": f"count-{topic}"})
    consumer.assign([TopicPartition(topic, p, 0) for p in range(partitions)])
    found, reading = 0, partitions
    try:
        while reading:
            for message in consumer.consume(_AT_ONCE, 1.0):
                error = message.error()
                if error is None:
                    found += 1
                elif error.code() == KafkaError._PARTITION_EOF:
                    reading -= 1
                elif not error.retriable():
                    raise KafkaException(error)
    finally:
        consumer.close()
    return found
