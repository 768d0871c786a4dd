"""Read from a record of the outputs itself where it came from."""

from __future__ import annotations

from dagster_exactly_once.declare.origin import Record
from platform_assets.constants import FLIGHT_DELAYS_REJECTED
from platform_assets.report.reconcile import split


def origin(topic: str, record: Record) -> tuple[int, int] | None:
    """Return partition and offset in ``flights`` of the event that ``record`` was made from; None without them."""
    try:
        if topic == FLIGHT_DELAYS_REJECTED:
            headers = dict(record.headers)
            return int(headers["source.partition"]), int(headers["source.offset"])
        _, source = split((record.value or b"").decode())
        return int(source["partition"]), int(source["offset"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
