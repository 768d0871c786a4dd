"""Find out whether a query keeps state between its batches.

The file manager for local disks is not for such a query.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dagster_exactly_once.resources.spark import FILE_MANAGER
from exactly_once.spark.session import file_manager

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Spark's default.
SAFE_FILE_MANAGER = file_manager("FileContextBased")

#: Operators that remember rows of earlier batches; the others that do have "State" in their name.
_REMEMBERING = frozenset(
    {"Aggregate", "Deduplicate", "DeduplicateWithinWatermark", "Distinct", "GlobalLimit", "LocalLimit"}
)

#: Operators that do so when both inputs are streams.
_JOINING = frozenset({"Join", "Intersect", "Except"})


def protect_state(spark: SparkSession, records: DataFrame) -> None:
    """Give the queries that ``spark`` starts from now on Spark's own file manager, if ``records`` need state.

    The file manager for local disks does not replace a file of state. When Spark plans a batch again with another
    input, as after a loss of power, it would keep the state of the first plan, and lose records or write them twice.
    """
    if keeps_state(records):
        spark.conf.set(FILE_MANAGER, SAFE_FILE_MANAGER)


def keeps_state(records: DataFrame) -> bool:
    """Return whether a streaming query that makes ``records`` keeps state between its batches."""
    return any(_remembers(node) for node in _nodes(records._jdf.queryExecution().analyzed()))


def _remembers(node: Any) -> bool:
    name = node.nodeName()
    if name in _JOINING:
        return all(child.isStreaming() for child in _children(node))
    return node.isStreaming() and (name in _REMEMBERING or "State" in name)


def _nodes(node: Any) -> Iterator[Any]:
    yield node
    for child in _children(node):
        yield from _nodes(child)


def _children(node: Any) -> list[Any]:
    found = node.children()
    return [found.apply(n) for n in range(found.size())]
