"""A code location with two streams that reject records, one of which makes dead letters too; ``python -m testkit.shop
JOB`` runs one of its jobs.
"""

from __future__ import annotations

import sys

import dagster as dg
from pyspark.sql import DataFrame

from dagster_exactly_once import (
    Checks,
    DeadLetters,
    Rejected,
    exactly_once_stream,
)
from testkit import poison
from testkit.location import located, run_of

ORDERS, PRICED, REJECTED = "shop.orders", "orders_priced", "orders_rejected"
LABELS, LABELLED, UNREADABLE, DEAD = "shop.labels", "labels_printed", "labels_unreadable", "labels_dead"

#: The time of a long label, and no other one chooses its own.
PRINTED_MS = 1_600_000_000_000

#: What no repair can help.
HOPELESS = b"hopeless"


def corrected(value: bytes | None) -> bytes | None:
    """Return the order with its amount; None for what is no order at all. Raise for what nobody has seen yet."""
    if value == HOPELESS:
        return None
    if value == b"unrepairable":
        raise ValueError("beyond repair")
    return (value or b"").replace(b"amuont", b"amount")


@exactly_once_stream(
    source=ORDERS,
    outputs=PRICED,
    column_schema="to_pay DOUBLE",
    column_lineage={"to_pay": ["amount"]},
    rejected=Rejected(REJECTED, warn_above=0, error_above=3, repair=corrected),
    output_partitions=1,
    trace_headers=True,
)
def price_orders(events: DataFrame) -> DataFrame:
    """Orders with their tax."""
    return poison.taxed(events)


def label(value: bytes | None) -> str:
    """Return the label; a long one is larger than any topic takes by default. Raise for what is none."""
    text = (value or b"").decode()
    if text.startswith("bad"):
        raise ValueError("no label")
    return text * 400_000 if text.startswith("long") else text


def shortened(value: bytes | None) -> bytes | None:
    """Return the beginning of a label."""
    return value and value[:12]


@exactly_once_stream(
    source=LABELS,
    outputs=LABELLED,
    rejected=UNREADABLE,
    dead_letters=DeadLetters(DEAD, repair=shortened),
    checks=Checks(origin="header:src"),
    output_partitions=1,
)
def label_orders(events: DataFrame) -> DataFrame:
    """Labels; those that are astray are for a topic that does not exist."""
    from pyspark.sql import functions as F

    import exactly_once

    rows = exactly_once.attempt(events, label)
    source = F.concat_ws("-", "tried.topic", "tried.partition", "tried.offset").cast("binary")
    origin = F.array(F.struct(F.lit("src").alias("key"), source.alias("value")))
    long = F.col("value").startswith("long")
    place = {
        "topic": F.when(F.col("value").startswith("astray"), "labels_nowhere").otherwise(LABELLED),
        "partition": F.when(long, 0),
        "timestamp": F.when(long, F.timestamp_millis(F.lit(PRINTED_MS))),
        "headers": F.concat("tried.headers", origin),
    }
    return rows.select("tried", "key", "value", *(column.alias(name) for name, column in place.items()))


def definitions() -> dg.Definitions:
    """Return the code location."""
    return located(price_orders, label_orders)


if __name__ == "__main__":
    sys.exit(run_of(definitions(), *sys.argv[1:]))
