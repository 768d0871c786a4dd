"""The network between Spark's driver and its executors, held and cut at points of the protocol, in the fault lab."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from faultlab.building import lab_of
from faultlab.settings import Settings
from tests.faults.lab import Fault, run_clean, shown, struck

#: Longer than Spark waits for a heartbeat here, with time for the executor that takes over.
GIVEN_UP_S = 12.0

#: At an executor's point, the line of the executor that is there; at a driver's, that of one Spark worker or both.
ROUNDS: dict[str, list[Fault]] = {
    "hold on executors": [("net-driver-hold", GIVEN_UP_S, p) for p in ("mid-write", "some-sent", "after-flush")],
    "hold on the driver": [("net-driver-hold", GIVEN_UP_S, p) for p in ("all-prepared", "decided")],
    "cut on executors": [("net-driver-cut", 4.0, p) for p in ("mid-write", "some-sent", "after-flush")],
    "cut on the driver": [("net-driver-cut", 4.0, p) for p in ("all-prepared", "decided")],
}

#: Of the random numbers that each draws. A hold is of what executors send, then of what the driver sends, then of what
#: executors send; at the driver's points first of what it sends, then of what executors send, on both Spark workers.
SEEDS = {"hold on executors": 7, "hold on the driver": 8, "cut on executors": 7, "cut on the driver": 8}

#: In the driver's log, when it gives an executor up: it misses heartbeats, or its connection is closed.
SAID = {"net-driver-hold": "no recent heartbeats", "net-driver-cut": "Lost executor"}


@pytest.mark.long
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs 127.0.0.2")
@pytest.mark.parametrize("where", ROUNDS)
def test_output_is_exactly_once_when_driver_and_executors_lose_each_other(where: str, tmp_path: Path) -> None:
    """Guards against an executor that Spark has given up and that goes on writing to Kafka, and against its work, of
    which the driver hears when another task has done it again: a part written twice, or lost with its transaction.
    """
    settings, faults = Settings(rate=100, timeout_ms=60_000, executors=True), ROUNDS[where]
    with lab_of(settings, SEEDS[where], tmp_path / "lab", shown) as lab:
        history = run_clean(lab, SEEDS[where], faults)
        logs = "".join(path.read_text(errors="replace") for path in tmp_path.glob("lab/driver-*/log"))
    [fault] = {name for name, _, _ in faults}
    assert len(struck(history, fault)) == len(faults), history
    assert SAID[fault] in logs
