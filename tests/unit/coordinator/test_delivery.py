"""The weaker guarantees, without a broker."""

from __future__ import annotations

import pytest

from exactly_once.coordinator.driver_state import DriverState
from exactly_once.coordinator.without_transactions import DeliveryCoordinator
from exactly_once.errors import UnsupportedMode
from exactly_once.options import SinkOptions
from exactly_once.protocol.planning import Batch


def planned() -> DeliveryCoordinator:
    """A coordinator that has planned batch 3."""
    options = {"sink.id": "s", "checkpointLocation": "/c", "kafka.bootstrap.servers": "127.0.0.1:1"}
    coordinator = DeliveryCoordinator(SinkOptions.parse({**options, "sink.guarantee": "at_least_once"}))
    coordinator._state = DriverState(0, Batch("query", 3, ""), 5, 60_000, 0, execution="now", finished=False)
    return coordinator


def test_a_batch_whose_tasks_have_no_results_is_not_committed() -> None:
    """In continuous mode Spark commits batches whose tasks never ran through this sink: their rows would be skipped."""
    with pytest.raises(UnsupportedMode, match="continuous mode"):
        planned().commit([None, None], 3)


def test_a_batch_without_partitions_is_committed() -> None:
    """An empty DataFrame has no tasks, and nothing to skip."""
    planned().commit([], 3)
