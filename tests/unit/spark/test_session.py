"""What ``exactly_once.configure`` puts into a session's settings. No JVM: PySpark's builder only gathers them."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyspark
import pytest
from pyspark import find_spark_home
from pyspark.sql import SparkSession

import exactly_once
from exactly_once.connector import coordinate
from exactly_once.errors import SessionWithoutJar
from exactly_once.spark import session
from exactly_once.sparkenv.java import OLDEST_JAVA

OURS = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"


def settings(builder: Any) -> dict[str, str]:
    """What a builder has gathered."""
    return dict(exactly_once.configure(builder)._options)  # type: ignore[attr-defined]


def test_a_session_gets_the_jar_and_the_connector_of_its_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two lines are all that a user writes for the session."""
    monkeypatch.setattr(pyspark, "__version__", "4.2.0")
    assert settings(SparkSession.builder) == {"spark.jars": exactly_once.jar(), "spark.jars.packages": OURS}
    assert Path(exactly_once.jar()).is_file()


def test_what_the_builder_has_stays_and_a_second_call_adds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against a session without the jars that its user asked for."""
    monkeypatch.setattr(pyspark, "__version__", "4.2.0")
    builder = SparkSession.builder.config("spark.jars", "/a.jar, /b.jar").config("spark.jars.packages", "org:x:1")
    once = settings(builder)
    assert once["spark.jars"] == f"/a.jar,/b.jar,{exactly_once.jar()}"
    assert once["spark.jars.packages"] == f"org:x:1,{OURS}"
    assert settings(builder) == once


def test_a_copy_of_the_jar_from_elsewhere_stays_the_only_one() -> None:
    """Spark refuses to serve two files of one name; deploy/preload.py puts the jar beside others."""
    made = settings(SparkSession.builder.config("spark.jars", f"/opt/jars/{Path(exactly_once.jar()).name}"))
    assert made["spark.jars"] == f"/opt/jars/{Path(exactly_once.jar()).name}"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spark.jars.packages", "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.1"),
        ("spark.jars", "/jars/kafka-clients-3.9.2.jar,/jars/spark-sql-kafka-0-10_2.13-4.2.1.jar"),
    ],
)
def test_a_connector_that_the_builder_has_is_the_only_one(name: str, value: str) -> None:
    """Guards against two connectors on one class path, and against a download where there is no network."""
    made = settings(SparkSession.builder.config(name, value))
    assert made.get("spark.jars.packages", "") == (value if name == "spark.jars.packages" else "")
    assert made["spark.jars"].endswith(exactly_once.jar())


def test_a_connector_in_sparks_own_folder_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some distributions of Spark, and images, bring it."""
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-sql-kafka-0-10_2.13-4.2.0-amzn-1.jar").touch()
    monkeypatch.setattr(find_spark_home, "_find_spark_home", lambda: str(tmp_path))
    assert settings(SparkSession.builder) == {"spark.jars": exactly_once.jar()}


@pytest.mark.parametrize(
    ("spark", "coordinates"),
    [
        ("3.5.3", "spark-sql-kafka-0-10_2.12:3.5.3"),
        ("3.5.9", "spark-sql-kafka-0-10_2.12:3.5.7"),
        ("4.0.5", "spark-sql-kafka-0-10_2.13:4.0.0"),
        ("4.1.0", "spark-sql-kafka-0-10_2.13:4.1.0"),
        ("4.2.0", "spark-sql-kafka-0-10_2.13:4.2.0"),
        ("4.3.0", "spark-sql-kafka-0-10_2.13:4.2.0"),
        ("4.2.0.dev1", "spark-sql-kafka-0-10_2.13:4.2.0"),
        ("4.4.0", "spark-sql-kafka-0-10_2.13:4.4.0"),
    ],
)
def test_the_connector_is_the_newest_one_for_that_spark_that_can_be_had(spark: str, coordinates: str) -> None:
    """A session does not start when Spark cannot resolve a package. Spark 3.5 is of another Scala."""
    assert coordinate(spark) == f"org.apache.spark:{coordinates}"


@pytest.mark.parametrize("java", ["1.8", "11", str(OLDEST_JAVA - 1)])
def test_a_session_on_an_older_java_is_refused_although_its_spark_runs_there(java: str) -> None:
    """Spark 3.5 runs on Java 8 and 11: a jar for Java 17 ends there in an UnsupportedClassVersionError."""
    system = SimpleNamespace(getProperty={"java.specification.version": java}.get)
    jvm = SimpleNamespace(java=SimpleNamespace(lang=SimpleNamespace(System=system)))
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(_jvm=jvm))
    with pytest.raises(SessionWithoutJar, match=f"runs on Java {java}, and .* needs Java {OLDEST_JAVA} or newer"):
        session.check_jar(spark)


@pytest.mark.parametrize(
    ("spark", "package"),
    [("3.5.9", "streaming"), ("4.0.5", "streaming"), ("4.1.4", "checkpointing"), ("4.3.0", "checkpointing")],
)
def test_a_file_manager_is_named_as_the_installed_spark_names_it(
    spark: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query does not start with the name of another release: a ClassNotFoundException of Spark's."""
    monkeypatch.setattr(session, "version", lambda name: spark)
    assert session.file_manager("FileSystemBased").endswith(f".{package}.FileSystemBasedCheckpointFileManager")


def test_without_pyspark_a_file_manager_has_its_newest_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A code location is loaded where no PySpark is installed."""

    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(session, "version", missing)
    assert ".checkpointing." in session.file_manager("FileSystemBased")
