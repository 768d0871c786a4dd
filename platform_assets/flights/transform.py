"""Turn flight events into delay records: pure functions on Spark columns, no Dagster, no Kafka client.

Nothing here shuffles. A key lives in one partition of ``flights``, a partition is read by one task in offset order,
both lookups are broadcast, and the sink partitions by key: so the events of an aircraft arrive in the order they left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from exactly_once import attempt

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_REQUIRED_TEXT = {"carrier": "^[A-Z0-9]{2}$", "origin": "^[A-Z0-9]{3}$", "dest": "^[A-Z0-9]{3}$"}
_REQUIRED_NUMBERS = ("minute", "flight")
_OPTIONAL_NUMBERS = ("sequence", "dep_time", "dep_delay", "arr_time", "arr_delay", "air_time", "distance")
_BROKEN = "_broken"


def flight_delays(source: DataFrame, airlines: DataFrame, airports: DataFrame) -> DataFrame:
    """Turn every row of ``source`` into exactly one row: a record of ``flight_delays``, or a rejected event.

    Parameters
    ----------
    source : DataFrame
        Rows of Spark's Kafka source.
    airlines, airports : DataFrame
        ``code``, ``name``, with each code once.

    Returns
    -------
    DataFrame
        key, value and ``tried`` of :func:`exactly_once.attempt`: of a valid event, JSON keyed by tail number, with
        unknown names as null; of a malformed one, why it is malformed.

    Raises
    ------
    ValueError
        When the session's time zone is not UTC: the times in the output would depend on the machine.
    """
    from pyspark.sql import functions as F

    zone = source.sparkSession.conf.get("spark.sql.session.timeZone")
    if zone != "UTC":
        raise ValueError(f"spark.sql.session.timeZone is {zone}, but flight times are UTC: set it to UTC")
    checked = parse(source)
    named = _with_name(checked, airlines, "carrier", "airline")
    named = _with_name(named, airports, "origin", "origin_name")
    named = _with_name(named, airports, "dest", "dest_name")
    return named.select(F.col("tailnum").alias("key"), _delay_json().alias("value"), "tried")


def parse(source: DataFrame) -> DataFrame:
    """Return typed, cleaned columns of each event, and ``tried``: what it was, and why it is malformed if it is.

    Trims codes and makes them upper-case; an empty tail number becomes null. Every number is optional except those that
    identify a flight, but a number that is present must be whole.
    """
    from pyspark.sql import functions as F

    names = ("time_hour", "tailnum", *_REQUIRED_TEXT, *_REQUIRED_NUMBERS, *_OPTIONAL_NUMBERS)
    # Reads every field as text: a wrong type then rejects the event with the field's name, not without a reason.
    schema = ", ".join(f"`{name}` string" for name in (*names, _BROKEN))
    event = F.from_json(
        F.col("value").cast("string"), schema, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _BROKEN}
    )
    raw = source.withColumn("event", event)

    def text(name: str) -> Column:
        return F.upper(F.trim(F.col(f"event.{name}")))

    def number(name: str) -> Column:
        return F.expr(f"try_cast(event.{name} AS int)")  # PySpark has Column.try_cast from 4.0 on

    hour = F.try_to_timestamp(F.col("event.time_hour"), F.lit("yyyy-MM-dd'T'HH:mm:ssX"))
    minute = F.make_dt_interval(mins=number("minute"))
    typed = raw.select(
        "*",
        *(text(name).alias(name) for name in _REQUIRED_TEXT),
        F.nullif(text("tailnum"), F.lit("")).alias("tailnum"),
        *(number(name).alias(name) for name in (*_REQUIRED_NUMBERS, *_OPTIONAL_NUMBERS)),
        (hour + minute).alias("scheduled"),
    )
    return attempt(typed, _reason()).drop("event")


def _reason() -> Column:
    from pyspark.sql import functions as F

    def absent(name: str) -> Column:
        return F.col(f"event.{name}").isNull()

    checks = [
        (F.col("value").isNull(), "no value"),
        (F.col(f"event.{_BROKEN}").isNotNull() | F.col("event").isNull(), "not a JSON object"),
        *((absent(name), f"{name} is missing") for name in ("time_hour", *_REQUIRED_TEXT, *_REQUIRED_NUMBERS)),
        *((~F.col(name).rlike(form), f"{name} is not a code") for name, form in _REQUIRED_TEXT.items()),
        *(
            (~absent(name) & F.col(name).isNull(), f"{name} is not a whole number")
            for name in (*_REQUIRED_NUMBERS, *_OPTIONAL_NUMBERS)
        ),
        (~F.col("minute").between(0, 59), "minute is not in 0..59"),
        (F.col("scheduled").isNull(), "time_hour is not a time like 2013-01-01T10:00:00Z"),
    ]
    return F.coalesce(*(F.when(condition, F.lit(reason)) for condition, reason in checks))


def _with_name(frame: DataFrame, names: DataFrame, code: str, column: str) -> DataFrame:
    from pyspark.sql import functions as F

    lookup = names.select(F.col("code").alias(code), F.col("name").alias(column))
    return frame.join(F.broadcast(lookup), on=code, how="left")


def _delay_json() -> Column:
    from pyspark.sql import functions as F

    status = (
        F.when(F.col("dep_time").isNull(), "cancelled")
        .when(F.col("arr_delay").isNull(), "diverted")
        .otherwise("arrived")
    )
    record = F.struct(
        "sequence",
        F.date_format("scheduled", "yyyy-MM-dd'T'HH:mm:ss'Z'").alias("scheduled_departure"),
        "carrier",
        "airline",
        "flight",
        "tailnum",
        "origin",
        "origin_name",
        "dest",
        "dest_name",
        status.alias("status"),
        F.col("dep_delay").alias("departure_delay_min"),
        F.col("arr_delay").alias("arrival_delay_min"),
        F.col("air_time").alias("air_time_min"),
        F.col("distance").alias("distance_miles"),
        F.struct("tried.partition", "tried.offset").alias("src"),
    )
    return F.to_json(record, {"ignoreNullFields": "false"})


def lookup(spark: SparkSession, names: dict[str, str]) -> DataFrame:
    """Make a relation of ``code`` and ``name`` inside the plan: no batch starts a Python worker to read it."""
    import pyarrow as pa

    table = pa.table({"code": list(names.keys()), "name": list(names.values())})
    if spark.version.startswith("3."):  # it takes no Arrow table, but makes one of a frame of pandas
        spark.conf.set("spark.sql.execution.arrow.pyspark.enabled", "true")
        return spark.createDataFrame(table.to_pandas())
    return spark.createDataFrame(table)
