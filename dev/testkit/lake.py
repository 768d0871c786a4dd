"""A code location with one stream into a topic and a table; ``python -m testkit.lake`` runs it
until it has caught up, ``... until_stopped`` until it is killed.
"""

from __future__ import annotations

import sys
from typing import Any

import dagster as dg
from pyspark.sql import DataFrame

from dagster_exactly_once import Table, exactly_once_stream
from testkit.location import config_of, folder, located, run_of

ORDERS, PAID = "lake.orders", "orders_paid"


def lake() -> Any:
    """Make the table's output."""
    from exactly_once.outputs.delta import DeltaParticipant

    return DeltaParticipant("lake", str(folder() / "lake"))


@exactly_once_stream(
    source=ORDERS,
    outputs=[PAID, Table("lake/orders", lake, column_lineage={"value": "order"})],
    output_partitions=2,
    checks=None,
    column_schema="order STRING NOT NULL",
    column_lineage={"order": "order"},
)
def paid_orders(events: DataFrame) -> DataFrame:
    """Paid orders."""
    return events.select("key", "value")


def definitions() -> dg.Definitions:
    """Return the code location."""
    return located(paid_orders)


if __name__ == "__main__":
    mode = sys.argv[1] if sys.argv[1:] else "caught_up"
    sys.exit(run_of(definitions(), paid_orders.spec.job, config_of(paid_orders, mode=mode)))
