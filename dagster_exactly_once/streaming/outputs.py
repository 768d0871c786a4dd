"""The output topics that a stream makes before it writes."""

from __future__ import annotations

from dagster_exactly_once.declare.stream import Stream
from dagster_exactly_once.resources.kafka import KafkaTransactionalProducerFactory

#: Of a topic of dead letters: ten times the brokers' default, for the rows that are too large for the outputs.
LARGEST_LETTER = 10 * 1024 * 1024


def create_outputs(kafka: KafkaTransactionalProducerFactory, stream: Stream) -> None:
    """Create the topics that do not exist, if the stream declares in how many partitions."""
    if stream.output_partitions is None:
        return
    kafka.create_topics(dict.fromkeys(stream.row_topics, stream.output_partitions))
    if stream.dead_topic is not None:
        settings = {"max.message.bytes": str(LARGEST_LETTER)}
        kafka.create_topics({stream.dead_topic: stream.output_partitions}, settings)
