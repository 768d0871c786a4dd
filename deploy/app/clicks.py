"""A stream without Dagster, for spark-submit or a Spark operator: ``clicks.py BROKERS INPUT OUTPUT CHECKPOINT``.

``observed_stream`` in streams.py shows it in Dagster.
"""

import os
import sys

from pyspark.sql import SparkSession

import exactly_once

#: Who operates the driver: the sink's claim says so, and with it every error and table.
OPERATOR = os.environ.get("SINK_OPERATOR", "spark-submit/clicks")


def main(brokers: str, source: str, output: str, checkpoint: str) -> None:
    """Run until somebody stops it, or until it fails."""
    spark = SparkSession.builder.getOrCreate()
    exactly_once.register(spark)
    clicks = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", brokers)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .load()
    )
    query = (
        clicks.where("value IS NOT NULL")
        .select("key", "value")
        .writeStream.format("kafka_exactly_once")
        .option("sink.id", "clicks")
        .option("sink.operator", OPERATOR)
        .option("kafka.bootstrap.servers", brokers)
        .option("topic", output)
        .option("checkpointLocation", checkpoint)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:5])
