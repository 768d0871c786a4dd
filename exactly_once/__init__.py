"""Exactly-once output from PySpark Structured Streaming to Kafka, by two-phase commit.

>>> import exactly_once
>>> exactly_once.register(spark)                                  # doctest: +SKIP
>>> (df.writeStream.format("kafka_exactly_once")                  # doctest: +SKIP
...    .option("sink.id", "orders").option("topic", "orders_out")
...    .option("kafka.bootstrap.servers", "localhost:9092")
...    .option("checkpointLocation", "/data/checkpoints/orders").start())
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from exactly_once.errors import ExactlyOnceError, UnsupportedMode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ExactlyOnceError", "register"]


def register(spark: SparkSession) -> None:
    """Make ``format("kafka_exactly_once")`` known to ``spark``.

    Raises
    ------
    UnsupportedMode
        With spark.speculation, whose copies of a task would each hold a transaction open.
    """
    from exactly_once.spark.data_source import KafkaExactlyOnce

    if str(spark.conf.get("spark.speculation", "false")).lower() == "true":
        raise UnsupportedMode(
            "spark.speculation=true runs copies of a task, and each copy would write a transaction of its own",
            "Start the session with spark.speculation=false",
        )
    spark.dataSource.register(KafkaExactlyOnce)
