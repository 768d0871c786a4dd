"""Stateful queries for tests, loaded by drivers and workers by name. A row's value ends with ``-<second of the
event>``; what comes out has one Kafka key for each thing counted, so that its values have an order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

try:
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
except ImportError:  # PySpark 3.5 has no transformWithState
    StatefulProcessor = object  # type: ignore[assignment, misc]

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Not a whole number of seconds, so that no event's second, and no end of a window, is the watermark itself.
WATERMARK_MS = 1_500
WINDOW_S = 10
#: A right row joins a left one of up to this many seconds before it.
JOIN_S = 24
#: For so long after its first row an id is a duplicate.
DUPLICATE_MS = 15_500
#: After so many seconds without a row, a short-lived key is given up.
PATIENCE_S = 15
#: Short-lived keys begin with this.
SHORT_LIVED = "t"


def windows(df: DataFrame) -> DataFrame:
    """Return the count by key and window: ``key@start`` and the count."""
    from pyspark.sql import functions as f

    return (
        _timed(df, WATERMARK_MS)
        .groupBy("key", f.window("time", f"{WINDOW_S} seconds"))
        .count()
        .select(
            f.format_string("%s@%d", "key", f.unix_timestamp("window.start")).alias("key"),
            f.col("count").cast("string").alias("value"),
        )
    )


def counts(df: DataFrame) -> DataFrame:
    """Return how many rows of each key there were, without a watermark.

    The state is the same however rows fall into batches.
    """
    from pyspark.sql import functions as f

    return df.groupBy("key").count().select("key", f.col("count").cast("string").alias("value"))


def joined(df: DataFrame) -> DataFrame:
    """Left outer join of the rows ``l-...`` with the rows ``r-...`` of the same key, up to JOIN_S later: the key, and
    both seconds; ``none`` instead of the right one when it never came.
    """
    from pyspark.sql import functions as f

    left = _timed(df.where("value like 'l-%'"), WATERMARK_MS).select(f.col("key"), f.col("time").alias("left_time"))
    right = _timed(df.where("value like 'r-%'"), WATERMARK_MS).select(
        f.col("key").alias("right_key"), f.col("time").alias("right_time")
    )
    within = f.expr(
        f"key = right_key and right_time >= left_time and right_time <= left_time + interval {JOIN_S} seconds"
    )
    there = f.coalesce(f.unix_timestamp("right_time").cast("string"), f.lit("none"))
    return left.join(right, within, "leftOuter").select(
        "key", f.concat_ws("+", f.unix_timestamp("left_time").cast("string"), there).alias("value")
    )


def deduplicated(df: DataFrame) -> DataFrame:
    """Return the rows whose key did not come within DUPLICATE_MS before."""
    return _timed(df, DUPLICATE_MS).dropDuplicatesWithinWatermark(["key"]).select("key", "value")


def totals(df: DataFrame, mode: str) -> DataFrame:
    """transformWithState: for each key of a batch ``<rows so far>:<sum of their seconds>``; of a short-lived key, when
    its time is over, ``over:`` and the same, and its state is gone.
    """
    return (
        _timed(df, WATERMARK_MS)
        .groupBy("key")
        .transformWithState(
            statefulProcessor=Totals(),
            outputStructType="key string, value string",
            outputMode=mode,
            timeMode="EventTime",
        )
    )


class Totals(StatefulProcessor):
    """The processor of :func:`totals`."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._total = handle.getValueState("total", "rows long, seconds long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        from pyspark.sql import Row

        number, seconds = self._total.get() or (0, 0)
        latest = 0
        for row in rows:
            latest = max(latest, second_of(row["value"]))
            number, seconds = number + 1, seconds + second_of(row["value"])
        self._total.update((number, seconds))
        if key[0].startswith(SHORT_LIVED):
            for earlier_ms in list(self._handle.listTimers()):
                self._handle.deleteTimer(earlier_ms)
            self._handle.registerTimer((latest + PATIENCE_S) * 1000)
        yield Row(key=key[0], value=f"{number}:{seconds}")

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        from pyspark.sql import Row

        number, seconds = self._total.get() or (0, 0)
        self._total.clear()
        yield Row(key=key[0], value=f"over:{number}:{seconds}")

    def close(self) -> None:
        pass


def second_of(value: str) -> int:
    """Return the event's second."""
    return int(value.rpartition("-")[2])


def _timed(df: DataFrame, delay_ms: int) -> DataFrame:
    from pyspark.sql import functions as f

    time = f.timestamp_seconds(f.regexp_extract("value", "([0-9]+)$", 1).cast("long"))
    return df.withColumn("time", time).withWatermark("time", f"{delay_ms} milliseconds")
