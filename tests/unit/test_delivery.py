"""The weaker guarantees, without a broker."""

from __future__ import annotations

import pytest

from exactly_once.coordinator.driver_state import DriverState, MemoryStore
from exactly_once.coordinator.weaker import DeliveryCommitter
from exactly_once.errors import UnsupportedMode


def test_a_batch_whose_tasks_have_no_results_is_not_committed() -> None:
    """In continuous mode Spark commits batches whose tasks never ran through this sink: their rows would be skipped."""
    store = MemoryStore(DriverState(0, "query", 5, 60_000, 0, execution="now", finished=False))
    with pytest.raises(UnsupportedMode, match="continuous mode"):
        DeliveryCommitter(store).commit([None, None], 3)
    assert store.state is not None and not store.state.finished


def test_a_batch_without_partitions_is_committed() -> None:
    """An empty DataFrame has no tasks, and nothing to skip."""
    store = MemoryStore(DriverState(0, "query", 5, 60_000, 0, execution="now", finished=False))
    DeliveryCommitter(store).commit([], 3)
    assert store.state is not None and store.state.finished
