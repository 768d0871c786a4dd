"""The trace of an input record, as a column of the output: the W3C headers ``traceparent`` and ``tracestate``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column

#: https://www.w3.org/TR/trace-context/
TRACEPARENT = "traceparent"
_NAMES = (TRACEPARENT, "tracestate")


def trace_headers(column: str | Column) -> Column:
    """Keep these headers of ``column``, in their order; null stays null."""
    return F.filter(column, lambda header: header["key"].isin(*_NAMES)).alias("headers")
