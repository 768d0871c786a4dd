"""The write of a batch that ``foreach_batch`` has planned, by the sink's jar in a real session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from exactly_once.framing import Framing
from exactly_once.options import Guarantee
from exactly_once.protocol.planning import Plan
from exactly_once.spark.border import TaskTicket
from exactly_once.spark.foreach_batch import write_planned

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TICKET = TaskTicket(
    plan=Plan.DRAIN,
    execution="e",
    batch=0,
    query="",
    guarantee=Guarantee.EXACTLY_ONCE,
    sink="s",
    ids="eo:s:1:",
    log="eo.s.commit-log",
    log_end=0,
    timeout_ms=900_000,
    limit_ms=0,
    too_long="",
    topic="out",
    columns={"value": 0},
    key_prefix="",
    value_prefix="",
    encodings=Framing().encodings,
    allowed=(),
    dead_letters=None,
    batch_headers=False,
    lost=(),
    client={"bootstrap.servers": "127.0.0.1:1", "sasl.jaas.config": "a password"},
)


def kept(spark: SparkSession, name: str) -> int:
    """Return how many executions Java keeps something of."""
    jvm: Any = spark.sparkContext._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    field = loader.loadClass("exactlyonce.PlannedWrite").getDeclaredField(name)
    field.setAccessible(True)
    return int(field.get(None).size())


def test_java_keeps_no_ticket_of_a_write_that_fails_before_spark_begins_it(spark: SparkSession) -> None:
    """Guards against the passwords of a ticket, and memory, that stay for as long as the driver lives."""
    rows = spark.range(1).selectExpr("string(id) value")
    spark.conf.set("spark.sql.crossJoin.enabled", "false")
    try:
        with pytest.raises(Exception, match=r"(?i)cartesian|cross"):
            write_planned(rows.join(spark.range(1)).select("value"), TICKET)
    finally:
        spark.conf.unset("spark.sql.crossJoin.enabled")
    assert kept(spark, "TICKETS") == kept(spark, "REPORTS") == 0
