"""The fault lab itself: each kind of fault once on a real stream, then rounds of fixed seeds for every setting.

A seed that failed once comes here with its settings, see docs/faults.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from faultlab.faults import FAULTS
from faultlab.faults.brokers import BROKERS
from faultlab.faults.network import NETWORK
from faultlab.faults.processes import PROCESSES
from faultlab.plan import FaultPlan, Step
from faultlab.rounds import Round, replay, run_round
from faultlab.settings import Settings

#: Transactions outlive every fault here: what must come back comes back within seconds.
QUICK = Settings(timeout_ms=15_000, origin=True)

#: (seconds after the one before, fault, seconds that it lasts, point). With the drivers that are killed last: until one
#: runs again, there is no process that anything else could strike.
ONE_DRIVER = (
    (0.2, "net-delay", 1.0, None),
    (1.0, "pause-python", 0.5, "some-sent"),
    (1.0, "net-repeat", 1.0, None),
    (1.0, "pause-python", 1.0, "all-prepared"),
    (1.0, "net-cut", 0.5, "decided"),
    (1.0, "net-tear", 0.5, None),
    (0.5, "kill-writer", 0.5, None),
    (0.5, "net-reset", 0.1, None),
    (0.5, "net-swallow", 1.0, None),
    (1.5, "net-hold", 1.0, None),
    (1.5, "pause-broker", 1.0, None),
    (1.5, "kill-broker", 0.5, None),
    (5.0, "kill-driver", 0.1, "all-prepared"),
)  # fmt: skip
#: With this seed, what is cut, torn and swallowed is EndTxn and its answers.
ON_ENDS = 587

SEVERAL_DRIVERS = (
    (0.5, "pause-driver", 1.0, "some-ended"),
    (2.0, "second-driver", 8.0, None),
    (20.0, "kill-jvm", 0.1, "mid-write"),
    (5.0, "stop-broker", 2.0, "all-prepared"),
    (8.0, "kill-python", 0.1, "decided"),
)  # fmt: skip
THREE_BROKERS = (
    (0.5, "move-leaders", 0.1, None),
    (1.0, "net-between", 2.0, None),
    (4.0, "roll-brokers", 20.0, None),
    (22.0, "lose-broker", 0.1, "decided"),
)  # fmt: skip
EXECUTORS = (
    (0.5, "pause-executor", 3.0, "all-prepared"),
    (4.0, "kill-executor", 0.1, "some-sent"),
    (5.0, "kill-executor", 0.1, "mid-write"),
    (5.0, "kill-executor", 0.1, "after-flush"),
    (5.0, "pause-executor", 3.0, "some-sent"),
    (5.0, "net-cut", 1.0, "some-sent"),
    (4.0, "net-swallow", 2.0, None),
)  # fmt: skip
#: With this seed, the answers to Produce are cut, and those to InitProducerId are swallowed.
ON_PARTS = 1605

PYTHON_TASKS = (
    (0.5, "kill-worker", 0.1, "some-sent"),
    (5.0, "pause-worker", 3.0, "after-flush"),
)  # fmt: skip


def plan_of(rows: Sequence[tuple[float, str, float, str | None]], seed: int = 1) -> FaultPlan:
    at, steps = 0.0, []
    for number, (after, fault, lasts, point) in enumerate(rows):
        at = round(at + after, 2)
        steps.append(Step(number, at, fault, lasts, point))
    return FaultPlan(seed, at, tuple(steps))


def run(folder: Path, settings: Settings, plan: FaultPlan) -> Round:
    """Run a round, which must end clean, each of its faults done."""
    one = run_round(folder, plan.seed, plan.duration_s, settings=settings, plan=plan)
    assert one.clean, str(one)
    missed = {step.fault for step in plan.steps} - set(one.history.done)
    assert not missed, f"nothing was there for {missed}:\n{one}"
    return one


def test_every_kind_of_fault_is_in_one_of_the_five_plans() -> None:
    """A fault that is registered and never done may be a line that does nothing."""
    planned = {row[1] for row in (*ONE_DRIVER, *SEVERAL_DRIVERS, *THREE_BROKERS, *EXECUTORS, *PYTHON_TASKS)}
    assert planned == {fault.name for fault in (*PROCESSES, *BROKERS, *NETWORK)} <= set(FAULTS)


@pytest.mark.long
def test_faults_of_coordinator_network_broker_and_driver_leave_every_record_there_once(tmp_path: Path) -> None:
    """Thirteen faults, most of them before the stream has recovered from the one before."""
    one = run(tmp_path / "round", QUICK, plan_of(ONE_DRIVER, ON_ENDS))
    assert one.verdict is not None and one.verdict.records > 1000
    assert one.batches >= 3 and one.checked.startswith("verify: ")  # a quick machine has fewer, larger ones


@pytest.mark.long
def test_drivers_that_overlap_and_a_broker_that_stops_leave_every_record_there_once(tmp_path: Path) -> None:
    """A driver that wakes up beside its successor must not write, nor abort what that one writes."""
    run(tmp_path / "round", QUICK, plan_of(SEVERAL_DRIVERS))


@pytest.mark.long
def test_each_fault_of_three_brokers_leaves_every_record_there_once(tmp_path: Path) -> None:
    """Leaders and coordinators move, every broker restarts, and one never comes back."""
    run(tmp_path / "round", Settings(nodes=3, timeout_ms=15_000, origin=True), plan_of(THREE_BROKERS))


@pytest.mark.long
def test_each_fault_of_executors_leaves_every_record_there_once(tmp_path: Path) -> None:
    """A task of an executor that hangs, or that the network leaves without an answer, ends after another executor has
    done its work.
    """
    run(tmp_path / "round", Settings(executors=True, timeout_ms=15_000, origin=True), plan_of(EXECUTORS, ON_PARTS))


@pytest.mark.long
def test_each_fault_of_python_tasks_leaves_every_record_there_once(tmp_path: Path) -> None:
    """With further outputs the tasks are Python, and one that dies leaves a part in some of the outputs."""
    settings = Settings(executors=True, outputs=True, timeout_ms=15_000, origin=True)
    run(tmp_path / "round", settings, plan_of(PYTHON_TASKS))


@pytest.mark.long
@pytest.mark.parametrize(
    ("seed", "settings"),
    [
        (1, Settings(timeout_ms=5_000)),
        (2, Settings(guarantee="at_least_once", origin=True)),
        (3, Settings(guarantee="none", origin=True)),
        (4, Settings(nodes=3, timeout_ms=5_000)),
        (5, Settings(executors=True, origin=True)),
        (6, Settings(state="HDFSBackedStateStore")),
        (7, Settings(state="RocksDBStateStore", executors=True)),
    ],
)
def test_a_round_of_a_fixed_seed_keeps_its_guarantee(seed: int, settings: Settings, tmp_path: Path) -> None:
    """Each setting under faults drawn at random, the same ones each time."""
    one = run_round(tmp_path / "round", seed, 25, settings=settings)
    assert one.clean, str(one)


@pytest.mark.long
def test_a_round_is_replayed_by_its_history_with_the_same_faults(tmp_path: Path) -> None:
    """Without that, a failure that took ten minutes to come takes ten minutes each time."""
    first = run_round(tmp_path / "first", 54, 12, ["net-cut", "net-reset", "kill-driver"], settings=QUICK, keep=True)
    again = replay(tmp_path / "first" / "history.json", tmp_path / "again")
    assert first.clean and again.clean, f"{first}\n{again}"
    assert again.settings == first.settings and len(first.plan.steps) == 3
    was, now = ({step.number: step for step in one.plan.steps} for one in (first, again))
    assert {n: (s.fault, s.lasts_s) for n, s in now.items()} == {n: (s.fault, s.lasts_s) for n, s in was.items()}
    [kill] = [n for n, s in was.items() if s.fault == "kill-driver"]  # the one without a point
    assert abs(now[kill].at_s - was[kill].at_s) < 1
