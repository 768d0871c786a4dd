"""The driver process of one contestant.

``python -m demo.contestant <sink, or all> <brokers> <folder> <rows of a batch> <option for its JVM>``

Both contestants run this very file. What differs is the format's name, and the sink id that ours needs.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from demo.rules import FINISH, INPUT, OURS, PRODUCER, SINKS, Sink, checkpoint

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Small and quick to start; the same for both. One task at a time: each has one of two cores.
_CONF = {
    "spark.master": "local[1]",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.sql.session.timeZone": "UTC",
    # the checkpoint is on a local disk
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}

#: How often a query is asked whether it has failed.
LOOK_EVERY_S = 0.2

#: Delays above it are late: the official on-time statistics count from 15 minutes on.
LATE_MIN = 15


def transform(flights: DataFrame) -> DataFrame:
    """One record for each flight; ``sequence``, the flight's number, is the first field of its value."""
    from pyspark.sql import functions as F

    schema = "sequence int, time_hour string, carrier string, flight int, origin string, dest string, arr_delay int"
    event = flights.select("key", F.from_json(F.col("value").cast("string"), schema).alias("event"))
    late = (F.col("event.arr_delay") >= LATE_MIN).alias("late")
    return event.select("key", F.to_json(F.struct("event.*", late)).alias("value"))


def write(spark: SparkSession, sink: Sink, brokers: str, folder: Path, batch: int, finish: threading.Event) -> None:
    """Write the input, batch after batch without a pause, until the referee says to finish it."""
    if sink is OURS:
        import exactly_once

        exactly_once.register(spark)
    source = {
        "kafka.bootstrap.servers": brokers,
        "subscribe": INPUT,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(batch),
    }
    query = (
        transform(spark.readStream.format("kafka").options(**source).load())
        .writeStream.format(sink.format)
        .options(**PRODUCER, **sink.options)
        .option("kafka.bootstrap.servers", brokers)
        .option("topic", sink.topic)
        .option("checkpointLocation", str(checkpoint(folder, sink)))
        .start()  # without a trigger: each batch begins when the one before it has ended
    )
    while not finish.wait(LOOK_EVERY_S):
        if not query.isActive:
            break
    query.processAllAvailable()  # raises what the query failed with
    query.stop()


def _session(folder: Path, java: str) -> SparkSession:
    from pyspark.sql import SparkSession

    from resources.jars import connector_jars

    places = {
        "spark.driver.extraJavaOptions": f"-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData {java}",
        "spark.jars": ",".join(connector_jars()),
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    builder = SparkSession.builder.appName("duel")
    for name, value in {**_CONF, **places}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _listen(finish: threading.Event) -> None:
    """Set ``finish`` when told to. The referee's end of our standard input closes however it dies; we go with it."""
    said = b""
    while more := os.read(0, 1024):  # sys.stdin has a lock, which Python would want back at its end
        said += more
        if FINISH in said:
            finish.set()
    os._exit(1)


def main() -> None:
    """The process."""
    name, brokers, folder, batch, java = sys.argv[1:]
    finish = threading.Event()
    threading.Thread(target=_listen, args=(finish,), daemon=True).start()
    spark = _session(Path(folder), java)
    for sink in SINKS:
        if name in (sink.name, "all"):
            write(spark, sink, brokers, Path(folder), int(batch), finish)
    spark.stop()


if __name__ == "__main__":
    main()
