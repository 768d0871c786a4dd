"""The lab on the sinks of others: what docs/lab/faults.md compares ours with."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import flink_files
from exactly_once.sparkenv.jars import cache_folder
from faultlab.compare import FLINK, OURS, SPARKS, CompareSettings, run_one

pytestmark = pytest.mark.long

#: A driver that dies twice, and a broker that does not answer for a while.
SETTINGS = CompareSettings(seed=7, seconds=12.0, faults=("kill-driver", "pause-broker"))


def needs_flink() -> None:
    """Its 320 MB are fetched by ``make faults-compare`` and by the benchmarks, not by a test."""
    if not (cache_folder() / f"flink-{flink_files.FLINK}").is_dir():
        pytest.skip("Flink is not in the cache: make faults-compare fetches it")


@pytest.mark.parametrize("name", [OURS, SPARKS, FLINK])
def test_each_of_the_three_sinks_goes_through_the_same_faults_and_is_judged(name: str, tmp_path: Path) -> None:
    """A comparison that compares ours with a stream that never ran would make every other sink look bad, or good."""
    if name == FLINK:
        needs_flink()
    line = run_one(name, SETTINGS, tmp_path, print)
    assert not line.failed, line.failed
    assert line.records > 1_000 and sum(line.faults.values()) > 0 and line.starts > 0, line
    assert "lost" not in line.anomalies, line.examples
    if name != SPARKS:  # which is at-least-once
        assert not line.anomalies and line.open_transactions == 0, line
