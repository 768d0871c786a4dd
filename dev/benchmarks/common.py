"""The two sinks to compare, and the measurement of one run of a query."""

from __future__ import annotations

import shutil
import statistics
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from dagster_exactly_once.resources.spark import SparkSessionResource
from exactly_once.deadline import Deadline
from exactly_once.kafka.connection import Connection
from exactly_once_local.cluster.embedded_broker import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter

OURS, SPARKS = "exactly once", "Spark's own sink"
SINKS = (SPARKS, OURS)
#: For comparison with ourselves: the weaker guarantee.
AT_LEAST_ONCE = "at least once"

#: As a user would set them for throughput. This sink's documentation says to leave all but the codec out.
PRODUCER = {"kafka.linger.ms": "20", "kafka.compression.type": "lz4", "kafka.batch.size": "262144"}
OURS_PRODUCER = {"kafka.compression.type": "lz4"}


@dataclass(frozen=True)
class Bench:
    """The broker and the session of a measurement."""

    spark: SparkSession
    connection: Connection
    folder: Path

    def topic(self, name: str, partitions: int) -> str:
        """Return a fresh topic, whose partitions all have a leader that knows it.

        A busy broker makes a thousand in seconds.

        The Java producer has several batches of a partition on their way. If a leader that is just beginning takes the
        second and not the first, the first is refused as out of order until the producer gives up.
        """
        name = f"{name}-{uuid.uuid4().hex[:6]}"
        admin = AdminClient({"bootstrap.servers": self.connection.bootstrap_servers})
        for future in admin.create_topics([NewTopic(name, num_partitions=partitions, replication_factor=1)]).values():
            future.result(30)
        for _ in Deadline(60).tries():
            asked = admin.list_offsets({TopicPartition(name, p): OffsetSpec.latest() for p in range(partitions)})
            if all(future.exception(30) is None for future in asked.values()):
                return name
        raise TimeoutError(f"topic {name} has no leaders after 60 s")

    def writer(self, sink: str, frame: DataFrame, topic: str) -> DataStreamWriter:
        """Return a query's writer to ``sink``, with its own checkpoint (and sink id)."""
        run = uuid.uuid4().hex[:8]
        writer = frame.writeStream.option("checkpointLocation", str(self.folder / "checkpoints" / run))
        writer = writer.options(topic=topic, **self.connection.spark())
        if sink == SPARKS:
            return writer.options(**PRODUCER).format("kafka")
        writer = writer.options(**OURS_PRODUCER).format("kafka_exactly_once").option("sink.id", f"bench-{run}")
        return writer.option("sink.guarantee", "at_least_once" if sink == AT_LEAST_ONCE else "exactly_once")


@contextmanager
def bench(folder: Path, master: str, at: EmbeddedBroker | None = None) -> Iterator[Bench]:
    """Start a fresh broker (or the one ``at``), and a session with the Spark resource's documented defaults."""
    shutil.rmtree(folder, ignore_errors=True)
    with at or EmbeddedBroker(folder / "broker") as broker:
        connection = Connection.from_options({"kafka.bootstrap.servers": broker.bootstrap_servers})
        resource = SparkSessionResource(
            master=master, work_dir=str(folder / "spark"), driver_memory="3g", conf={"spark.log.level": "OFF"}
        )
        with resource.session() as spark:
            yield Bench(spark, connection, folder)
    shutil.rmtree(folder, ignore_errors=True)


def ratio(ours: Iterable[float], theirs: Iterable[float]) -> str:
    """Return the median of the pairwise ratios, with the smallest and the largest."""
    return spread([a / b for a, b in zip(ours, theirs, strict=True)])


def spread(values: Sequence[float]) -> str:
    """Return the median, with the smallest and the largest."""
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def median(values: Iterable[float]) -> float:
    """Return the median."""
    return statistics.median(list(values))


def where_time_goes(progress: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the median of each step of a batch, in ms."""
    steps = {name for p in progress for name in p["durationMs"]}
    return {name: median(p["durationMs"].get(name, 0) for p in progress) for name in sorted(steps)}
