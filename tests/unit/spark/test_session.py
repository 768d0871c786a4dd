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
from exactly_once.spark import launch, session
from exactly_once.sparkenv.java import OLDEST_JAVA

OURS = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"


@pytest.fixture(autouse=True)
def nothing_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No JVM of another test, and no setting of this machine; the folder of spark-defaults.conf."""
    monkeypatch.setattr(launch, "launched", lambda: None)
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    return tmp_path


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


CONNECTOR = "/jars/spark-sql-kafka-0-10_2.13-4.2.0.jar"


@pytest.mark.parametrize(
    ("arguments", "defaults", "jars", "added"),
    [
        ("", f"spark.jars {CONNECTOR},/u.jar", [CONNECTOR, "/u.jar"], ""),
        ("", f"# spark.jars=/no.jar\nspark.jars={CONNECTOR}\n", [CONNECTOR], ""),
        ("", f"spark.jars : {CONNECTOR}", [CONNECTOR], ""),
        ("", f"spark.jars /a.jar,\\\n  {CONNECTOR}", ["/a.jar", CONNECTOR], ""),
        (
            "",
            f"! spark.jars=/no.jar\r\n spark.jars\\\r\n  =/a\\ b.jar,\\u002fc.jar,{CONNECTOR} ",
            ["/a b.jar", "/c.jar", CONNECTOR],
            "",
        ),
        ("", "spark.jars /a.jar", ["/a.jar"], OURS),
        ("", f"spark.jars.packages org:x:1,{OURS}", [], ""),
        ("", "spark.jars.packages org:x:1", [], f"org:x:1,{OURS}"),
        (f"--jars {CONNECTOR} pyspark-shell", "spark.jars /no.jar", [CONNECTOR], ""),
        (f"--jars={CONNECTOR} --conf spark.jars=/no.jar pyspark-shell", "", [CONNECTOR], ""),
        (f"--conf 'spark.jars={CONNECTOR}' pyspark-shell", "spark.jars /no.jar", [CONNECTOR], ""),
        (f"--packages {OURS} pyspark-shell", "spark.jars /u.jar", ["/u.jar"], ""),
        ("", f"spark.driver.extraClassPath {CONNECTOR}\nspark.executor.extraClassPath /a.jar:{CONNECTOR}", [], ""),
        (f"--driver-class-path {CONNECTOR} pyspark-shell", f"spark.executor.extraClassPath {CONNECTOR}", [], ""),
        ("", f"spark.driver.extraClassPath {CONNECTOR}", [], OURS),
    ],
)
def test_what_spark_submit_would_take_of_jars_stays(
    arguments: str, defaults: str, jars: list[str], added: str, nothing_given: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mishap: spark.jars becomes the sink's jar alone, and a task ends with ClassNotFoundException."""
    monkeypatch.setattr(pyspark, "__version__", "4.2.0")
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", arguments)
    (nothing_given / "spark-defaults.conf").write_text(defaults)
    made = settings(SparkSession.builder)
    assert made["spark.jars"] == ",".join([*jars, exactly_once.jar()])
    assert made.get("spark.jars.packages", "") == added


def test_the_file_of_properties_file_stands_for_spark_defaults(
    nothing_given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As spark-submit reads it."""
    (nothing_given / "spark-defaults.conf").write_text("spark.jars /no.jar")
    (tmp_path / "own.conf").write_text(f"spark.jars {CONNECTOR}")
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"--properties-file {tmp_path / 'own.conf'} pyspark-shell")
    assert settings(SparkSession.builder)["spark.jars"] == f"{CONNECTOR},{exactly_once.jar()}"


def test_spark_defaults_are_read_beside_a_file_where_spark_4_is_told_so(
    nothing_given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mishap: what spark-defaults.conf has of jars is replaced by the sink's."""
    (nothing_given / "spark-defaults.conf").write_text(f"spark.jars {CONNECTOR}")
    (tmp_path / "own.conf").write_text("spark.app.name x")
    arguments = f"--properties-file {tmp_path / 'own.conf'} --load-spark-defaults pyspark-shell"
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", arguments)
    assert settings(SparkSession.builder)["spark.jars"] == f"{CONNECTOR},{exactly_once.jar()}"


def test_a_folder_of_jars_on_both_class_paths_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mishap: a download that a cluster without a network waits for, although its image has the connector."""
    builder = SparkSession.builder
    for side in ("driver", "executor"):
        builder = builder.config(f"spark.{side}.extraClassPath", f"/opt/none/*:{tmp_path}/*")
    assert OURS.partition(":")[0] in settings(builder)["spark.jars.packages"]
    (tmp_path / "spark-sql-kafka-0-10_2.13-4.2.0.jar").touch()
    made = settings(builder.config("spark.jars.packages", ""))
    assert made["spark.jars.packages"] == ""


def test_under_spark_submit_the_jars_of_its_jvm_stay_and_nobody_is_asked_to_fetch_others(
    nothing_given: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mishap: executors get the sink's jar alone; and a package is named that no one downloads for a JVM that runs."""
    (nothing_given / "spark-defaults.conf").write_text("spark.jars /no.jar")
    for jars in (CONNECTOR, "/a.jar", None):
        system = SimpleNamespace(getProperty={"spark.jars": jars}.get)
        jvm = SimpleNamespace(java=SimpleNamespace(lang=SimpleNamespace(System=system)))
        monkeypatch.setattr(launch, "launched", lambda jvm=jvm: jvm)
        made = settings(SparkSession.builder.config("spark.app.name", "x"))
        assert made["spark.jars"] == ",".join(filter(None, [jars, exactly_once.jar()]))
        assert "spark.jars.packages" not in made


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
