"""The driver process: both queries in one Spark session, so that one kill -9 ends both at the same moment.

``python -m exactly_once_local.duel.driver <brokers> <folder> <rows of a batch> <options for its JVM>``

What differs between the queries is the format's name, and the sink id that ours needs.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from exactly_once.spark.session import file_manager
from exactly_once_local.duel.sinks import FINISH, INPUT, PRODUCER, SINKS, Sink, checkpoint

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_CONF = {
    "spark.master": "local[2]",
    # with a pool for each query: a free core goes to the query that has fewer
    "spark.scheduler.mode": "FAIR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "768m",
    "spark.sql.session.timeZone": "UTC",
    # the checkpoint is on a local disk
    "spark.sql.streaming.checkpointFileManagerClass": file_manager("FileSystemBased"),
}

#: Interval of the checks whether a query has failed.
POLL_EVERY_S = 0.2

#: Minutes from which a delay is late, as in the official on-time statistics.
LATE_MIN = 15


def transform(flights: DataFrame) -> DataFrame:
    """One record for each flight; ``sequence``, the flight's number, is the first field of its value."""
    from pyspark.sql import functions as F

    schema = "sequence int, time_hour string, carrier string, flight int, origin string, dest string, arr_delay int"
    event = flights.select("key", F.from_json(F.col("value").cast("string"), schema).alias("event"))
    late = (F.col("event.arr_delay") >= LATE_MIN).alias("late")
    return event.select("key", F.to_json(F.struct("event.*", late)).alias("value"))


def write(spark: SparkSession, sink: Sink, brokers: str, folder: Path, batch: int) -> StreamingQuery:
    """Start the query that writes the input to ``sink``, batch after batch without a pause."""
    source = {
        "kafka.bootstrap.servers": brokers,
        "subscribe": INPUT,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(batch),
    }
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", sink.name)  # the query's thread inherits it
    return (
        transform(spark.readStream.format("kafka").options(**source).load())
        .writeStream.format(sink.format)
        .options(**PRODUCER, **sink.options)
        .option("kafka.bootstrap.servers", brokers)
        .option("topic", sink.topic)
        .option("checkpointLocation", str(checkpoint(folder, sink)))
        .start()  # without a trigger: each batch begins when the one before it has ended
    )


def _session(folder: Path, java: str) -> SparkSession:
    from pyspark.sql import SparkSession

    from exactly_once.sparkenv.jars import session_jars

    places = {
        "spark.driver.extraJavaOptions": f"-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData {java}",
        "spark.jars": ",".join(session_jars()),
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    builder = SparkSession.builder.appName("duel")
    for name, value in {**_CONF, **places}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _listen(finish: threading.Event) -> None:
    """Set ``finish`` when told to. Standard input ends with the process at its other end; then end this process too."""
    said = b""
    while more := os.read(0, 1024):  # sys.stdin has a lock, which Python would want back at its end
        said += more
        if FINISH in said:
            finish.set()
    os._exit(1)


def main() -> None:
    """Write until told to finish, then write what is left, and end."""
    import exactly_once

    brokers, folder, batch, java = sys.argv[1:]
    finish = threading.Event()
    threading.Thread(target=_listen, args=(finish,), daemon=True).start()
    spark = _session(Path(folder), java)
    exactly_once.register(spark)
    queries = [write(spark, sink, brokers, Path(folder), int(batch)) for sink in SINKS]
    while not finish.is_set():
        spark.streams.awaitAnyTermination(POLL_EVERY_S)  # type: ignore[arg-type]  # raises what a query failed with
    for query in queries:
        query.processAllAvailable()
    for query in queries:
        query.stop()
    spark.stop()


if __name__ == "__main__":
    main()
