"""Which process works on a run, as tags of the run: so a run that works can be told from one whose process died."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

import dagster as dg
import psutil

from platform_assets.constants import TAG_HOST, TAG_PID, TAG_SINK

#: What Dagster may call a run whose process lives.
WORKING = [
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]


@dataclass(frozen=True)
class RunProcess:
    """A run that Dagster calls in progress. ``alive`` is None when its process is on another machine."""

    run_id: str
    host: str
    pid: int
    alive: bool | None


def tag_run(instance: dg.DagsterInstance, run_id: str, sink_id: str | None = None) -> None:
    """Say on the run that this process works on it, and on which sink."""
    started = psutil.Process().create_time()
    tags = {TAG_HOST: socket.gethostname(), TAG_PID: f"{os.getpid()}@{started:.2f}"}
    instance.add_run_tags(run_id, {**tags, TAG_SINK: sink_id} if sink_id else tags)


def runs_on(instance: dg.DagsterInstance, sink_id: str) -> list[RunProcess]:
    """The runs in progress that work on ``sink_id``, newest first."""
    runs = instance.get_runs(dg.RunsFilter(statuses=WORKING, tags={TAG_SINK: sink_id}))
    return [_process(run) for run in runs]


def fail_dead_runs(instance: dg.DagsterInstance) -> list[str]:
    """Report the runs whose process died with everything around it; returns their ids.

    Nobody else does: Dagster notices the death of a run's process only while the process that launched it lives. Such
    a run would hold its pool for ever. For an instance that no other command works on: a run without a process counts
    as dead.
    """
    dead = []
    for run in instance.get_runs(dg.RunsFilter(statuses=WORKING)):
        if TAG_PID not in run.tags or _process(run).alive is False:
            instance.report_run_failed(run, "The process of this run is gone: it was killed.")
            dead.append(run.run_id)
    return dead


def _process(run: dg.DagsterRun) -> RunProcess:
    pid, _, started = run.tags.get(TAG_PID, "-1@0").partition("@")
    host = run.tags.get(TAG_HOST, "")
    alive = None if host != socket.gethostname() else _alive(int(pid), float(started or 0))
    return RunProcess(run.run_id, host, int(pid), alive)


def _alive(pid: int, started: float) -> bool:
    """Whether the process of that id is the one that started then: ids are used again."""
    try:
        process = psutil.Process(pid)
        return bool(abs(process.create_time() - started) < 2.0 and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
