"""Which queries keep state, on a real Spark: by the names of its operators, which no document promises."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from dagster_exactly_once.resources.spark import FILE_MANAGER, LOCAL_CHECKPOINTS
from dagster_exactly_once.streaming.query import SAFE_FILE_MANAGER, keeps_state, protect_state

pytestmark = pytest.mark.long

#: A stream, and rows that are no stream, to one that keeps state.
KEEPS: dict[str, Callable[[DataFrame, DataFrame], DataFrame]] = {
    "a windowed count": lambda s, _: s.groupBy(F.window("timestamp", "1 hour")).count(),
    "a session window": lambda s, _: s.groupBy(F.session_window("timestamp", "1 hour")).count(),
    "dropDuplicates": lambda s, _: s.dropDuplicates(["value"]),
    "dropDuplicatesWithinWatermark": lambda s, _: s.dropDuplicatesWithinWatermark(["value"]),
    "distinct": lambda s, _: s.distinct(),
    "limit": lambda s, _: s.limit(7),
    "a join of two streams": lambda s, _: s.join(s.select("value", "timestamp"), "value"),
    "state of one's own": lambda s, _: s.groupBy("value").applyInPandasWithState(
        lambda key, rows, state: rows, "value long", "n long", "append", "NoTimeout"
    ),
    "below other operators": lambda s, fixed: s.dropDuplicates(["value"]).join(fixed, "value").where("value > 1"),
}
NO_STATE: dict[str, Callable[[DataFrame, DataFrame], DataFrame]] = {
    "rows as they are": lambda s, _: s,
    "a filter with a watermark": lambda s, _: s.where("value > 1"),
    "a join with a table": lambda s, fixed: s.join(fixed, "value"),
    "a table that was counted before": lambda s, fixed: s.join(fixed.groupBy("value").count(), "value", "left"),
    "a union": lambda s, _: s.unionByName(s),
    "an observation": lambda s, _: s.observe("rows", F.count("*").alias("n")),
}


def made(spark: SparkSession, transform: Callable[[DataFrame, DataFrame], DataFrame]) -> DataFrame:
    stream = spark.readStream.format("rate").load().withWatermark("timestamp", "1 hour")
    return transform(stream, spark.range(9).withColumnRenamed("id", "value"))


@pytest.mark.parametrize("what", KEEPS)
def test_a_query_that_keeps_state_gets_the_file_manager_that_replaces_it(what: str, spark: SparkSession) -> None:
    """Loss and duplicates: state of a plan that never came to a batch, which the next plan takes for its own."""
    spark.conf.set(FILE_MANAGER, LOCAL_CHECKPOINTS[FILE_MANAGER])
    protect_state(spark, made(spark, KEEPS[what]))
    assert spark.conf.get(FILE_MANAGER) == SAFE_FILE_MANAGER


@pytest.mark.parametrize("what", NO_STATE)
def test_a_query_without_state_keeps_the_fast_file_manager(what: str, spark: SparkSession) -> None:
    """Waste: 45 ms more for each batch of every stream."""
    assert not keeps_state(made(spark, NO_STATE[what]))


@pytest.mark.parametrize("manager", [LOCAL_CHECKPOINTS[FILE_MANAGER], SAFE_FILE_MANAGER])
def test_the_file_manager_is_the_one_that_the_session_has_when_the_query_starts(
    manager: str, spark: SparkSession, tmp_path: Path
) -> None:
    """A setting that Spark reads only when the session begins would protect nothing."""
    spark.conf.set(FILE_MANAGER, manager)
    files = spark._jvm.org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager
    folder = spark._jvm.org.apache.hadoop.fs.Path(tmp_path.as_uri())
    made_for_it = files.create(folder, spark._jsparkSession.sessionState().newHadoopConf())
    assert made_for_it.getClass().getName() == manager
