"""Tags a run with its process, so that Dagster's view of a run can be checked against a live process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple, Protocol

import dagster as dg
import psutil

from dagster_exactly_once.runs.tags import TAG_DRIVER, TAG_HOST, TAG_MACHINE, TAG_PID, TAG_SIGNED, TAG_SINK
from exactly_once.inspection.processes import Frozen, Process, alive, belongs_to, cpu_s, frozen_among

#: The statuses of a run that has ended.
FINISHED = (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
#: The statuses of a run that has not.
UNFINISHED = [status for status in dg.DagsterRunStatus if status not in FINISHED]
#: The statuses that Dagster may show for a run with a live process.
WORKING = [dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]


class Tagged(Protocol):
    """A run and its tags, as Dagster or :class:`~dagster_exactly_once.runs.runs.Run` has them."""

    @property
    def run_id(self) -> str: ...
    @property
    def tags(self) -> Mapping[str, str]: ...


class RunProcess(NamedTuple):
    """The Python process of a run, and those of its processes that are there and do nothing: Python, the driver's JVM.

    ``alive`` is None when it is on another machine.
    """

    host: str = ""
    pid: int = -1
    alive: bool | None = None
    frozen: tuple[Frozen, ...] = ()


def tag_run(
    instance: dg.DagsterInstance, run_id: str, sink_id: str | None = None, more: Mapping[str, str] | None = None
) -> None:
    """Tag a run with this process, its own, so that the sensor ``exactly_once_liveness`` sees when it is gone.

    Parameters
    ----------
    run_id : str
        The run that this process works for.
    sink_id : str, optional
        The sink that the run writes through: sensors and recoveries leave it alone while the process lives.
    more : mapping, optional
        Further tags of the run, by name.
    """
    here = Process.here()
    tags = {TAG_HOST: here.host, TAG_MACHINE: here.machine, TAG_PID: _name(here), TAG_SIGNED: run_id}
    instance.add_run_tags(run_id, {**tags, **(more or {}), **({TAG_SINK: sink_id} if sink_id else {})})


def lacking(run: Tagged, tags: Mapping[str, str]) -> dict[str, str]:
    """Return those of ``tags`` that the run, which Materialize may have started, has not got from its job."""
    return {name: value for name, value in tags.items() if name not in run.tags}


def _name(process: Process) -> str:
    return f"{process.pid}@{process.started:.2f}"


def tag_driver(instance: dg.DagsterInstance, run_id: str, pid: int) -> None:
    """Tag the run with Spark's JVM that works for it, and with its start where this process has started it: in cluster
    mode it is on another host.
    """
    ours = belongs_to(pid, os.getpid())
    try:
        instance.add_run_tags(run_id, {TAG_DRIVER: _name(Process.here(pid)) if ours else str(pid)})
    except psutil.NoSuchProcess:  # it has ended since: its run is about to say so
        return


def own_tag(run: Tagged, tag: str) -> str | None:
    """Return a tag that the run's own process has set; None before that, also where the run it repeats had one."""
    return run.tags.get(tag) if run.tags.get(TAG_SIGNED, run.run_id) == run.run_id else None


def signed(run: Tagged) -> bool:
    """Return whether the run's process has tagged it."""
    return own_tag(run, TAG_PID) is not None


def process_of(run: Tagged) -> RunProcess:
    """Return the process that the tags of ``run`` name; ``alive`` is also None before a process has tagged it."""
    python, driver = _named(run, TAG_PID), _named(run, TAG_DRIVER)
    if python is None:
        return RunProcess()
    processes = [p for p in (python, driver) if p is not None and p.started]
    return RunProcess(python.host, python.pid, alive(python), frozen_among(processes))


def outlives(instance: dg.DagsterInstance, run: Tagged) -> bool:
    """Return whether a step of a run that Dagster shows as ended still works, on this host: something outside of the
    run has ended it, and its process has not noticed.

    A process that lives is no sign: of a run within another process, it lives on.
    """
    if not process_of(run).alive:
        return False
    kind = dg.DagsterEventType
    of_steps = {kind.STEP_START, kind.STEP_SUCCESS, kind.STEP_FAILURE}
    events = instance.get_records_for_run(run.run_id, of_type=of_steps).records
    last = {e.step_key: e.event_type for r in events if (e := r.event_log_entry.get_dagster_event())}
    return kind.STEP_START in last.values()


def cpu_of(run: Tagged) -> float | None:
    """Return the processor time in seconds that the run's processes have had; None where nobody here can tell."""
    python = _named(run, TAG_PID)
    return cpu_s(python) if python is not None else None


def _named(run: Tagged, tag: str) -> Process | None:
    """Return the process that a tag of the run's own names."""
    pid, _, started = (own_tag(run, tag) or "").partition("@")
    host, machine = own_tag(run, TAG_HOST) or "", own_tag(run, TAG_MACHINE) or ""
    return Process(host, machine, int(pid), float(started or 0)) if pid else None


def report_dead(instance: dg.DagsterInstance, run_id: str) -> bool:
    """Report a run in progress whose process is gone; returns whether that was needed: the process may have written its
    status just before its end. A run that a person had asked to end becomes CANCELED, any other FAILURE.
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
    """Report the runs whose process and launcher are both gone; returns their ids.

    Dagster notices the death of a run's process only while the process that launched it lives; otherwise the run would
    hold its pool forever. For an instance that no other command uses: a run without a process counts as dead.
    """
    return [
        run.run_id
        for run in instance.get_runs(dg.RunsFilter(statuses=WORKING))
        if (not signed(run) or process_of(run).alive is False) and report_dead(instance, run.run_id)
    ]
