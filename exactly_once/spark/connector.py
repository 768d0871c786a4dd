"""Find out whether a session has Spark's Kafka connector, and the right one."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from exactly_once.connector import unusable
from exactly_once.errors import ConnectorUnusable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

_PROVIDER = "org.apache.spark.sql.kafka010.KafkaSourceProvider"


def check_connector(spark: SparkSession, needed: bool = True) -> None:
    """Raise ConnectorUnusable for a session that cannot read Kafka, unless it is one without a connector that need not.
    Does nothing on Spark Connect, where the JVM cannot be asked.
    """
    jar = _jar(spark) if hasattr(spark, "_jsparkSession") else ""
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
