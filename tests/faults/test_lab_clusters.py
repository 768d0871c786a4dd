"""A whole Spark worker killed at each point of the protocol, in the fault lab."""

from __future__ import annotations

from pathlib import Path

import pytest

from faultlab.building import lab_of
from faultlab.settings import Settings
from tests.faults.lab import run_clean, shown, struck

#: On the executors, then on the driver.
POINTS = {
    "executors": ("before-begin", "mid-write", "some-sent", "after-flush"),
    "driver": ("all-prepared", "decided", "some-ended", "all-ended", "completed"),
}


@pytest.mark.long
@pytest.mark.parametrize("where", POINTS)
def test_output_is_exactly_once_when_a_spark_worker_goes_at_any_point(where: str, tmp_path: Path) -> None:
    """Guards against a task that another executor runs again beside what the first one has prepared: a part written
    twice, or a transaction that nobody ends.
    """
    faults = [("kill-spark-worker", 1.0, point) for point in POINTS[where]]
    with lab_of(Settings(rate=100, timeout_ms=60_000, executors=True), 1, tmp_path / "lab", shown) as lab:
        history = run_clean(lab, 1, faults)
    assert len(struck(history, "kill-spark-worker")) == len(faults), history
