"""Streams of PySpark with exactly-once output to Kafka, operated by Dagster: one declaration for each stream."""

from dagster_exactly_once.component import ExactlyOnceStreams
from dagster_exactly_once.declare.complete import Complete
from dagster_exactly_once.declare.config import StreamConfig
from dagster_exactly_once.declare.decorator import exactly_once_stream, observed_stream
from dagster_exactly_once.declare.errors import BadDeclaration
from dagster_exactly_once.declare.inputs import KafkaTopic
from dagster_exactly_once.declare.outputs import Table
from dagster_exactly_once.declare.rejected import DeadLetters, Rejected
from dagster_exactly_once.declare.stream import Backfill, Checks, Record, Stream
from dagster_exactly_once.declare.translator import StreamTopic, StreamTranslator
from dagster_exactly_once.definitions import exactly_once_definitions, exactly_once_resources, exactly_once_sensors
from dagster_exactly_once.resources.kafka import KafkaTransactionalProducerFactory, TransactionalProducer
from dagster_exactly_once.resources.spark import SparkSessionResource
from dagster_exactly_once.runs.failures import classified
from dagster_exactly_once.runs.process import tag_run
from dagster_exactly_once.sensors.settings import RestartPolicy, WatchPolicy
from exactly_once import __version__  # both distributions are released together, in one version

__all__ = [
    "exactly_once_stream",
    "observed_stream",
    "exactly_once_definitions",
    "exactly_once_resources",
    "exactly_once_sensors",
    "Stream",
    "ExactlyOnceStreams",
    "StreamConfig",
    "KafkaTopic",
    "Table",
    "Rejected",
    "DeadLetters",
    "StreamTranslator",
    "StreamTopic",
    "Checks",
    "Backfill",
    "Complete",
    "Record",
    "RestartPolicy",
    "WatchPolicy",
    "KafkaTransactionalProducerFactory",
    "TransactionalProducer",
    "SparkSessionResource",
    "classified",
    "tag_run",
    "BadDeclaration",
    "__version__",
]
