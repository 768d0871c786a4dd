"""A code location with one stream, which several locations of one instance load. Its tests start no run or broker."""

from dagster_exactly_once import Backfill, exactly_once_definitions, exactly_once_resources, exactly_once_stream


@exactly_once_stream(source="orders", outputs=["orders_paid"], backfill=Backfill.daily("2026-11-01"))
def paid_orders(events):
    """Orders, as they are."""
    return events.select("key", "value")


resources = exactly_once_resources(work_dir=".", checkpoints="/checkpoints", kafka={"bootstrap_servers": "127.0.0.1:1"})
defs = exactly_once_definitions(paid_orders, resources=resources)
