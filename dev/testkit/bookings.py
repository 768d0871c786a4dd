"""A code location with one stream over two topics: ``python -m testkit.bookings JSON`` runs it until caught up,
``... JSON grown`` the stream that reads one topic, later two, and then the other; ``... JSON renewed`` its new version.

Each output record says which input record it was made from.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import dagster as dg
from pyspark.sql import DataFrame

from dagster_exactly_once import (
    Checks,
    KafkaTopic,
    Stream,
    StreamConfig,
    exactly_once_stream,
)
from dagster_exactly_once.declare.stream import Record
from testkit.location import config_of, folder, located, run_of

ORDERS, REFUNDS, BOOKINGS = "shop.orders", "shop.refunds", "bookings"


class BookingsConfig(StreamConfig):
    """The configuration of a run of ``bookings_stream``."""

    refunded: str = "-"


def origin(topic: str, record: Record) -> tuple[str, int, int]:
    """Return where the record says that it came from."""
    _, source, partition, offset = (record.value or b"").decode().split("/")
    return source, int(partition), int(offset)


@exactly_once_stream(
    source={"orders": ORDERS, "refunds": KafkaTopic(REFUNDS, start_from="latest")},
    outputs=[f"shop/{BOOKINGS}"],
    output_partitions=2,
    column_schema="booking STRING NOT NULL",
    checks=Checks(origin=origin),
)
def bookings(refunds: DataFrame, orders: DataFrame, config: BookingsConfig) -> DataFrame:
    """Orders and refunds, by customer."""
    place = "topic || '/' || partition || '/' || offset AS value"
    refunded = refunds.selectExpr("key", f"'{config.refunded}' || string(value) || '/' || {place}")
    return orders.selectExpr("key", f"'+' || string(value) || '/' || {place}").union(refunded)


#: The same stream before and after it got its second topic, and when it has dropped the first one; and a new version of
#: it, with a sink of its own.
GROWING: dict[str, Stream] = {
    "young": exactly_once_stream(
        name="growing", source={"a": "grow.a"}, outputs=["growing"], output_partitions=1, checks=None
    )(lambda a: a.select("key", "value")),
    "grown": exactly_once_stream(
        name="growing", source={"a": "grow.a", "b": "grow-b"}, outputs=["growing"], output_partitions=1, checks=None
    )(lambda a, b: a.select("key", "value").union(b.select("key", "value"))),
    "shrunk": exactly_once_stream(
        name="growing", source={"b": "grow-b"}, outputs=["growing"], output_partitions=1, checks=None
    )(lambda b: b.select("key", "value")),
    "renewed": exactly_once_stream(
        name="growing",
        source={"a": "grow.a"},
        outputs=["growing"],
        sink_id="growing-v2",
        continues="growing",
        checks=None,
    )(lambda a: a.selectExpr("key", "'new ' || string(value) AS value")),
}


def paid(sink_id: str, output: str, **more: str) -> Stream:
    """Return a stream whose records name their input."""
    declare = exactly_once_stream(
        name=sink_id.replace("-", "_"),
        source={"a": "pay.in"},
        outputs=[output],
        output_partitions=2,
        sink_id=sink_id,
        checks=Checks(origin=origin),
        **more,  # type: ignore[arg-type]
    )
    return declare(lambda a: a.selectExpr("key", "string(value) || '/pay.in/' || partition || '/' || offset AS value"))


#: A stream, a new version of it that reads along, and the same when it takes over.
PAID: dict[str, Stream] = {
    "blue": paid("paid", "paid"),
    "green": paid("paid-v2", "paid_shadow", beside="paid"),
    "over": paid("paid-v2", "paid", continues="paid"),
}


def definitions(below: Path, stream: Stream = bookings) -> dg.Definitions:
    """Return the code location, with its state below this folder."""
    return located(stream, *([PAID["blue"]] if stream.beside else []), at=below)


def reading_along() -> dg.Definitions:
    """Return the code location of a stream and of its new version."""
    return definitions(folder(), PAID["green"])


def renewed() -> dg.Definitions:
    """Return the code location of a new version that takes the stream's place."""
    return definitions(folder(), GROWING["renewed"])


if __name__ == "__main__":
    chosen = {**GROWING, **PAID}[sys.argv[2]] if sys.argv[2:] else bookings
    config = config_of(chosen, **{"mode": "caught_up", **json.loads(sys.argv[1])})
    sys.exit(run_of(definitions(folder(), chosen), chosen.spec.job, config, instance=dg.DagsterInstance.ephemeral()))
