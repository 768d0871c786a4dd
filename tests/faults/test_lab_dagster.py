"""Rounds of the fault lab under Dagster: its daemon, its code server and its runs die, and nobody else helps."""

from __future__ import annotations

from pathlib import Path

import pytest

from dagster_exactly_once.names import RECOVERY_JOB
from dagster_exactly_once.runs.tags import TAG_RESTART_OF
from faultlab.building import lab_of
from faultlab.dagster_system import DagsterSystem
from faultlab.lab import Lab
from faultlab.plan import FaultPlan, Step
from faultlab.rounds import check_too
from faultlab.settings import DAGSTER, Settings
from tests.faults.lab import Fault, run_clean, shown, struck

pytestmark = pytest.mark.long

#: Transactions outlive a restart, so a decided batch is completed by the recovery and not written again.
UNDER_DAGSTER = Settings(rate=100, timeout_ms=60_000, origin=True, operator=DAGSTER)

#: In turn, with the number of runs of the stream that they end.
IN_TURN: dict[str, tuple[int, list[Fault]]] = {
    "runs and a broker": (
        2,
        [
            ("kill-run-worker", 0.1, "all-prepared"),
            ("kill-broker", 3.0, "decided"),
            ("kill-driver", 0.1, "decided"),
        ],
    ),
    "the code server": (1, [("kill-code-server", 3.0, "decided"), ("kill-code-server", 3.0, None)]),
    "two runs at once": (1, [("second-driver", 45.0, "all-prepared"), ("pause-daemon", 5.0, None)]),
}


@pytest.mark.parametrize("what", IN_TURN)
def test_output_is_exactly_once_when_dagster_alone_recovers_the_stream(what: str, tmp_path: Path) -> None:
    """Guards against a sensor that starts a stream beside the parts of the one before, and against one that leaves it
    to a person.
    """
    ends, faults = IN_TURN[what]
    with lab_of(UNDER_DAGSTER, 1, tmp_path / "lab", shown) as lab:
        history = run_clean(lab, 1, faults)
        assert_dagster_alone(lab, ends)
    for fault in {name for name, _, _ in faults}:
        assert len(struck(history, fault)) == sum(name == fault for name, _, _ in faults), history


def test_a_daemon_that_dies_in_the_middle_of_a_recovery_finishes_it_when_it_is_back(tmp_path: Path) -> None:
    """The recovery has committed one part of a decided batch: a second one must commit the rest, and only the rest."""
    steps = (Step(0, 0.5, "kill-run-worker", 0.1, "decided"), Step(1, 4.0, "kill-daemon", 8.0, "some-ended"))
    with lab_of(UNDER_DAGSTER, 1, tmp_path / "lab", shown) as lab:
        verdict = lab.run(FaultPlan(1, 4.0, steps))
        print(verdict, check_too(verdict, lab, UNDER_DAGSTER))
        assert verdict.clean, lab.history.path.read_text()
        assert_dagster_alone(lab, 1)
    assert set(lab.history.done) == {"kill-run-worker", "kill-daemon"}


def assert_dagster_alone(lab: Lab, restarts: int) -> None:
    """Sensors launched every run of the stream but the first, each after a recovery that sensors launched too."""
    assert isinstance(lab.system, DagsterSystem)
    runs = lab.system.runs()
    first, *others = [run for run in runs if run.job_name == lab.system.spec.job]
    recoveries = [run for run in runs if run.job_name == RECOVERY_JOB]
    assert "dagster/sensor_name" not in first.tags
    # whichever sensor sees it first: that of the failure asks for both runs, and the new one waits for its recovery
    launched = [run.tags["dagster/sensor_name"] for run in others]
    assert len(launched) == restarts and set(launched) <= {"exactly_once_liveness", "exactly_once_run_failure"}
    by_sensors = {"exactly_once_run_failure", "exactly_once_checkpoint_progress", "exactly_once_stale_transactions"}
    assert {run.tags["dagster/sensor_name"] for run in recoveries} <= by_sensors
    recovered = {run.tags.get(TAG_RESTART_OF) for run in recoveries}
    earlier = [first, *others[:-1]]
    assert [run.tags[TAG_RESTART_OF] for run in others] == [run.run_id for run in earlier]
    assert {run.run_id for run in earlier} <= recovered
