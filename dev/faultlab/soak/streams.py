"""The input and the stream of a soak: the same ones in every piece."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka.admin import AdminClient

from exactly_once.commitlog.log_topic import TOPIC_CONFIG
from exactly_once.kafka.connection import Connection
from exactly_once.protocol.names import commit_log_topic
from faultlab.system import SparkSystem
from faultlab.workload import Workload
from testkit.broker import create_topic

INPUT, OUTPUT, SINK_ID = "soak-in", "soak-out", "soak"

#: Of the input, and of the output.
PARTITIONS = 4

#: Two, so that their transactions overlap.
WRITERS = 2

#: Enough that each has a record in most batches.
KEYS = 200

#: Of the writers' transactions.
ABORTS = 0.1

#: A writer's starts in a piece, at most: ids of different pieces never meet.
STARTS = 1_000

#: The disk of a soak of hours is that of its last hour; segments are removed as a whole.
KEPT = {"retention.ms": "3600000", "segment.bytes": str(64 * 1024 * 1024)}

#: The smallest segment that Kafka takes: the broker compacts the commit log every quarter of an hour, not twice a day.
LOG = {**TOPIC_CONFIG, "segment.bytes": str(1024 * 1024)}

#: A driver under load: its Python and its JVM share two cores with everything else.
DRIVER = {"spark.driver.memory": "768m"}

#: At most so many seconds of input in a batch: after an outage the stream catches up in several.
BATCH_S = 5


def soak_workload(connection: Connection, folder: Path, seed: int, piece: int, rate: float) -> Workload:
    """Return the writers of the input in the piece of this number. An id is never written again, in whatever piece."""
    return Workload(
        connection,
        folder,
        seed,
        partitions=PARTITIONS,
        writers=WRITERS,
        keys=KEYS,
        rate=rate,
        aborts=ABORTS,
        topic=_kept(connection, INPUT, PARTITIONS, KEPT),
        starts=piece * STARTS,
    )


def soak_system(workload: Workload, connection: Connection, folder: Path, checkpoint: Path) -> SparkSystem:
    """Return the stream, on the checkpoint that stays.

    Drivers and failpoints are those of a piece, in its ``folder``.
    """
    _kept(workload.connection, commit_log_topic(SINK_ID), 1, LOG)
    return SparkSystem(
        workload,
        connection,
        folder,
        checkpoint=str(checkpoint),
        conf=DRIVER,
        per_batch=round(workload.rate * BATCH_S),
        sink_id=SINK_ID,
        topic=_kept(workload.connection, OUTPUT, PARTITIONS, KEPT),
    )


def _kept(connection: Connection, name: str, partitions: int, config: dict[str, str]) -> str:
    """Make a topic unless it is there."""
    if name not in AdminClient(connection.librdkafka()).list_topics(timeout=30).topics:
        create_topic(connection.bootstrap_servers, name, partitions, config)
    return name
