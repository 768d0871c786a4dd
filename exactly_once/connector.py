"""Spark's Kafka connector, the jar that reads Kafka: its coordinate, where it may be, and whether it is of another
Spark.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from exactly_once.errors import ConnectorUnusable

#: The last connector of each minor release of Spark that ``spark.jars.packages`` resolved with all that it depends on:
#: mirrors of Maven Central lack parts of later ones, which ``sparkenv/connectors.xml`` replaces and this setting
#: cannot. It serves every later patch of the minor, and 4.2's serves 4.3.
_LAST = {"3.5": "3.5.7", "4.0": "4.0.0", "4.1": "4.1.1", "4.2": "4.2.0", "4.3": "4.2.0"}

#: In a path, or in a value of ``spark.jars.packages``.
_JAR = re.compile(r"spark-sql-kafka-0-10_(?P<scala>[\d.]+)[-:](?P<version>\d+(?:\.\d+)*)[^/,\s\"']*")


def coordinate(spark_version: str) -> str:
    """Return what ``spark.jars.packages`` has to name for a release of Spark, such as ``4.2.0``."""
    minor = ".".join(spark_version.split(".")[:2])
    release = ".".join(map(str, _numbers(spark_version)))  # a vendor's build or a snapshot is in no repository
    version = min(_LAST.get(minor, release), release, key=_numbers)
    return f"org.apache.spark:spark-sql-kafka-0-10_{scala(spark_version)}:{version}"


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


def unusable(jar: str | None, spark_version: str) -> ConnectorUnusable | None:
    """Return why a query of this Spark cannot read Kafka with ``jar``, None when there is no jar; None when it can, or
    when the jar does not tell. Of another minor release is not another Spark: 4.2's works with 4.3.
    """
    way_out = f"Start the session with spark.jars.packages={coordinate(spark_version)}"
    if jar is None:
        return ConnectorUnusable(
            "this Spark session has no Kafka connector, so format('kafka') cannot be read",
            f"{way_out}, or add the jar of that name and the jars that it depends on to spark.jars",
        )
    found = _JAR.search(jar)
    if found is None:
        return None
    if found["scala"] != scala(spark_version) or found["version"].split(".")[0] != spark_version.split(".")[0]:
        return ConnectorUnusable(
            f"the Kafka connector {found[0]} is built for another Spark version than {spark_version}",
            f"{way_out}, and remove the other jar",
        )
    return None


def _numbers(release: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", release)[:3]]
