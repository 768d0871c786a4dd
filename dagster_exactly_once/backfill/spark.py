"""The writes beside a stream, in Spark: the records of a day, and rejected records or dead letters again.

It imports pyspark, and only a run imports it: loading the code location starts no Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

import exactly_once
from dagster_exactly_once.backfill.days import DAY_MS, Day, DayRecords, start_ms
from dagster_exactly_once.declare.rejected import Repair
from dagster_exactly_once.streaming.source import OffsetSpan, Spans, read_input
from dagster_exactly_once.tables import next_day
from exactly_once import error_headers
from exactly_once.errors import TransformFailed
from exactly_once.kafka.admin import Watermarks
from exactly_once.kafka.connection import Connection
from exactly_once.protocol.row_schema import SCHEMA_IDS

if TYPE_CHECKING:
    from dagster_exactly_once.streaming.ranges import RejectedSpan


def find_days(
    spark: SparkSession, connection: Connection, topic: str, days: Sequence[str], spans: Spans
) -> list[DayRecords]:
    """Find the records of ``days`` in ``spans``: one pass over the input, whatever the number of days."""
    between = _between(read_input(spark, connection, topic, spans), days[0], days[-1])
    rows = (
        between.groupBy(F.expr(f"unix_millis(timestamp) div {DAY_MS}").alias("day"), "partition")
        .agg(F.min("offset").alias("first"), F.max("offset").alias("last"), F.count("*").alias("records"))
        .collect()
    )
    wanted = {start_ms(day) // DAY_MS: day for day in days}
    return [DayRecords(wanted[r.day], r.partition, r["first"], r["last"], r.records) for r in rows if r.day in wanted]


def records_of(spark: SparkSession, connection: Connection, topic: str, day: Day, with_headers: bool) -> DataFrame:
    """Read the input's records of ``day``."""
    return _between(read_input(spark, connection, topic, day.spans, with_headers), day.key, day.key)


class Kept(NamedTuple):
    """Dead letters with nothing between them that can be sent."""

    span: OffsetSpan
    records: int


def kept_in(rows: DataFrame, repairs: bool) -> list[Kept]:
    """Find the dead letters among ``rows``, of one partition, that cannot be sent: those with JSON in place of a value
    that their schema takes, unless the stream ``repairs`` values, and those with JSON in place of a key.
    """
    json = _json(F.col("headers"))
    order = Window.partitionBy("partition").orderBy("offset")
    runs = (
        rows.select("partition", "offset", (json.contains("key") if repairs else json != "").alias("kept"))
        .withColumn("turns", F.col("kept") != F.coalesce(F.lag("kept").over(order), ~F.col("kept")))
        .withColumn("run", F.sum(F.col("turns").cast("int")).over(order))
        .where("kept")
        .groupBy("run")
        .agg(F.min("offset").alias("first"), F.max("offset").alias("last"), F.count("*").alias("records"))
        .orderBy("run")
    )
    return [Kept(OffsetSpan(run["first"], run["last"] + 1), run["records"]) for run in runs.collect()]


def to_send(
    rows: DataFrame, to: str, sources: Sequence[str], replaces: bool, repair: Repair | None, encodes: bool
) -> DataFrame:
    """Make rows of the sink from rejected records or dead letters, with their own headers, as they are.

    They go ``to`` a topic; empty: to the one of ``sources`` that they came from, and to the same partition. Dead
    letters have no ``sources``: they go to the output, the partition and the time that each of their rows was for.

    ``replaces`` adds the header that names the dead letter: ``exactly-once verify --origin`` counts the record in its
    place. ``repair`` makes the new value; without one the value stays. Where the stream ``encodes`` values, JSON in
    place of one must not stay JSON.
    """
    # without a function every row is good; with one, an exception ends the write: nothing is half sent
    if repair is None:
        rows = exactly_once.attempt(rows, F.lit(None))
    else:
        is_json = _json(F.col("headers")).contains("value") if encodes else F.lit(False)
        rows = exactly_once.attempt(rows, encoded(repair), "value", is_json, catch=())
        rows = rows.where(F.col("value").isNotNull())

    own, said = _parted(F.col("tried.headers"))
    place = _place_of_rejected(said, to, sources) if sources else _place_of_row(said, to)
    own = _without_schema_ids(own, said)
    headers = _replacing(own) if replaces else own
    return rows.select(*place, "key", "value", headers.alias("headers"))


def encoded(repair: Repair) -> Callable[[bytes | None, bool], str | bytes | None]:
    """Return ``repair`` for values of which some are JSON, and must get the form and the schema id of the others.

    Cloudpickle sends it to executors by value: it may use nothing of this module, which they need not have.
    """
    wrong = str(
        TransformFailed(
            "repair returned a value without a schema id for a row that did not fit its schema",
            "Let repair return what the topic's readers take: schema id and encoded value, as a serializer of "
            "confluent_kafka makes them",
            "Nothing of this range was sent",
        )
    )

    def repaired(value: bytes | None, is_json: bool) -> str | bytes | None:
        made = repair(value)
        if is_json and made is not None and (isinstance(made, str) or bytes(made[:1]) != b"\0"):
            raise ValueError(wrong)
        return made

    return repaired


def rejected_rows(
    spark: SparkSession, connection: Connection, topic: str, piece: RejectedSpan, marks: Mapping[int, Watermarks]
) -> DataFrame:
    """Read the records of ``piece``; ``marks`` are the ends of their topic."""
    spans = {p: OffsetSpan(mark.last_stable, mark.last_stable) for p, mark in marks.items()}
    spans[piece.partition] = piece.span
    return read_input(spark, connection, topic, spans, with_headers=True)


def _json(headers: Column) -> Column:
    """Return which of key and value of a dead letter are JSON; "" for none."""
    return F.coalesce(_said(_parted(headers)[1], error_headers.JSON), F.lit(""))


def _parted(headers: Column) -> tuple[Column, Column]:
    """Part the headers of a dead letter: those of its record, and the sink's, which begin with the last code."""
    names = F.reverse(F.transform(headers, lambda pair: pair["key"]))
    behind = F.array_position(names, error_headers.CODE).cast("int")
    own = F.size(headers) - behind
    return F.slice(headers, F.lit(1), own), F.slice(headers, own + 1, behind)


def _without_schema_ids(own: Column, said: Column) -> Column:
    """Return a dead letter's headers without the one for which its row was refused: it has the sink's own schema id."""
    message = F.coalesce(_said(said, error_headers.MESSAGE), F.lit(""))
    ids = list(SCHEMA_IDS.values())
    return F.filter(own, lambda header: ~(header["key"].isin(ids) & message.contains(header["key"])))


def _replacing(own: Column) -> Column:
    """Return the headers with that of the dead letter; an earlier one of the same row was replaced by this one."""
    place = F.concat_ws("-", "tried.topic", "tried.partition", "tried.offset").cast("binary")
    pair = F.struct(F.lit(error_headers.RESENT).alias("key"), place.alias("value"))
    return F.concat(F.filter(own, lambda header: header["key"] != error_headers.RESENT), F.array(pair))


def _said(headers: Column, name: str) -> Column:
    return F.get(F.filter(headers, lambda pair: pair["key"] == name), F.lit(0))["value"].cast("string")


def _place_of_rejected(said: Column, to: str, sources: Sequence[str]) -> list[Column]:
    origin = _said(said, error_headers.TOPIC)
    target = F.lit(to or sources[0]) if to or len(sources) == 1 else F.when(origin.isin(list(sources)), origin)
    partition = F.when(origin == target, _said(said, error_headers.PARTITION).cast("int"))
    return [target.alias("topic"), partition.alias("partition")]


def _place_of_row(said: Column, to: str) -> list[Column]:
    meant = _said(said, error_headers.OUTPUT_TOPIC)
    target = F.lit(to) if to else meant
    partition = F.when(meant == target, _said(said, error_headers.OUTPUT_PARTITION).cast("int"))
    time = F.timestamp_millis(_said(said, error_headers.OUTPUT_TIMESTAMP).cast("long"))
    return [target.alias("topic"), partition.alias("partition"), time.alias("timestamp")]


def _between(source: DataFrame, first: str, last: str) -> DataFrame:
    """Return the records of the days from ``first`` to ``last``, both included."""
    stamp = F.unix_millis("timestamp")
    return source.where((stamp >= start_ms(first)) & (stamp < start_ms(next_day(last))))
