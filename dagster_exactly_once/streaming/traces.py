"""The trace of an input record in its output record: what ``trace_headers=True`` of a declaration does."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def traced(records: DataFrame) -> DataFrame:
    """Give the records the trace of their input: that of the column ``tried``, or else what they have in ``headers``. A
    trace that the function has set stays.

    Raises
    ------
    InvalidSchema
        The records have neither column: the function has dropped the trace.
    """
    from pyspark.sql import functions as F

    import exactly_once
    from exactly_once.errors import InvalidSchema
    from exactly_once.protocol.row_schema import HEADERS
    from exactly_once.spark.split import TRIED
    from exactly_once.spark.traces import TRACEPARENT

    if TRIED in records.columns:
        none = F.array().cast(HEADERS)
        trace = F.coalesce(exactly_once.trace_headers(f"{TRIED}.headers"), none)
        if "headers" not in records.columns:
            return records.withColumn("headers", trace)
        own = F.coalesce("headers", none)
        has_one = F.exists(own, lambda header: header["key"] == TRACEPARENT)
        return records.withColumn("headers", F.when(has_one, own).otherwise(F.concat(own, trace)))
    if "headers" in records.columns:
        return records
    raise InvalidSchema(
        f"trace_headers=True, and the rows have no column 'headers' among {', '.join(records.columns)}",
        "Have the function select headers too, or exactly_once.trace_headers() for the trace alone; where a row is "
        "made of several records, leave trace_headers out",
    )
