"""A job as a child process of a command: started, watched, canceled, never left behind."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import dagster as dg

from exactly_once_local.cluster.guard import kill_session
from platform_assets.local.environment import PROJECT, Environment

#: The tag of the run that a command asked for.
TAG_LAUNCH = "cli/launch"

#: Seconds until a run that was told to end counts as hanging: a stream is CANCELED within 15 s.
CANCEL_BUDGET_S = 25.0


class JobProcess:
    """One run of ``job`` in a process of its own. Its output goes to ``<logs>/<job>.log``."""

    def __init__(self, environment: Environment, job: str, config: Mapping[str, Any]):
        self.job = job
        self.log = environment.logs / f"{job}.log"
        self._launch = uuid.uuid4().hex
        command = [sys.executable, "-m", "platform_assets.launch", job]
        command += ["--config", json.dumps(config), "--tags", json.dumps({TAG_LAUNCH: self._launch})]
        with self.log.open("w") as log:
            # A session of its own: Ctrl-C in the terminal reaches the command, which cancels the run in order. The pipe
            # tells the child when the command itself is gone.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=PROJECT,
                start_new_session=True,
            )

    def poll(self) -> bool:
        """Return whether the process still runs."""
        return self._process.poll() is None

    def wait(self, timeout_s: float) -> bool:
        """Wait until the process has ended or the time is over; returns whether it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        return self._process.poll() is not None

    @property
    def succeeded(self) -> bool:
        """Return whether the run ended as SUCCESS."""
        return self._process.returncode == 0

    def run(self, instance: dg.DagsterInstance) -> dg.DagsterRun | None:
        """Return its run; None when the process failed before it created one."""
        return next(iter(instance.get_runs(dg.RunsFilter(tags={TAG_LAUNCH: self._launch}), limit=1)), None)

    def cancel(self, instance: dg.DagsterInstance) -> None:
        """End the run as Terminate in the UI would: CANCELED after a graceful stop; by force if that takes too long."""
        run = self.run(instance)
        if run is not None and not run.is_finished:
            instance.report_run_canceling(run)
        if self.poll():
            self._process.send_signal(signal.SIGINT)
            self.wait(CANCEL_BUDGET_S)

    def end(self) -> None:
        """Make sure that no process of it is left."""
        kill_session(self._process.pid)
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()


@contextmanager
def running(
    environment: Environment,
    instance: dg.DagsterInstance,
    job: str,
    config: Mapping[str, Any],
    say: Callable[[str], None],
) -> Iterator[JobProcess]:
    """Start a job for the length of the block; an exception (Ctrl-C) cancels it, and no process outlives the block."""
    process = JobProcess(environment, job, config)
    try:
        yield process
    except BaseException:
        say(f"canceling {job} ...")
        process.cancel(instance)
        raise
    finally:
        process.end()


def why_failed(instance: dg.DagsterInstance, process: JobProcess) -> str:
    """Describe the error of a run that did not succeed."""
    run = process.run(instance)
    if run is None:
        return f"the process of {process.job} ended before its run began; see {process.log}"
    records = instance.get_records_for_run(run.run_id, of_type=dg.DagsterEventType.STEP_FAILURE).records
    for record in records:
        failure = record.event_log_entry.get_dagster_event().step_failure_data
        described = failure.user_failure_data.description if failure.user_failure_data else None
        message = described or (failure.error.message if failure.error else None)
        if message:
            return f"{message.strip()} (run {run.run_id}, {process.log})"
    status = instance.get_run_by_id(run.run_id)
    return (
        f"run {run.run_id} of {process.job} ended as {status.status.value if status else 'unknown'}; see {process.log}"
    )
