"""The fault lab's Dagster without a process: settings, the declaration of the stream, and faults that overlap."""

from __future__ import annotations

from dataclasses import asdict, replace
from random import Random
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest

from faultlab import dagster_location
from faultlab.dagster_location import LabStream
from faultlab.faults import FAULTS
from faultlab.faults.dagster import DAGSTER as OF_DAGSTER
from faultlab.faults.dagster import KillCodeServer, KillDaemon, PauseDaemon
from faultlab.faults.fault import NOTHING
from faultlab.rounds import OFTEN
from faultlab.settings import DAGSTER, Settings, draw_settings, under_dagster
from faultlab.state import STORES

STREAM = LabStream("in-1-abc", "lab-2-def-out", "lab-2-def", "/lab", {"sink.guarantee": "exactly_once"}, origin=True)


class Dagster:
    """Keeps what was done to it."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.pids: dict[str, int] = {"daemon": 1, "code": 2}

    def pid_of(self, name: str) -> int | None:
        return self.pids.get(name)

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.done.append(" ".join(map(str, (name, *arguments))))


def lab_with(dagster: Dagster | None) -> Any:
    system = SimpleNamespace(pids=lambda role: [7, 8] if role == "run" else [])
    if dagster is not None:
        system.dagster = dagster
    return SimpleNamespace(system=system)


def test_a_round_under_dagster_keeps_the_settings_of_its_seed_as_far_as_it_has_them() -> None:
    """Guards against settings that a round prints and does not have: a cluster, or machines."""
    for seed in range(60):
        drawn = draw_settings(seed)
        settings = under_dagster(drawn)
        assert (settings.operator, settings.guarantee) == (DAGSTER, "exactly_once")
        assert not (settings.executors or settings.machines)
        same = ("nodes", "timeout_ms", "parts", "rate", "origin", "state", "outputs")
        assert all(getattr(settings, name) == getattr(drawn, name) for name in same)


def test_no_seed_draws_dagster_as_the_operator_by_itself() -> None:
    """Guards against seeds in reports that lead to another round than before."""
    assert {draw_settings(seed).operator for seed in range(60)} == {""} == {Settings().operator}


def test_the_stream_of_a_round_is_declared_with_its_topics_options_and_sink() -> None:
    """Guards against a judge that looks at another topic or sink than the run writes."""
    stream = STREAM.declared()
    assert (stream.source_topics, stream.topics, stream.sink_id) == (("in-1-abc",), ("lab-2-def-out",), "lab-2-def")
    assert stream.options == {"sink.guarantee": "exactly_once"} and stream.spec.job == "lab_stream"
    partitions = [replace(STREAM, state=state).declared().state_partitions for state in ("", *STORES)]
    assert partitions == [None, None, dagster_location.STATE_PARTITIONS]
    assert stream.others() == ()
    archive = {"class": "exactly_once.outputs.files:FileParticipant", "name": "archive", "url": "/archive"}
    assert [one.name for one in replace(STREAM, participants=[archive]).declared().others()] == ["archive"]


def test_the_code_server_loads_what_the_lab_has_put_into_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against a round that waits two minutes for a code location that does not load."""
    [(name, text)] = STREAM.as_variable().items()
    monkeypatch.setenv(name, text)
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", "localhost:1")
    made = dagster_location.defs()
    assert isinstance(made, dg.Definitions)
    sensors = {sensor.name for sensor in made.sensors or ()}
    assert sensors == {
        "exactly_once_checkpoint_progress",
        "exactly_once_stale_transactions",
        "exactly_once_run_failure",
        "exactly_once_liveness",
    }
    assert asdict(STREAM)["output"] in text


def test_the_faults_of_dagster_fit_only_where_it_operates_and_are_drawn_more_often_there() -> None:
    """Guards against plans of other rounds that change, and against rounds under Dagster that hardly strike it."""
    for fault in OF_DAGSTER:
        assert fault.fits(lab_with(Dagster())) and not fault.fits(lab_with(None))
        assert FAULTS[fault.name] is fault and OFTEN.count(fault.name) == 2


def test_a_daemon_that_is_gone_is_not_struck_again_and_comes_back_with_the_first_fault_that_ends() -> None:
    """Guards against a pause of a process that is dead, and against a daemon that stays away for good."""
    dagster = Dagster()
    lab = lab_with(dagster)
    kill, pause = KillDaemon(), PauseDaemon()
    assert kill.do(lab, Random(0)) == "process [1]"
    del dagster.pids["daemon"]
    assert pause.do(lab, Random(0)) == NOTHING
    kill.undo(lab)
    assert dagster.done == ["kill daemon", "start daemon"]


def test_a_code_server_dies_with_its_runs_and_without_them() -> None:
    """Guards against a fault that always spares, or always takes, what is most worth striking."""
    struck = set()
    for seed in range(20):
        dagster = Dagster()
        struck.add(KillCodeServer().do(lab_with(dagster), Random(seed)))
        assert dagster.done[0] in ("kill_code_server True", "kill_code_server False")
    assert struck == {"process [2] with 2 runs", "process [2] without 2 runs"}
    dagster = Dagster()
    del dagster.pids["code"]
    assert KillCodeServer().do(lab_with(dagster), Random(0)) == NOTHING and dagster.done == []
