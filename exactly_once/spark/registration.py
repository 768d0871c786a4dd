"""Registers the format with a session, unless Spark finds it all the same.

Spark finds it by itself where the package is installed (``pyspark_kafka_exactly_once``), and logs a warning for a
registration in its place: at once, and at the start of every query, which clones the session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from exactly_once.spark.data_source import FORMAT, KafkaExactlyOnce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The JVM is asked through a class that Spark does not publish: only where that was tried.
_TESTED = "4.2."


def register_format(spark: SparkSession) -> None:
    """Make ``format("kafka_exactly_once")`` known to ``spark``; a second call changes nothing, and logs nothing."""
    if not _finds_the_format(spark):
        spark.dataSource.register(KafkaExactlyOnce)


def _finds_the_format(spark: SparkSession) -> bool:
    """Return whether a registration would change nothing."""
    if not hasattr(spark, "_jsparkSession") or not spark.version.startswith(_TESTED):
        return False
    context = spark.sparkContext
    if context._python_includes or not str(context.master).startswith("local"):
        return False  # with a registration, executors get the files of addPyFile and the session's variables
    return bool(spark._jsparkSession.sessionState().dataSourceManager().dataSourceExists(FORMAT))
