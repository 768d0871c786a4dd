"""Rounds of the fault lab in tests: faults in turn, each after the stream is past the one before, and both judges.

Faults in a list come at once, each at its own point: the second strikes the driver that comes after the first.
"""

from __future__ import annotations

import itertools
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


def one_after_another(lab: Lab, seed: int, faults: Sequence[Fault | list[Fault]]) -> LabVerdict:
    """Do these faults to a running stream, each when two batches have gone through since the one before, and judge."""
    lab.workload.start()
    lab.operator.start()
    try:
        lab.operator.await_running()
        lab.history.begin()
        number = itertools.count()
        for at_once in map(_listed, faults):
            _await_batches(lab)
            steps = (Step(next(number), 0.0, name, lasts_s, point) for name, lasts_s, point in at_once)
            Execution(lab, FaultPlan(seed, 0.0, tuple(steps))).run()
        _await_batches(lab)
    finally:
        lab.operator.stop()
    lab.rest()
    return lab.judged()


def run_clean(lab: Lab, seed: int, faults: Sequence[Fault | list[Fault]], settings: Settings | None = None) -> str:
    """Run :func:`one_after_another`; neither the lab nor the product's checker may find anything that the settings (by
    default: those of a round without any) rule out. Returns the history.
    """
    verdict = one_after_another(lab, seed, faults)
    checked = check_too(verdict, lab, settings or Settings())
    history = lab.history.path.read_text()
    print(verdict, checked)
    assert verdict.clean, f"{verdict}\n{history}"
    for name, _, point in itertools.chain.from_iterable(map(_listed, faults)):
        where = [target for target in struck(history, name) if point is None or target.endswith(f" at {point}")]
        assert where, f"{name} was not done at {point}\n{history}"
    return history


def _listed(fault: Fault | list[Fault]) -> list[Fault]:
    return fault if isinstance(fault, list) else [fault]


def shown(line: str) -> None:
    """Print a line: pytest shows the history of a run beside a failure."""
    print(line, flush=True)


def struck(history: str, fault: str) -> list[str]:
    """Return what a fault of this name struck, each time that it did."""
    lines = [line.split(maxsplit=4) for line in history.splitlines()]
    return [line[-1] for line in lines if line[2:4] == ["do", fault]]


def _await_batches(lab: Lab) -> None:
    system = lab.system

    def newest() -> tuple[str, int]:
        path = checkpoint_of(lab)
        return path, max(CheckpointFiles(path).batches("commits"), default=-1)

    def are_two_more() -> bool:
        path, now = newest()
        return now >= (last if path == checkpoint else -1) + 2  # a new checkpoint begins again

    def is_past() -> bool:
        return not isinstance(system, SparkSystem) or way_out.is_past(system)

    checkpoint, last = newest()
    until("two more batches", lambda: are_two_more() and is_past(), RECOVERY_S)
