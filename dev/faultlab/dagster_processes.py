"""Dagster as a service manager runs it: a code server with the runs in it, and a daemon, each of them to be killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import dagster as dg
import psutil

from dagster_exactly_once.instance import write_settings
from exactly_once_local.cluster.guard import send
from testkit import processes
from testkit.dagster_processes import START_S, DagsterProcesses
from testkit.stream import ROOT

#: The code location, for Dagster.
MODULE = "faultlab.dagster_location"

#: In the commands of the code server's own processes: a server, and one below it that loads the code and starts runs.
SERVERS = ("code-server", "api grpc")


class Dagster(DagsterProcesses):
    """An instance of its own in ``folder``, with one code location.

    Parameters
    ----------
    environment : mapping
        More variables of all of its processes, and so of the runs.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str]):
        self.home = folder / "dagster_home"
        write_settings(self.home)
        own = {
            **{k: v for k, v in os.environ.items() if k != "SPARK_LOCAL_DIRS"},
            "DAGSTER_HOME": str(self.home),
            "DAGSTER_DISABLE_TELEMETRY": "1",
            "PYTHONPATH": str(ROOT),
        }
        super().__init__(folder, {**own, **environment}, MODULE, MODULE)

    @cached_property
    def instance(self) -> dg.DagsterInstance:
        """The instance, to be read."""
        return dg.DagsterInstance.from_config(str(self.home))

    def start_all(self) -> None:
        """Start what does not run, and wait until the code server answers."""
        self.start("code")
        self.start("daemon")
        self.await_code_server()

    def pause_daemon(self) -> None:
        """SIGSTOP."""
        if (pid := self.pid_of("daemon")) is not None:
            processes.stop_session(pid)

    def resume_daemon(self) -> None:
        """SIGCONT."""
        if (pid := self.pid_of("daemon")) is not None:
            processes.continue_session(pid)

    def kill_code_server(self, runs_too: bool) -> None:
        """Kill its own processes with ``kill -9``.

        Also all runs in it at the same moment, as with a container, or none of them.
        """
        if runs_too:
            self.kill("code")
            return
        process = self.processes.pop("code")
        own = {pid for pid in processes.of_session(process.pid) if _is_server(pid)}
        send(own, signal.SIGSTOP)
        send(own, signal.SIGKILL)
        process.wait()

    # -- runs ----------------------------------------------------------------------------------------------------------

    def launch(self, job: str, config: Mapping[str, Any]) -> None:
        """Put a run of a job into the queue, as a person does at a terminal."""
        command = ["job", "launch", "-w", str(self.workspace), "-j", job, "--config-json", json.dumps(config)]
        ran = self.popen("launch", "dagster", *command)
        assert ran.wait(START_S) == 0, self.log("launch").read_text()[-3000:]

    def of_runs(self) -> set[int]:
        """Every process of a run, also of one that outlived its code server."""
        all_of_them = set[int]().union(*(processes.of_session(session) for session in self.sessions))
        return {pid for pid in all_of_them if not _is_server(pid)}

    def families(self) -> set[int]:
        """Return the processes of runs that have a JVM: the run's own process, the JVM, and all below it."""
        mine, found = self.of_runs(), set[int]()
        for jvm in (pid for pid in mine if is_driver(pid)):
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(jvm)
                run = psutil.Process(parent) if (parent := process.ppid()) in mine else process
                found |= {run.pid, *(child.pid for child in run.children(recursive=True))}
        return found & mine


def is_driver(pid: int) -> bool:
    """Return whether a process is the JVM of a driver."""
    return "SparkSubmit" in processes.command_of(pid)


def _is_server(pid: int) -> bool:
    command = processes.command_of(pid)
    return any(name in command for name in SERVERS)
