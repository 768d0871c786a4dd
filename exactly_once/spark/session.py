"""Give a Spark session what the sink needs: its jar, and Spark's Kafka connector. And find out whether it has that."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exactly_once.connector import coordinate, unusable
from exactly_once.errors import ConnectorUnusable, SessionWithoutJar, UnsupportedMode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

#: Built from ``java/`` by ``make jar``; it holds no more than this project's own classes.
JAR = Path(__file__).with_name("exactly-once-spark.jar")

#: By which Spark's JVM knows ``format("kafka_exactly_once")``.
SINK_CLASS = "exactlyonce.Sink"

#: The jar is compiled for it. Spark 3.5 runs on older ones, too.
_OLDEST_JAVA = 17

_CONNECTOR = "spark-sql-kafka-0-10"
_PROVIDER = "org.apache.spark.sql.kafka010.KafkaSourceProvider"


def configure(builder: SparkSession.Builder) -> SparkSession.Builder:
    """Add the sink's jar, and Spark's Kafka connector unless it is there already, to what ``builder`` has."""
    from pyspark import __version__

    options: dict[str, Any] = builder._options
    jars, packages = (_listed(options.get(name)) for name in ("spark.jars", "spark.jars.packages"))
    builder = builder.config("spark.jars", with_jar(options.get("spark.jars")))
    if any(_CONNECTOR in jar for jar in (*jars, *packages, *_of_spark_itself())):
        return builder
    return builder.config("spark.jars.packages", ",".join([*packages, coordinate(__version__)]))


def with_jar(jars: str | None) -> str:
    """Return ``spark.jars`` with the sink's jar, unless a file of its name is there: Spark takes no two of one name."""
    listed = _listed(jars)
    return ",".join(listed if any(Path(jar).name == JAR.name for jar in listed) else [*listed, str(JAR)])


def file_manager(name: str) -> str:
    """Return the class of a file manager for checkpoints, ``FileSystemBased`` or ``FileContextBased``, in the installed
    PySpark, which is not imported. Spark 4.1 moved these classes.
    """
    try:
        moved = not version("pyspark").startswith(("3.", "4.0."))
    except PackageNotFoundError:
        moved = True
    package = "checkpointing." if moved else ""
    return f"org.apache.spark.sql.execution.streaming.{package}{name}CheckpointFileManager"


def has_jvm(spark: SparkSession) -> bool:
    """Return whether the session's JVM can be asked from this process, as it cannot on Spark Connect."""
    return hasattr(spark, "_jsparkSession")


def check_driver(spark: SparkSession) -> None:
    """Raise UnsupportedMode for foreach_batch on Spark Connect, which calls its function in a process without a JVM and
    leaves query and batch out of the properties of its tasks.
    """
    if not has_jvm(spark):
        raise UnsupportedMode(
            "foreach_batch does not work on Spark Connect, whose tasks do not learn which batch of a query they run",
            'Write with format("kafka_exactly_once"). For several outputs, or for Update mode, start the query from a '
            "driver without Spark Connect",
        )


def has_jar(spark: SparkSession) -> bool:
    """Return whether the JVM of a session finds the sink's jar; nothing is logged when it does not."""
    jvm: Any = spark.sparkContext._jvm
    # py4j's view answers for a class that is not there with a package of that name
    return type(getattr(jvm.exactlyonce, SINK_CLASS.rpartition(".")[2])).__name__ == "JavaClass"


def check_jar(spark: SparkSession) -> None:
    """Raise SessionWithoutJar for a session without the sink's jar, or with a Java that cannot read it, before anything
    begins.
    """
    jvm: Any = spark.sparkContext._jvm
    java = str(jvm.java.lang.System.getProperty("java.specification.version"))
    if int(java.removeprefix("1.")) < _OLDEST_JAVA:
        raise SessionWithoutJar(
            f"This Spark session runs on Java {java}, and the sink's jar needs Java {_OLDEST_JAVA} or newer",
            f"Set JAVA_HOME to a Java {_OLDEST_JAVA} or newer for driver and executors: Spark 3.5 runs on it, too",
        )
    if not has_jar(spark):
        raise SessionWithoutJar(
            f"this Spark session does not have the sink's jar ({SINK_CLASS} is not on the JVM's class path)",
            "Stop the session, and build it by exactly_once.configure(SparkSession.builder...).getOrCreate(). If "
            "something else starts the session (spark-submit, a cluster, a notebook), add the file that "
            "exactly_once.jar() names to spark.jars",
        )


def check_connector(spark: SparkSession, needed: bool = True) -> None:
    """Raise ConnectorUnusable for a session that cannot read Kafka, unless it is one without a connector that need not.
    Does nothing on Spark Connect.
    """
    jar = _jar(spark) if has_jvm(spark) else ""
    if (jar is not None or needed) and (fault := unusable(jar, spark.version)) is not None:
        raise fault


def warn_without_connector(spark: SparkSession) -> None:
    """Say it when ``spark`` cannot read Kafka, nor the sink write: Spark's own error names neither jar nor version."""
    try:
        check_connector(spark)
    except ConnectorUnusable as e:
        log.warning("EO-WARN-CONNECTOR %s. It also brings the Kafka client that the sink needs: %s", e.what, e.way_out)


def _jar(spark: SparkSession) -> str | None:
    """Return the path of the connector's jar, "" when its class does not tell; None when there is none."""
    jvm: Any = spark.sparkContext._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    try:
        provider = jvm.java.lang.Class.forName(_PROVIDER, False, loader)
    except Exception:  # py4j's, for a ClassNotFoundException
        return None
    source = provider.getProtectionDomain().getCodeSource()
    return str(source.getLocation().getPath()) if source is not None else ""


def _of_spark_itself() -> Iterable[str]:
    """Return the connectors in Spark's own folder of jars, as some distributions and images have it."""
    from pyspark.find_spark_home import _find_spark_home

    return [jar.name for jar in (Path(_find_spark_home()) / "jars").glob(f"{_CONNECTOR}_*.jar")]


def _listed(value: str | None) -> list[str]:
    return [item.strip() for item in (value or "").split(",") if item.strip()]
