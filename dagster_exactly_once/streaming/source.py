"""The input in Spark: as a bounded table, and its offsets by time."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from dagster_exactly_once.resources.spark import kafka_source_options
from dagster_exactly_once.streaming.spans import OffsetSpan, Spans, from_start, worth_reading
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: For each query of the brokers.
READ_BUDGET_S = 20.0

#: If records carry the time of writing, the first few offsets hold the one to find; otherwise each further query goes
#: ten times as far.
FIRST_OFFSETS = 100_000


def read_input(
    spark: SparkSession, connection: Connection, topic: str, spans: Spans, with_headers: bool = False
) -> DataFrame:
    """Read the committed records of ``topic`` in ``spans``, which name every partition of it."""
    options = kafka_source_options(connection, topic) | {
        "startingOffsets": offsets_json(topic, {p: span.start for p, span in spans.items()}),
        "endingOffsets": offsets_json(topic, {p: span.end for p, span in spans.items()}),
        "includeHeaders": str(with_headers).lower(),
    }
    return spark.read.format("kafka").options(**options).load()


def source_name(topic: str) -> str:
    """Return the name of a topic's source: Spark takes letters, digits and underscores."""
    return re.sub("[^A-Za-z0-9_]", "_", topic)


def offsets_json(topic: str, offsets: Mapping[int, int]) -> str:
    """Format offsets of ``topic`` for Spark's options."""
    return json.dumps({topic: {str(p): offset for p, offset in sorted(offsets.items())}})


def first_since(spark: SparkSession, connection: Connection, topic: str, timestamp_ms: int) -> dict[int, int]:
    """Find, by partition, the first committed record of ``topic`` with a time stamp at or after ``timestamp_ms``;
    without one, the current end of the committed records.

    Spark's own option ``startingTimestamp`` stops at transaction markers too. Markers carry the time of writing, so
    with old event times it would begin at the very first marker.
    """
    from pyspark.sql import functions as F

    with Admin(connection, READ_BUDGET_S) as admin:
        marks = admin.watermarks(topic)
        since = admin.offsets_since(topic, timestamp_ms)
    rest: Spans = worth_reading({p: OffsetSpan(w.low, w.last_stable) for p, w in marks.items()}, since)
    ends, found, step = {p: span.end for p, span in rest.items()}, dict[int, int](), FIRST_OFFSETS
    while not all(span.empty for span in rest.values()):
        asked = from_start(rest, step)
        later = read_input(spark, connection, topic, asked).where(F.unix_millis("timestamp") >= timestamp_ms)
        found |= {
            r.partition: r["first"] for r in later.groupBy("partition").agg(F.min("offset").alias("first")).collect()
        }
        rest = {p: OffsetSpan(ends[p] if p in found else asked[p].end, ends[p]) for p in rest}
        step *= 10
    return {p: found.get(p, end) for p, end in ends.items()}
