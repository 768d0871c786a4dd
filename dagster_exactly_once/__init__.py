"""Streams of PySpark with exactly-once output to Kafka, operated by Dagster: one declaration for each stream."""

from dagster_exactly_once.component import ExactlyOnceStreams
from dagster_exactly_once.config import StreamConfig
from dagster_exactly_once.definitions import exactly_once_definitions, exactly_once_resources
from dagster_exactly_once.errors import BadDeclaration
from dagster_exactly_once.inputs import KafkaTopic
from dagster_exactly_once.resources.kafka import KafkaTransactionalProducerFactory
from dagster_exactly_once.resources.spark import SparkSessionResource
from dagster_exactly_once.sensors.settings import RestartPolicy, WatchPolicy
from dagster_exactly_once.stream import Backfill, Checks, Stream, exactly_once_stream, observed_stream
from dagster_exactly_once.streaming.complete import Complete
from dagster_exactly_once.translator import StreamTopic, StreamTranslator

__all__ = [
    "exactly_once_stream",
    "observed_stream",
    "exactly_once_definitions",
    "exactly_once_resources",
    "Stream",
    "ExactlyOnceStreams",
    "StreamConfig",
    "KafkaTopic",
    "StreamTranslator",
    "StreamTopic",
    "Checks",
    "Backfill",
    "Complete",
    "RestartPolicy",
    "WatchPolicy",
    "KafkaTransactionalProducerFactory",
    "SparkSessionResource",
    "BadDeclaration",
]
