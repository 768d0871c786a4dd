"""``delay_by_hour``: departures, cancellations and the average departure delay of each airport and hour.

The one query here with state. The state store, below the checkpoint, holds the open hours; the query writes an hour
once, when the watermark has passed the end of the hour.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from platform_assets.constants import DELAY_BY_HOUR

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def delay_by_hour(events: DataFrame, watermark_delay_h: float) -> DataFrame:
    """Aggregate the hours of each airport of origin, by scheduled departure (UTC).

    Parameters
    ----------
    events : DataFrame
        The result of :func:`platform_assets.flights.transform.parse`; skips malformed events.
    watermark_delay_h : float
        How far behind the newest departure an event may be, in hours of event time. Spark drops later events.

    Returns
    -------
    DataFrame
        topic, key (the airport) and value: JSON with ``origin``, ``window_start``, ``window_end``, ``departures``
        (planned), ``cancelled`` (those that never left) and ``average_departure_delay_min``, null when none left. The
        hours of an airport are in no particular order within a batch: Spark cannot sort a stream.
    """
    from pyspark.sql import functions as F

    left = F.col("dep_time").isNotNull()
    hours = (
        events.observe("input", F.count("tried.exception").alias("rejected"))
        .where(F.col("tried.exception").isNull())
        .withWatermark("scheduled", f"{round(watermark_delay_h * 3_600_000)} milliseconds")
        .groupBy(F.window("scheduled", "1 hour"), "origin")
        .agg(
            F.count(F.lit(1)).alias("departures"),
            F.count(F.when(~left, 1)).alias("cancelled"),
            F.avg(F.when(left, F.col("dep_delay"))).alias("average_departure_delay_min"),
        )
    )
    record = F.struct(
        "origin",
        _utc("window.start").alias("window_start"),
        _utc("window.end").alias("window_end"),
        "departures",
        "cancelled",
        "average_departure_delay_min",
    )
    return hours.select(
        F.lit(DELAY_BY_HOUR).alias("topic"),
        F.col("origin").cast("binary").alias("key"),
        F.to_json(record, {"ignoreNullFields": "false"}).cast("binary").alias("value"),
    )


def _utc(column: str) -> Column:
    from pyspark.sql import functions as F

    return F.date_format(column, "yyyy-MM-dd'T'HH:mm:ss'Z'")
