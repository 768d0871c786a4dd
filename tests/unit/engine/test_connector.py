"""Spark's Kafka connector: a jar that is missing or of another Spark is named with the coordinate to add."""

from __future__ import annotations

import pytest

from exactly_once.connector import coordinate, unusable, version_of
from exactly_once.errors import ConnectorUnusable

JAR = "/home/u/.ivy2/jars/org.apache.spark_spark-sql-kafka-0-10_2.13-4.2.0.jar"


@pytest.mark.parametrize(
    ("jar", "what"),
    [
        (None, "has no Kafka connector"),
        ("/jars/spark-sql-kafka-0-10_2.12-4.2.0.jar", "spark-sql-kafka-0-10_2.12-4.2.0.jar is built for another Spark"),
        ("/jars/spark-sql-kafka-0-10_2.13-3.5.6.jar", "built for another Spark version than 4.2.0"),
    ],
)
def test_a_connector_that_is_missing_or_of_another_spark_is_refused_with_its_coordinate(
    jar: str | None, what: str
) -> None:
    """Spark's own error points to a guide, or is a NoSuchMethodError in the first batch."""
    found = unusable(jar, "4.2.0")
    assert isinstance(found, ConnectorUnusable) and what in found.what
    assert "spark.jars.packages=org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0" in found.way_out


@pytest.mark.parametrize("jar", [JAR, "/jars/spark-sql-kafka-0-10_2.13-4.2.0-amzn-1.jar", "/opt/app/all-in-one.jar"])
@pytest.mark.parametrize("spark", ["4.2.0", "4.3.0"])
def test_a_connector_that_works_or_does_not_tell_is_taken(jar: str, spark: str) -> None:
    """Guards against a refusal of 4.2's connector under 4.3, which works, and of a vendor's jar."""
    assert unusable(jar, spark) is None


def test_the_coordinate_is_of_a_release() -> None:
    """No repository has the build of a vendor, nor a snapshot."""
    assert coordinate("4.4.0.dev0").endswith(":4.4.0")
    assert (version_of(JAR), version_of("/x/kafka-clients-4.3.1.jar")) == ("4.2.0", None)
