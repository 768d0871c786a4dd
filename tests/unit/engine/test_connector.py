"""Spark's Kafka connector: a jar that is missing or of another Spark is named with the coordinate to add."""

from __future__ import annotations

import pytest

from exactly_once.connector import CLASSES, CLIENT, SHADED, coordinate, incomplete, unusable, version_of
from exactly_once.errors import ConnectorUnusable

JAR = "/home/u/.ivy2/jars/org.apache.spark_spark-sql-kafka-0-10_2.13-4.2.0.jar"


@pytest.mark.parametrize(
    ("jar", "what"),
    [
        (None, "has no Kafka connector"),
        ("/jars/spark-sql-kafka-0-10_2.12-4.2.0.jar", "spark-sql-kafka-0-10_2.12-4.2.0.jar is built for Scala 2.12"),
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


def test_a_spark_of_another_scala_than_pyspark_s_wants_the_connector_of_its_own() -> None:
    """Vendors build Spark 3.5 for Scala 2.13; PySpark's is for 2.12. Mishap: the right jar is refused."""
    jar = "/jars/spark-sql-kafka-0-10_2.13-3.5.7.jar"
    assert unusable(jar, "3.5.7", "2.13") is None and unusable(jar, "3.5.7") is not None
    assert "_2.13:3.5.7" in str(unusable(None, "3.5.7", "2.13"))


TOO_OLD = frozenset(CLASSES[1:2])
WITHOUT_PROVIDER, WITHOUT_POOL = (frozenset([name]) for name in CLASSES[2:])


@pytest.mark.parametrize(
    ("jar", "missing", "shaded", "words"),
    [
        (JAR, {CLIENT, *TOO_OLD}, True, [CLIENT, SHADED + CLIENT, "Databricks", "kafka-clients:3.9"]),
        (JAR, {CLIENT, *TOO_OLD}, False, [CLIENT, "kafka-clients:3.9"]),
        (None, set(CLASSES), False, [CLIENT, "spark-sql-kafka-0-10_2.13:4.2.0"]),
        (JAR, TOO_OLD, False, ["older than 3.1", "kafka-clients:3.9"]),
        (JAR, WITHOUT_PROVIDER, False, ["without spark-token-provider-kafka-0-10,", "spark-sql-kafka-0-10_2.13:4.2.0"]),
        (JAR, WITHOUT_POOL, False, ["without commons-pool2,", "spark-sql-kafka-0-10_2.13:4.2.0"]),
    ],
)
def test_a_class_that_a_session_lacks_is_named_with_the_jar_that_brings_it(
    jar: str | None, missing: set[str], shaded: bool, words: list[str]
) -> None:
    """Mishap: NoClassDefFoundError in the first batch, or in a task, without a word of a jar."""
    found = incomplete(jar, "4.2.0", missing, sends=True, shaded=shaded)
    assert isinstance(found, ConnectorUnusable) and [w for w in words if w not in str(found)] == []


@pytest.mark.parametrize(
    ("jar", "missing", "sends", "shaded"),
    [
        (JAR, set(), True, False),
        (JAR, {CLIENT, *TOO_OLD}, False, True),  # foreach_batch, beside a runtime's own connector
        (None, {*WITHOUT_POOL, *WITHOUT_PROVIDER}, True, False),  # rows that are not Kafka's, and a client
        ("/opt/all-in-one.jar", WITHOUT_POOL, True, False),  # it may have that under another name
        (JAR, {*WITHOUT_POOL, *WITHOUT_PROVIDER}, True, True),
    ],
)
def test_a_session_that_works_or_does_not_tell_is_taken(
    jar: str | None, missing: set[str], sends: bool, shaded: bool
) -> None:
    """Guards against a refusal of a session that would work."""
    assert incomplete(jar, "4.2.0", missing, sends, shaded) is None
