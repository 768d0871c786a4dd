"""Rounds of the fault lab in tests: faults in turn, each after the stream is past the one before, and both judges."""

from __future__ import annotations

from collections.abc import Sequence

from faultlab import remedy as way_out
from faultlab.building import checkpoint_of
from faultlab.checkpoint_files import CheckpointFiles
from faultlab.judge import LabVerdict
from faultlab.lab import Execution, Lab
from faultlab.plan import FaultPlan, Step
from faultlab.rounds import check_too
from faultlab.settings import Settings
from faultlab.system import SparkSystem
from testkit.processes import until

#: Of a driver on a busy machine: its start, what the operator does before it, and a batch.
RECOVERY_S = 120.0

#: (fault, seconds that it lasts, point of the protocol or None)
Fault = tuple[str, float, str | None]


def in_turn(lab: Lab, seed: int, faults: Sequence[Fault]) -> LabVerdict:
    """Do these faults to a running stream, each when two batches have gone through since the one before, and judge."""
    lab.workload.start()
    lab.operator.start()
    try:
        lab.operator.await_running()
        lab.history.begin()
        for number, (name, lasts_s, point) in enumerate(faults):
            _await_batches(lab)
            Execution(lab, FaultPlan(seed, 0.0, (Step(number, 0.0, name, lasts_s, point),))).run()
        _await_batches(lab)
    finally:
        lab.operator.stop()
    lab.rest()
    return lab.judged()


def run_clean(lab: Lab, seed: int, faults: Sequence[Fault], settings: Settings | None = None) -> str:
    """Run :func:`in_turn`; neither the lab nor the product's checker may find anything that the settings (by
    default: those of a round without any) rule out. Returns the history.
    """
    verdict = in_turn(lab, seed, faults)
    checked = check_too(verdict, lab, settings or Settings())
    history = lab.history.path.read_text()
    print(verdict, checked)
    assert verdict.clean, f"{verdict}\n{history}"
    for name, _, point in faults:
        where = [target for target in struck(history, name) if point is None or target.endswith(f" at {point}")]
        assert where, f"{name} was not done at {point}\n{history}"
    return history


def shown(line: str) -> None:
    """Print a line: pytest shows the history of a run beside a failure."""
    print(line, flush=True)


def struck(history: str, fault: str) -> list[str]:
    """Return what a fault of this name struck, each time that it did."""
    lines = [line.split(maxsplit=4) for line in history.splitlines()]
    return [line[-1] for line in lines if line[2:4] == ["do", fault]]


def _await_batches(lab: Lab) -> None:
    system = lab.system
    files = CheckpointFiles(checkpoint_of(lab))

    def newest() -> int:
        return max(files.batches("commits"), default=-1)

    def is_past() -> bool:
        return not isinstance(system, SparkSystem) or way_out.is_past(system)

    before = newest()
    until("two more batches", lambda: newest() >= before + 2 and is_past(), RECOVERY_S)
