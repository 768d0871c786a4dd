"""A code location with one stream into a topic and a table; ``python -m testkit.lake`` runs it
until it has caught up, ``... until_stopped`` until it is killed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import dagster as dg
from pyspark.sql import DataFrame

from dagster_exactly_once import Table, exactly_once_definitions, exactly_once_resources, exactly_once_stream

ORDERS, PAID = "lake.orders", "orders_paid"


def folder() -> Path:
    """Return the folder of the site."""
    return Path(os.environ["EXACTLY_ONCE_RUN_DIR"])


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
    """Return the code location; ``KAFKA_BOOTSTRAP_SERVERS`` names the brokers."""
    found = exactly_once_resources(work_dir=str(folder() / "spark"), checkpoints=str(folder() / "checkpoints"))
    return exactly_once_definitions(paid_orders, resources=found)


def main(mode: str = "caught_up") -> int:
    """Exit code 0 when the run succeeded; the failure's text is on standard error."""
    done = (
        definitions()
        .resolve_job_def(paid_orders.spec.job)
        .execute_in_process(
            run_config={"ops": {paid_orders.spec.op: {"config": {"mode": mode}}}},
            instance=dg.DagsterInstance.get(),
            raise_on_error=False,
        )
    )
    return 0 if done.success else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
