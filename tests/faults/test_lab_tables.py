"""Tables of Delta Lake and Iceberg beside the topic, in the fault lab: the driver dies at every point of a batch, while
another process writes to the same tables and maintains them.
"""

from __future__ import annotations

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

#: The points at which a driver dies, in the order of a batch; of two at once, the second one kills its successor, which
#: finishes what the first one left.
ROUNDS: dict[str, list[tuple[str, ...]]] = {
    "written": [("before-begin",), ("mid-write",), ("some-sent",), ("after-flush",)],
    "prepared": [
        *((f"pre-commit-{output}",) for output in ("kafka", "archive", "warehouse", "lake", "ice")),
        *(("all-prepared",), ("confirmed",)),
    ],
    "decided": [
        *(("decided",), ("commit-kafka",), ("some-ended",)),
        *(("commit-archive",), ("files-gathered",), ("commit-warehouse",)),
    ],
    "tables": [
        *((f"{step}-lake",) for step in ("commit", "table-commit", "table-committed")),
        *((f"{step}-ice",) for step in ("commit", "table-commit", "table-committed")),
    ],
    "completed": [("all-ended",), ("marking",), ("completed",)],
    "two-drivers": [
        ("decided", "claimed"),
        ("table-commit-lake", "table-committed-lake"),
        ("table-commit-ice", "table-committed-ice"),
    ],
}  # fmt: skip

#: Those of the format alone, whose tasks are the JVM's, and of commands.
OTHERS = {"planning", "planned", "aborting", "repair-kept", "repair-changed", "retiring", "retired"}

#: A successor comes to its first point after its start, on a busy machine.
SUCCESSOR_S = 90.0


def test_every_point_of_a_batch_with_tables_is_in_one_of_the_rounds() -> None:
    """Guards against a point that somebody adds, and at which no driver ever dies."""
    points = {point for round_ in ROUNDS.values() for at_once in round_ for point in at_once}
    assert points == {*failpoints.POINTS, *POINTS, *TABLE_POINTS} - OTHERS


@pytest.mark.long
@pytest.mark.parametrize(("seed", "name"), list(enumerate(ROUNDS, start=1)), ids=list(ROUNDS))
def test_topic_and_tables_have_each_record_once_wherever_the_driver_dies(
    seed: int, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against a batch that one output has and another has not, against one that a table has twice, and against
    a commit over what another writer or a compaction did: its rows or ours would be gone, or there twice.
    """
    monkeypatch.setattr(labs, "POINT_S", SUCCESSOR_S)
    faults: list[list[Fault]] = [[("kill-driver", 1.0, point) for point in at_once] for at_once in ROUNDS[name]]
    settings = Settings(rate=100, timeout_ms=60_000, outputs=True, tables=True)
    with lab_of(settings, seed, tmp_path / "lab", shown) as lab:
        history = run_clean(lab, seed, faults)
        assert lab.outputs is not None and lab.outputs.tables is not None
        for table in lab.outputs.tables.both:
            done = [step for step, _ in lab.outputs.tables.steps(table.name)]
            assert done.count("appended") > 10 and done.count("maintained") > 1, str(lab.outputs.tables)
    assert len(struck(history, "kill-driver")) == sum(map(len, faults)), history
