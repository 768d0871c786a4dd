"""Tables of Delta Lake and Iceberg beside the topic, in the fault lab: the driver dies at every point of a batch, while
another process writes to the same tables and maintains them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("deltalake", reason="needs the extra delta")
pytest.importorskip("pyiceberg", reason="needs the extra iceberg")

from exactly_once import failpoints
from faultlab import lab as labs
from faultlab.building import lab_of
from faultlab.outputs import POINTS, TABLE_POINTS
from faultlab.settings import Settings
from tests.faults.lab import Fault, run_clean, shown, struck

#: In the order of a batch.
UNDECIDED = (
    *("before-begin", "mid-write", "some-sent", "after-flush"),
    *(f"pre-commit-{output}" for output in ("kafka", "archive", "warehouse", "lake", "ice")),
    "all-prepared",
)
DECIDED = (
    *("decided", "commit-kafka", "some-ended", "commit-archive", "files-gathered", "commit-warehouse"),
    *(f"{step}-{table}" for table in ("lake", "ice") for step in ("commit", "table-commit", "table-committed")),
    *("all-ended", "marking", "completed"),
)
#: The driver dies, and its successor dies too, while it finishes what the first one left.
TWICE = (
    ("decided", "claimed"),
    ("table-commit-lake", "table-committed-lake"),
    ("table-commit-ice", "table-committed-ice"),
)

#: Those of the format alone, whose tasks are the JVM's, of commands, and of nobody's batch.
OTHERS = {"planning", "planned", "aborting", "repair-kept", "repair-changed", "retiring", "retired"}

#: A successor comes to its first point after its start, on a busy machine.
SUCCESSOR_S = 90.0


def kills(*points: str) -> list[Fault]:
    return [("kill-driver", 1.0, point) for point in points]


def test_every_point_of_a_batch_with_tables_is_in_one_of_the_rounds() -> None:
    """Guards against a point that somebody adds, and at which no driver ever dies."""
    points = {*UNDECIDED, *DECIDED, *(point for two in TWICE for point in two)}
    assert points == {*failpoints.POINTS, *POINTS, *TABLE_POINTS} - OTHERS


@pytest.mark.long
@pytest.mark.parametrize(
    ("seed", "faults"),
    [(1, kills(*UNDECIDED)), (2, kills(*DECIDED)), (3, [kills(*two) for two in TWICE])],
    ids=["before-the-decision", "after-the-decision", "two-drivers"],
)
def test_topic_and_tables_have_each_record_once_wherever_the_driver_dies(
    seed: int, faults: Sequence[Fault | list[Fault]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against a batch that one output has and another has not, against one that a table has twice, and against
    a commit over what another writer or a compaction did: its rows or ours would be gone, or there twice.
    """
    monkeypatch.setattr(labs, "POINT_S", SUCCESSOR_S)
    settings = Settings(rate=100, timeout_ms=60_000, outputs=True, tables=True)
    with lab_of(settings, seed, tmp_path / "lab", shown) as lab:
        history = run_clean(lab, seed, faults)
        assert lab.outputs is not None and lab.outputs.tables is not None
        for table in lab.outputs.tables.both:
            done = [step for step, _ in lab.outputs.tables.steps(table.name)]
            assert done.count("appended") > 20 and done.count("maintained") > 3, lab.outputs.tables
    assert len(struck(history, "kill-driver")) == sum(1 if isinstance(one, tuple) else len(one) for one in faults)
