"""The plan of a run's faults: drawn from a seed, or read from the history of an earlier run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

#: Between two faults, in seconds: some come while the stream still recovers from the one before, some do not.
GAPS_S = (0.5, 3.0, 8.0, 14.0)

#: How long a fault lasts, in seconds: below and above the time-outs of sessions, requests and transactions.
LASTS_S = (1.0, 3.0, 6.0, 10.0)

#: How many faults in ten wait for a named point of the protocol.
AT_POINTS = 4


@dataclass(frozen=True)
class Step:
    """One fault of a plan.

    Attributes
    ----------
    number : int
        Its place in the plan. With the seed it makes the fault's own random numbers.
    at_s : float
        When it is done, in seconds from the beginning of the faults; with ``point``, when the point is armed.
    fault : str
        Its name.
    lasts_s : float
        When it is undone, in seconds after it was done.
    point : str, optional
        Done when a process comes to this point (see :data:`exactly_once.failpoints.POINTS`).
    """

    number: int
    at_s: float
    fault: str
    lasts_s: float
    point: str | None = None


@dataclass(frozen=True)
class FaultPlan:
    """The faults of one run, in the order of their moments."""

    seed: int
    duration_s: float
    steps: tuple[Step, ...]

    def random(self, step: Step) -> Random:
        """Return the random numbers of one step: the same for the same seed, whatever else happens in the run."""
        return Random(f"{self.seed}/{step.number}/{step.fault}")


def make_plan(seed: int, duration_s: float, faults: Sequence[str], points: Sequence[str] = ()) -> FaultPlan:
    """Draw a plan.

    Parameters
    ----------
    seed : int
        The same seed and arguments give the same plan.
    duration_s : float
        No fault begins later.
    faults : sequence of str
        The names to draw from. One name twice is drawn twice as often.
    points : sequence of str, optional
        Points of the protocol to draw from.

    Returns
    -------
    FaultPlan

    Raises
    ------
    ValueError
        Without a fault to draw from.
    """
    if not faults:
        raise ValueError("a plan needs at least one fault")
    random, steps, at = Random(f"plan/{seed}"), list[Step](), 0.0
    while True:
        at = round(at + random.choice(GAPS_S) * random.uniform(0.5, 1.5), 2)
        if at > duration_s:
            return FaultPlan(seed, duration_s, tuple(steps))
        fault = random.choice(faults)
        lasts = round(random.choice(LASTS_S) * random.uniform(0.5, 1.5), 2)
        point = random.choice(points) if points and random.randrange(10) < AT_POINTS else None
        steps.append(Step(len(steps), at, fault, lasts, point))


def save_plan(plan: FaultPlan, settings: dict[str, Any], path: Path) -> None:
    """Write a plan, and the settings of its run, as JSON."""
    body = {"seed": plan.seed, "duration_s": plan.duration_s, "settings": settings}
    path.write_text(json.dumps({**body, "steps": [asdict(s) for s in plan.steps]}, indent=1) + "\n")


def load_plan(path: Path) -> tuple[FaultPlan, dict[str, Any]]:
    """Read what :func:`save_plan` wrote: the plan and the settings."""
    body = json.loads(path.read_text())
    return FaultPlan(body["seed"], body["duration_s"], tuple(Step(**s) for s in body["steps"])), body["settings"]
