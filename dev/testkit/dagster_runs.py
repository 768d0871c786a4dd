"""Runs on an instance of Dagster's, brought to a status as their processes would, and what they wrote."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import Any

import dagster as dg
import psutil

from dagster_exactly_once.notify import Notice, Notifier
from dagster_exactly_once.recovery.operations import UNKNOWN_SINKS
from dagster_exactly_once.runs.tags import TAG_HOST, TAG_MACHINE, TAG_PID
from exactly_once.coordinator.machine import this_machine

_KIND, _STATUS = dg.DagsterEventType, dg.DagsterRunStatus

#: The events behind which a run has a status.
_EVENTS = {
    _STATUS.STARTED: (_KIND.PIPELINE_STARTING, _KIND.PIPELINE_START),
    _STATUS.SUCCESS: (_KIND.PIPELINE_STARTING, _KIND.PIPELINE_START, _KIND.PIPELINE_SUCCESS),
    _STATUS.FAILURE: (_KIND.PIPELINE_STARTING, _KIND.PIPELINE_START, _KIND.PIPELINE_FAILURE),
    _STATUS.CANCELING: (_KIND.PIPELINE_START, _KIND.PIPELINE_CANCELING),
    _STATUS.CANCELED: (_KIND.PIPELINE_START, _KIND.PIPELINE_CANCELING, _KIND.PIPELINE_CANCELED),
}


def brought_to(instance: dg.DagsterInstance, run_id: str, status: dg.DagsterRunStatus) -> str:
    """Bring a run to a status by its events; return its id."""
    run = instance.get_run_by_id(run_id)
    assert run is not None
    for event in _EVENTS[status]:
        instance.report_dagster_event(dg.DagsterEvent(event.value, run.job_name), run_id)
    return run_id


def process_tags(pid: int | None = None, host: str | None = None) -> dict[str, str]:
    """Return the tags of a run that this process works on, or another one: one with that id began with this one."""
    return {
        TAG_HOST: host or socket.gethostname(),
        TAG_MACHINE: this_machine(),
        TAG_PID: f"{pid or os.getpid()}@{psutil.Process().create_time():.2f}",
    }


def ended_tags() -> dict[str, str]:
    """Return the tags of a run whose process has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    return process_tags(process.pid)


def audited(result: dg.ExecuteInProcessResult) -> list[dict[str, Any]]:
    """Return what a job wrote into the audit trail of a sink that no stream declares: the metadata of each event."""
    found: list[Any] = [e.asset_observation_data.asset_observation for e in result.all_events if e.is_asset_observation]
    found += [e.materialization for e in result.get_asset_materialization_events()]
    assert {o.asset_key for o in found} <= {dg.AssetKey(UNKNOWN_SINKS)}
    return [{k: v.value for k, v in o.metadata.items()} for o in found]


class Receiver(Notifier):
    """Keeps the notices that it was sent, in ``taken``, and raises those of ``errors`` first."""

    def __init__(self) -> None:
        super().__init__()
        self._taken: list[Notice] = []
        self._errors: list[Exception] = []

    @property
    def taken(self) -> list[Notice]:
        """The notices, oldest first."""
        return self._taken

    @property
    def errors(self) -> list[Exception]:
        """The errors that are left."""
        return self._errors

    def send(self, notice: Notice) -> None:
        if self._errors:
            raise self._errors.pop()
        self._taken.append(notice)
