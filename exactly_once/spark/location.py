"""The location of a checkpoint as the session's JVM has it, which knows the default file system.

For what Python is asked; java/exactlyonce/border/Execution.java does the same for ``format("kafka_exactly_once")``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from exactly_once import location as locations
from exactly_once.checkpoint import unusable
from exactly_once.errors import CheckpointUnusable
from exactly_once.spark.session import has_jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Value = TypeVar("Value", str, str | None)

_OPTION = "checkpointlocation"
_DEFAULT = "spark.hadoop.fs.defaultFS"


def located(options: Mapping[str, Value], spark: SparkSession | None = None) -> dict[str, Value]:
    """Return the options of a sink with the checkpoint where Spark puts it.

    Parameters
    ----------
    spark
        Default: the session of this process. Without one, the options stay as they are.

    Raises
    ------
    CheckpointUnusable
        Hadoop cannot read the location, or the session has no such file system.
    """
    return {
        name: _placed(value, spark) if name.lower() == _OPTION and value else value for name, value in options.items()
    }


def check_place(spark: SparkSession, location: str) -> None:
    """Raise CheckpointUnusable for a location that Spark puts elsewhere than a process without a session, such as a
    sensor's, looks for it, or for which it has no file system.
    """
    placed = _placed(location, spark)
    check_scheme(spark, location)
    here, there = locations.read(location).on_disk, locations.read(placed)
    if here is not None and not here.startswith("/"):
        raise CheckpointUnusable(
            f"the checkpoint {location} is a relative path, which each process takes from its own working directory: a "
            "sensor looks elsewhere than Spark",
            f"Write the location as {placed}",
        )
    if here is not None and here != there.on_disk:
        raise CheckpointUnusable(
            f"Spark puts {location} on {there.scheme}://{there.authority}, its default file system (fs.defaultFS), "
            "where a sensor, which has no session, does not look for it",
            f"Write the location as {placed}",
        )


def check_scheme(spark: SparkSession, location: str) -> None:
    """Raise CheckpointUnusable for a scheme for which the session has no file system; asks no store."""
    from py4j.protocol import Py4JError, Py4JJavaError

    scheme = locations.read(location).scheme
    if not scheme or not has_jvm(spark):
        return
    hadoop, conf = _hadoop(spark)
    try:
        hadoop.FileSystem.getFileSystemClass(scheme, conf)
    except Py4JJavaError as e:
        raise _without_file_system(location, e) from e
    except Py4JError:  # the platform lets Python ask no such thing, and has its own file systems
        return


def _placed(text: str, spark: SparkSession | None) -> str:
    try:
        place = locations.read(text)
    except ValueError as e:
        raise unusable(text, e) from e
    if place.authority or place.scheme == "file" or (spark := spark or _session()) is None:
        return text
    if not has_jvm(spark):
        default = locations.read(spark.conf.get(_DEFAULT, "") or "file:/")
        relative = not place.path.startswith("/")
        return text if default.is_local or relative else str(default._replace(path=place.path))
    there = locations.read(_qualified(spark, text))
    # absolute: a process may have changed its working directory since its JVM began
    return there.path if there.is_local else str(there)


def _qualified(spark: SparkSession, text: str) -> str:
    from py4j.protocol import Py4JJavaError

    hadoop, conf = _hadoop(spark)
    path = hadoop.Path(text)
    try:
        return str(path.getFileSystem(conf).makeQualified(path))
    except Py4JJavaError as e:
        raise _without_file_system(text, e) from e


def _hadoop(spark: SparkSession) -> tuple[Any, Any]:
    """Return Hadoop's package of file systems, and the session's settings of them."""
    session, jvm = vars(spark)["_jsparkSession"], cast(Any, spark.sparkContext._jvm)
    return jvm.org.apache.hadoop.fs, session.sessionState().newHadoopConf()


def _without_file_system(text: str, e: Any) -> CheckpointUnusable:
    return CheckpointUnusable(
        f"Spark has no file system for the checkpoint location {text} ({e.java_exception.toString()})",
        "Correct the location, or give the session the jars and settings of its file system",
    )


def _session() -> SparkSession | None:
    sql: Any = sys.modules.get("pyspark.sql")  # a process without Spark does not load it
    return None if sql is None else sql.SparkSession.getActiveSession() or sql.SparkSession._instantiatedSession
