"""Clocks that jump and disks that are full or slow, below a stream and below its broker, in the fault lab."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from faultlab.building import lab_of
from faultlab.faults import FAULTS
from faultlab.settings import Settings
from faultlab.state import STORES
from tests.faults.lab import Fault, run_clean, shown, struck

ROUNDS: dict[str, list[Fault]] = {
    "disk-full": [("disk-full", 6.0, None), ("disk-full", 3.0, "decided")],
    "disk-full-broker": [("disk-full-broker", 4.0, None), ("disk-full-broker", 2.0, "decided")],
    "disk-slow": [("disk-slow", 5.0, None), ("disk-slow", 5.0, None), ("disk-slow", 5.0, "all-prepared")],
    "clock-driver": [("clock-driver", 6.0, None), ("clock-driver", 6.0, "decided"), ("clock-driver", 3.0, None)],
    "clock-python": [("clock-python", 6.0, None), ("clock-python", 6.0, "decided"), ("clock-python", 3.0, None)],
    "clock-broker": [("clock-broker", 6.0, None), ("clock-broker", 6.0, "decided"), ("clock-broker", 3.0, None)],
}

#: Below state; slow under the stream, not under its broker.
STATE_ROUNDS: dict[str, list[Fault]] = {
    "disk-full": [("disk-full", 6.0, None), ("disk-full", 3.0, "all-prepared"), ("disk-full", 3.0, "decided")],
    "disk-slow": [("disk-slow", 5.0, None), ("disk-slow", 5.0, "all-prepared")],
}
STATE_SEEDS = {"disk-full": 0, "disk-slow": 23}

#: Of the random numbers that each draws: which machine, and by how much; two hours forward and backward for each clock.
SEEDS = {
    "disk-full": 0,
    "disk-full-broker": 1,
    "disk-slow": 2,
    "clock-driver": 10,
    "clock-python": 7,
    "clock-broker": 35,
}


@pytest.mark.long
def test_output_is_exactly_once_when_executors_live_hours_apart(tmp_path: Path) -> None:
    """Guards against parts of one batch that are judged by the clocks of their tasks: one part counts as expired, or a
    record is stamped so far ahead that the broker refuses it for good. And against an executor whose slow disk makes
    its parts late.
    """
    faults: list[Fault] = [("clock-executor", 8.0, None), ("clock-executor", 8.0, "decided"), ("disk-slow", 5.0, None)]
    settings = Settings(rate=100, timeout_ms=60_000, machines=True, executors=True)
    seed = 257  # worker 1 two hours back, then worker 2 two hours ahead; the disk of worker 1 is slow
    with lab_of(settings, seed, tmp_path / "lab", shown) as lab:
        if not FAULTS["clock-executor"].fits(lab):
            pytest.skip("needs a C compiler on Linux")
        history = run_clean(lab, seed, faults)
        machines = {psutil.Process(pid).environ()["FAULTLAB_SHIM"] for pid in lab.system.pids("executor")}
    assert struck(history, "clock-executor") == ["worker 1: -7200 s", "worker 2: +7200 s at decided"]
    assert struck(history, "disk-slow") == ["worker 1: 200 ms"]
    assert len(machines) == 2


@pytest.mark.long
@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("fault", STATE_ROUNDS)
def test_output_is_exactly_once_when_the_disk_below_the_state_is_full_or_slow(
    fault: str, store: str, tmp_path: Path
) -> None:
    """Guards against state that a full disk cuts off half-way, in the checkpoint or where RocksDB works: what it has
    forgotten is written twice, and what it knows too early is lost.
    """
    settings = Settings(rate=100, timeout_ms=60_000, machines=True, state=store)
    with lab_of(settings, STATE_SEEDS[fault], tmp_path / "lab", shown) as lab:
        if not FAULTS[fault].fits(lab) or lab.machine is None or lab.machine.disk is None:
            pytest.skip("needs root for a disk of its own, and a C compiler on Linux for a slow disk")
        history = run_clean(lab, STATE_SEEDS[fault], STATE_ROUNDS[fault], settings)
        local = [path.name for path in (lab.machine.disk / "local").iterdir()]
    assert len(struck(history, fault)) == len(STATE_ROUNDS[fault]), history
    assert any(name.startswith("blockmgr-") for name in local), local


@pytest.mark.long
@pytest.mark.parametrize("fault", ROUNDS)
def test_output_is_exactly_once_whatever_the_clock_and_the_disk_do(fault: str, tmp_path: Path) -> None:
    """Guards against a batch that is decided by a wrong clock, and against what a write that fails half-way leaves:
    records lost, or written twice.
    """
    with lab_of(Settings(rate=100, timeout_ms=60_000, machines=True), SEEDS[fault], tmp_path / "lab", shown) as lab:
        if not FAULTS[fault].fits(lab):
            pytest.skip("needs root for a disk of its own, and a C compiler on Linux for a clock and a slow disk")
        history = run_clean(lab, SEEDS[fault], ROUNDS[fault])
    assert len(struck(history, fault)) == len(ROUNDS[fault]), history
