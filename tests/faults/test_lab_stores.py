"""PostgreSQL killed, paused and failed over between prepare and commit, in the fault lab."""

from __future__ import annotations

from pathlib import Path

import pytest

from faultlab.building import lab_of
from faultlab.settings import Settings
from tests.faults.lab import Fault, run_clean, shown, struck

ROUNDS: dict[str, list[Fault]] = {
    "kill-postgres": [
        ("kill-postgres", 1.0, "pre-commit-warehouse"),
        ("kill-postgres", 3.0, "decided"),
        ("kill-postgres", 1.0, "commit-warehouse"),
    ],
    "pause-postgres": [("pause-postgres", 4.0, "pre-commit-warehouse"), ("pause-postgres", 4.0, "decided")],
    "failover-postgres": [("failover-postgres", 1.0, "all-prepared"), ("failover-postgres", 1.0, "decided")],
}


@pytest.mark.long
@pytest.mark.parametrize("fault", ROUNDS)
def test_topic_files_and_table_have_each_record_once_whatever_the_database_does(fault: str, tmp_path: Path) -> None:
    """Guards against a batch that one output has and another has not, and against rows that stay prepared for ever."""
    with lab_of(Settings(rate=100, timeout_ms=60_000, outputs=True), 1, tmp_path / "lab", shown) as lab:
        history = run_clean(lab, 1, ROUNDS[fault])
    assert len(struck(history, fault)) == len(ROUNDS[fault]), history
    prepared = [int(target.split()[2]) for target in struck(history, fault) if " at pre-commit" not in target]
    assert all(prepared), f"struck between prepare and commit\n{history}"
