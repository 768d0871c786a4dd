"""A code location for a cluster: a stream that Dagster runs, and one that the Spark operator runs and Dagster watches.

Where the brokers, Spark and the checkpoints are, the environment says: deploy/kubernetes/dagster-values.yaml.
"""

import os

from dagster_exactly_once import (
    exactly_once_definitions,
    exactly_once_resources,
    exactly_once_stream,
    observed_stream,
)


@exactly_once_stream(source="orders", outputs=["orders_paid"], output_partitions=4)
def paid_orders(events):
    """Paid orders, keyed by customer."""
    orders = events.selectExpr("value", "from_json(string(value), 'customer STRING, paid BOOLEAN') AS o")
    return orders.where("o.paid").selectExpr("o.customer AS key", "value")


clicks = observed_stream("clicks", source="clicks", outputs=["clicks_clean"], sink_id="clicks")

defs = exactly_once_definitions(
    paid_orders,
    clicks,
    resources=exactly_once_resources(work_dir="/tmp/spark", checkpoints=os.environ["EXACTLY_ONCE_CHECKPOINTS"]),
)
