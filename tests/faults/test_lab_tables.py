"""Tables of Delta Lake and Iceberg beside the topic, in the fault lab: the driver dies around each of their commits."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("deltalake", reason="needs the extra delta")
pytest.importorskip("pyiceberg", reason="needs the extra iceberg")

from faultlab.building import lab_of
from faultlab.outputs import TABLE_POINTS
from faultlab.settings import Settings
from tests.faults.lab import Fault, run_clean, shown, struck

FAULTS: list[Fault] = [("kill-driver", 1.0, point) for point in TABLE_POINTS]


@pytest.mark.long
def test_topic_and_tables_have_each_record_once_wherever_the_driver_dies(tmp_path: Path) -> None:
    """Guards against a batch that one output has and another has not, and against one that a table has twice."""
    settings = Settings(rate=100, timeout_ms=60_000, outputs=True, tables=True)
    with lab_of(settings, 1, tmp_path / "lab", shown) as lab:
        history = run_clean(lab, 1, FAULTS)
    assert len(struck(history, "kill-driver")) == len(FAULTS), history
