"""Spark's Kafka connector, the jar that reads Kafka: its coordinate, where it may be, and whether it is of another
Spark.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection
from pathlib import Path

from exactly_once.errors import ConnectorUnusable

#: The last connector of each minor release of Spark that ``spark.jars.packages`` resolved with all that it depends on:
#: mirrors of Maven Central lack parts of later ones, which ``sparkenv/connectors.xml`` replaces and this setting
#: cannot. It serves every later patch of the minor, and 4.2's serves 4.3.
_LAST = {"3.5": "3.5.7", "4.0": "4.0.0", "4.1": "4.1.1", "4.2": "4.2.0", "4.3": "4.2.0"}

#: Pattern of the connector in a path, or in a value of ``spark.jars.packages``.
_JAR = re.compile(r"spark-sql-kafka-0-10_(?P<scala>[\d.]+)[-:](?P<version>\d+(?:\.\d+)*)[^/,\s\"']*")


#: The class that tasks send with, and its name where a vendor renames the packages of its own copy (Databricks).
CLIENT = "org.apache.kafka.clients.producer.KafkaProducer"
SHADED = "kafkashaded."

#: A class of kafka-clients since 3.1, the oldest that the sink's jar works with.
_SINCE_3_1 = "org.apache.kafka.common.TopicCollection"

#: Classes of the jars that the connector's own needs beside it.
_BESIDE = {
    "org.apache.spark.kafka010.KafkaTokenUtil": "spark-token-provider-kafka-0-10",
    "org.apache.commons.pool2.impl.GenericKeyedObjectPool": "commons-pool2",
}

#: Classes that a session is asked for.
CLASSES = (CLIENT, _SINCE_3_1, *_BESIDE)

#: The client that is tried beside a connector with renamed classes.
_CLIENT_JAR = "org.apache.kafka:kafka-clients:3.9.2"


def coordinate(spark_version: str, of_scala: str = "") -> str:
    """Return what ``spark.jars.packages`` has to name for a release of Spark, such as ``4.2.0``, and its Scala."""
    minor = ".".join(spark_version.split(".")[:2])
    release = ".".join(map(str, _numbers(spark_version)))  # a vendor's build or a snapshot is in no repository
    version = min(_LAST.get(minor, release), release, key=_numbers)
    return f"org.apache.spark:spark-sql-kafka-0-10_{of_scala or scala(spark_version)}:{version}"


def scala(spark_version: str) -> str:
    """Return the Scala that PySpark's jars of a release are built for."""
    return "2.12" if spark_version.startswith("3.") else "2.13"


def version_of(text: str) -> str | None:
    """Return the version in the path of the connector's jar, or in its coordinate; None in any other text."""
    found = _JAR.search(text)
    return found["version"] if found else None


def cache_folder() -> Path:
    """Return the one folder outside the project that it writes: ``EXACTLY_ONCE_CACHE``, or one in the user's cache."""
    if own := os.environ.get("EXACTLY_ONCE_CACHE"):
        return Path(own).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "exactly-once"


def found_on_this_host(pyspark: Path | None) -> list[str]:
    """Return the paths and coordinates of the connector where a session of this host may get it from: the jars of the
    folder ``pyspark`` and of ``SPARK_HOME``, settings in the environment and in spark-defaults.conf, the downloads of
    ``spark.jars.packages`` and of this package. A session may name others.
    """
    homes = [home for home in (os.environ.get("SPARK_HOME"), pyspark) if home]
    settings = [os.environ.get("PYSPARK_SUBMIT_ARGS", "")]
    for folder in (os.environ.get("SPARK_CONF_DIR"), *(f"{home}/conf" for home in homes)):
        defaults = Path(folder or os.devnull) / "spark-defaults.conf"
        with contextlib.suppress(OSError, UnicodeDecodeError):
            settings += [line for line in defaults.read_text().splitlines() if not line.lstrip().startswith("#")]
    jars = [Path(home).glob("jars/*.jar") for home in homes]
    jars += [Path.home().glob(".ivy2*/jars/*.jar"), cache_folder().glob("jars/*/connector/*.jar")]
    texts = [*settings, *sorted({str(jar) for some in jars for jar in some})]
    return [text.strip() for text in texts if version_of(text) is not None]


def unusable(jar: str | None, spark_version: str, of_scala: str = "") -> ConnectorUnusable | None:
    """Return why a query of this Spark cannot read Kafka with ``jar``, None when there is no jar; None when it can, or
    when the jar does not tell. A connector of another minor release may fit: 4.2's works with 4.3.

    ``of_scala`` is Spark's, if it is known; the default is that of PySpark's releases.
    """
    way_out = f"Start the session with spark.jars.packages={coordinate(spark_version, of_scala)}"
    if jar is None:
        return ConnectorUnusable(
            "this Spark session has no Kafka connector, so format('kafka') cannot be read",
            f"{way_out}, or add the jar of that name and the jars that it depends on to spark.jars",
        )
    connector = _JAR.search(jar)
    if connector is None:
        return None
    if connector["scala"] != (of_scala or scala(spark_version)):
        return ConnectorUnusable(
            f"the Kafka connector {connector[0]} is built for Scala {connector['scala']}, and Spark {spark_version} "
            f"here for Scala {of_scala or scala(spark_version)}",
            f"{way_out}, and remove the other jar",
        )
    if connector["version"].split(".")[0] != spark_version.split(".")[0]:
        return ConnectorUnusable(
            f"the Kafka connector {connector[0]} is built for another Spark version than {spark_version}",
            f"{way_out}, and remove the other jar",
        )
    return None


def incomplete(
    jar: str | None, spark_version: str, missing: Collection[str], sends: bool, shaded: bool = False
) -> ConnectorUnusable | None:
    """Return what a session lacks of :data:`CLASSES`, if it matters.

    Parameters
    ----------
    jar : str or None
        The connector's; None when there is none.
    missing : collection of str
        The classes that the session's JVM does not find.
    sends : bool
        Whether its tasks are to write by ``format("kafka_exactly_once")``.
    shaded : bool
        Whether it has the client under its other name.
    """
    if sends and CLIENT in missing:
        return ConnectorUnusable(
            f"this Spark session has no class {CLIENT}, with which the sink's tasks send"
            + (f": its connector has that class as {SHADED}{CLIENT}, as on Databricks" if shaded else ""),
            f"Add {_CLIENT_JAR} to spark.jars.packages, or to the cluster's libraries"
            + ("" if shaded or jar is not None else f", as spark.jars.packages={coordinate(spark_version)} does"),
        )
    if sends and _SINCE_3_1 in missing:
        return ConnectorUnusable(
            f"the kafka-clients of this Spark session are older than 3.1: they have no class {_SINCE_3_1}",
            f"Replace the jar by {_CLIENT_JAR}",
        )
    lacking = [artifact for name, artifact in _BESIDE.items() if name in missing]
    if jar is not None and _JAR.search(jar) and not shaded and lacking:
        return ConnectorUnusable(
            f"this Spark session has the Kafka connector without {' and '.join(lacking)}, which it needs",
            f"Start the session with spark.jars.packages={coordinate(spark_version)}, which brings it, or add that jar",
        )
    return None


def _numbers(release: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", release)[:3]]
