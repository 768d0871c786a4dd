"""Give a Spark session what the sink needs: its jar, and Spark's Kafka connector. And find out whether it has that."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from exactly_once.connector import CLASSES, CLIENT, SHADED, coordinate, incomplete, unusable
from exactly_once.errors import ConnectorUnusable, SessionWithoutJar, UnsupportedMode
from exactly_once.spark import launch

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

#: The jar, built from ``java/`` by ``make jar``; it holds no more than this project's own classes.
JAR = Path(__file__).with_name("exactly-once-spark.jar")

#: Name by which Spark's JVM knows ``format("kafka_exactly_once")``.
SINK_CLASS = "exactlyonce.Sink"

#: Java for which the jar is compiled. Spark 3.5 runs on older ones, too.
_OLDEST_JAVA = 17

_CONNECTOR = "spark-sql-kafka-0-10"
#: Class paths of the driver and of the executors: both need the jar.
_CLASS_PATHS = ("spark.driver.extraClassPath", "spark.executor.extraClassPath")
_PROVIDER = "org.apache.spark.sql.kafka010.KafkaSourceProvider"

#: The contexts whose tasks can send.
_SENDING: WeakSet[SparkContext] = WeakSet()


def configure(builder: SparkSession.Builder) -> SparkSession.Builder:
    """Add the sink's jar, and Spark's Kafka connector unless it is there already, to what ``builder`` has."""
    from pyspark import __version__

    options: dict[str, Any] = builder._options
    jars, packages = (_listed(options.get(n) or launch.setting(n)) for n in ("spark.jars", "spark.jars.packages"))
    builder = builder.config("spark.jars", with_jar(",".join(jars)))
    if any(_CONNECTOR in jar for jar in (*jars, *packages, *_of_spark_itself())) or launch.launched() is not None:
        return builder  # nobody fetches packages for a JVM that is there
    if all(_has_connector(options.get(n) or launch.setting(n) or "") for n in _CLASS_PATHS):
        return builder
    return builder.config("spark.jars.packages", ",".join([*packages, coordinate(__version__)]))


def with_jar(jars: str | None) -> str:
    """Return ``spark.jars`` with the sink's jar, unless a file of its name is there: Spark takes no two of one name."""
    listed = _listed(jars)
    return ",".join(listed if any(Path(jar).name == JAR.name for jar in listed) else [*listed, str(JAR)])


def installed_pyspark() -> str:
    """Return the release of the installed PySpark, which is not imported; "" for none, or for one of a folder."""
    with suppress(PackageNotFoundError):
        return version("pyspark")
    return ""


def file_manager(name: str) -> str:
    """Return the class of a file manager for checkpoints, ``FileSystemBased`` or ``FileContextBased``, in the installed
    PySpark, which is not imported. Spark 4.1 moved these classes.
    """
    package = "" if installed_pyspark().startswith(("3.", "4.0.")) else "checkpointing."
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
            "something else starts the JVM (spark-submit, PYSPARK_SUBMIT_ARGS, a cluster, a notebook), that comes too "
            "late: add the file that exactly_once.jar() names to its --jars, or to spark.jars, and Spark's connector "
            "to its --packages",
        )


def check_connector(spark: SparkSession, reads: bool = True, sends: bool = True) -> None:
    """Raise ConnectorUnusable for a session that cannot read Kafka, if it ``reads``, or whose tasks cannot send, if it
    ``sends`` by ``format("kafka_exactly_once")``. Does nothing on Spark Connect.
    """
    if has_jvm(spark) and (fault := _fault(spark.sparkContext._jvm, spark.version, reads, sends)) is not None:
        raise fault


def check_client() -> None:
    """Raise ConnectorUnusable when tasks of this process's own session cannot send; does nothing in a process without
    one, as on Spark Connect. A context keeps the jars that it has: its JVM is asked once, however many queries start.
    """
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    if context is None or context in _SENDING:
        return
    if (fault := _fault(context._jvm, context.version, reads=False)) is not None:
        raise fault
    _SENDING.add(context)


def warn_without_connector(spark: SparkSession) -> None:
    """Warn when ``spark`` cannot read Kafka, nor the sink write: Spark's own error names neither jar nor version."""
    try:
        check_connector(spark)
    except ConnectorUnusable as e:
        log.warning("EO-WARN-CONNECTOR %s. Without it, format('kafka_exactly_once') fails: %s", e.what, e.way_out)


def _fault(jvm: Any, spark_version: str, reads: bool = True, sends: bool = True) -> ConnectorUnusable | None:
    """Return what is wrong with the classes of Kafka that a JVM finds; None when nothing is."""
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    provider = _loaded(jvm, loader, _PROVIDER)
    jar = None
    if provider is not None:
        source = provider.getProtectionDomain().getCodeSource()
        jar = str(source.getLocation().getPath()) if source is not None else ""
    if (jar is not None or reads) and (fault := unusable(jar, spark_version, _scala(jvm))) is not None:
        return fault
    missing = frozenset(name for name in CLASSES if _loaded(jvm, loader, name) is None)
    return incomplete(jar, spark_version, missing, sends, shaded=_loaded(jvm, loader, SHADED + CLIENT) is not None)


def _loaded(jvm: Any, loader: Any, name: str) -> Any:
    """Return a class, which is not initialised; None when there is none."""
    try:
        return jvm.java.lang.Class.forName(name, False, loader)
    except Exception:  # py4j's error for a ClassNotFoundException or a NoClassDefFoundError
        return None


def _scala(jvm: Any) -> str:
    """Return the Scala of a JVM's Spark, such as 2.13."""
    return ".".join(str(jvm.scala.util.Properties.versionNumberString()).split(".")[:2])


def _of_spark_itself() -> Iterable[str]:
    """Return the connectors in Spark's own folder of jars, as some distributions and images have it."""
    from pyspark.find_spark_home import _find_spark_home

    return [jar.name for jar in (Path(_find_spark_home()) / "jars").glob(f"{_CONNECTOR}_*.jar")]


def _has_connector(class_path: str) -> bool:
    """Return whether a class path names the connector, or a folder that has it: a cluster may bring its jars."""
    folders = [Path(entry[:-1]) for entry in class_path.split(os.pathsep) if entry.endswith("*")]
    return _CONNECTOR in class_path or any(list(folder.glob(f"{_CONNECTOR}_*.jar")) for folder in folders)


def _listed(value: str | None) -> list[str]:
    return [item.strip() for item in (value or "").split(",") if item.strip()]
