"""What a run's log holds: nothing that is no problem."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from py4j.protocol import Py4JJavaError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.long
def test_a_batch_that_takes_longer_than_the_trigger_is_no_warning(spark: SparkSession) -> None:
    """Mishap: "Current batch is falling behind", over and over, in the log of a stream that the check calls healthy."""
    jvm = spark.sparkContext._jvm
    found = []
    for package in ("streaming", "streaming.runtime"):
        name = f"org.apache.spark.sql.execution.{package}.ProcessingTimeExecutor"
        try:
            jvm.java.lang.Class.forName(name)
        except Py4JJavaError:  # of another release
            continue
        log = jvm.org.apache.logging.log4j.LogManager.getLogger(name)
        found.append((log.isWarnEnabled(), log.isErrorEnabled()))
    assert found == [(False, True)]
