"""A stream with state: it drops the records that its input has twice, and keeps the ids of all others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from testkit.oracle import Row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Where Spark keeps state, by the name that a round's settings have; the first one is Spark's default.
STORES = ("HDFSBackedStateStore", "RocksDBStateStore")

#: The share of its records that a writer sends a second time.
REPEATS = 0.2

#: For the query, as :attr:`testkit.stream.Job.transform`.
TRANSFORM = "faultlab.state:first_of_each_id"


def settings_of(store: str) -> dict[str, str]:
    """Spark's settings for one of :data:`STORES`: Spark's own defaults, or those of this project for RocksDB."""
    # here: a driver that imports this module for its transform needs no Dagster
    from dagster_exactly_once.resources.spark import FILE_MANAGER, STATE_STORE
    from dagster_exactly_once.streaming.query import SAFE_FILE_MANAGER

    often = {
        # state of a few batches is in deltas and snapshots: both are read after a kill
        "spark.sql.streaming.stateStore.minDeltasForSnapshot": "3",
        "spark.sql.streaming.stateStore.maintenanceInterval": "2s",
    }
    if store == STORES[1]:
        return {**STATE_STORE, **often}
    return {
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
        ),
        FILE_MANAGER: SAFE_FILE_MANAGER,  # the lab's other streams have the one for local disks
        **often,
    }


def first_of_each_id(df: DataFrame) -> DataFrame:
    """Return the first record of each id; the id is behind the place in the value (:func:`faultlab.workload.place`)."""
    from pyspark.sql import functions as f

    return df.withColumn("id", f.substring_index("value", "|", -1)).dropDuplicates(["id"]).drop("id")


def firsts(rows: Iterable[Row]) -> list[Row]:
    """Return what :func:`first_of_each_id` owes for these rows of the input, in the order of their offsets."""
    kept: dict[str, Row] = {}
    for key, value in rows:
        kept.setdefault((value or "").rpartition("|")[2], (key, value))
    return list(kept.values())
