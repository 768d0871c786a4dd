"""Which process works on a run, as tags of the run: so a run that works can be told from one whose process died."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

import dagster as dg
import psutil

from exactly_once.ops.processes import process_alive

#: Tags on a run that works on a sink. The process tags let anybody tell a run that works from one whose process died.
TAG_SINK = "exactly_once/sink_id"
TAG_PID = "exactly_once/pid"
TAG_HOST = "exactly_once/host"

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
    job: str
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
    return [process_of(run) for run in runs]


def process_of(run: dg.DagsterRun) -> RunProcess:
    """The process that said it works on ``run``; ``alive`` is None too when none has said so yet."""
    pid, _, started = run.tags.get(TAG_PID, "-1@0").partition("@")
    host = run.tags.get(TAG_HOST, "")
    alive = None if host != socket.gethostname() else process_alive(int(pid), float(started or 0))
    return RunProcess(run.run_id, run.job_name, host, int(pid), alive)


def report_dead(instance: dg.DagsterInstance, run_id: str) -> bool:
    """Report a run in progress whose process is gone; says whether that was needed.

    A run that a person had asked to end becomes CANCELED, any other one FAILURE. What the process wrote before it was
    found gone is its last word, so the status is read again.
    """
    run = instance.get_run_by_id(run_id)
    if run is None or run.status not in WORKING:
        return False
    if run.status is dg.DagsterRunStatus.CANCELING:
        instance.report_run_canceled(run, "The process of this run is gone, after it was asked to end.")
    else:
        instance.report_run_failed(run, "The process of this run is gone: it was killed.")
    return True


def fail_dead_runs(instance: dg.DagsterInstance) -> list[str]:
    """Report the runs whose process died with everything around it; returns their ids.

    Nobody else does: Dagster notices the death of a run's process only while the process that launched it lives. Such
    a run would hold its pool for ever. For an instance that no other command works on: a run without a process counts
    as dead.
    """
    return [
        run.run_id
        for run in instance.get_runs(dg.RunsFilter(statuses=WORKING))
        if (TAG_PID not in run.tags or process_of(run).alive is False) and report_dead(instance, run.run_id)
    ]
