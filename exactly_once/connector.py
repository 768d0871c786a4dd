"""Spark's Kafka connector, the jar that reads Kafka: its coordinate, and whether a jar is of another Spark."""

from __future__ import annotations

import re

from exactly_once.errors import ConnectorUnusable

#: Of Spark 4.
SCALA = "2.13"

_JAR = re.compile(r"spark-sql-kafka-0-10_(?P<scala>[\d.]+)-(?P<version>\d+(?:\.\d+)*)[^/]*\.jar")


def coordinate(spark_version: str) -> str:
    """Return what ``spark.jars.packages`` has to name for this Spark."""
    release = re.match(r"\d+\.\d+\.\d+", spark_version)
    return f"org.apache.spark:spark-sql-kafka-0-10_{SCALA}:{release[0] if release else spark_version}"


def version_of(jar: str) -> str | None:
    """Return the version in the path of the connector's jar; None for any other jar."""
    found = _JAR.search(jar)
    return found["version"] if found else None


def unusable(jar: str | None, spark_version: str) -> ConnectorUnusable | None:
    """Return why a query of this Spark cannot read Kafka with ``jar``, None when there is no jar; None when it can, or
    when the jar does not tell. Of another minor release is not another Spark: 4.2's works with 4.3.
    """
    way_out = f"Start the session with spark.jars.packages={coordinate(spark_version)}"
    if jar is None:
        return ConnectorUnusable(
            "this Spark session has no Kafka connector, so format('kafka') cannot be read",
            f"{way_out}, or put the jar of that name and those that it needs on spark.jars",
        )
    found = _JAR.search(jar)
    if found is None:
        return None
    if found["scala"] != SCALA or found["version"].split(".")[0] != spark_version.split(".")[0]:
        return ConnectorUnusable(
            f"the Kafka connector {found[0]} is made for another Spark than {spark_version}",
            f"{way_out}, and take the other jar away",
        )
    return None
