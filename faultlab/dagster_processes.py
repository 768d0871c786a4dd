"""Dagster as a service manager runs it: a code server with the runs in it, and a daemon, each of them to be killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import dagster as dg
import psutil

from dagster_exactly_once.instance import write_settings
from exactly_once_local.cluster.guard import send
from exactly_once_local.ports import HOST, free_port
from testkit import processes
from testkit.processes import until
from testkit.stream import ROOT

#: The code location, for Dagster.
MODULE = "faultlab.dagster_location"

#: In the commands of the code server's own processes: a server, and one below it that loads the code and starts runs.
SERVERS = ("code-server", "api grpc")

#: An import of Dagster and of the code location, on a busy machine.
START_S = 90.0


class Dagster:
    """An instance of its own in ``folder``, with one code location.

    Parameters
    ----------
    environment : mapping
        More variables of all of its processes, and so of the runs.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str]):
        self.folder, self.home = folder, folder / "dagster_home"
        write_settings(self.home)
        self._port = free_port()
        self._workspace = folder / "workspace.yaml"
        server = f"host: {HOST}, port: {self._port}, location_name: {MODULE}"
        self._workspace.write_text(f"load_from: [{{grpc_server: {{{server}}}}}]\n")
        self._environment = {
            **{k: v for k, v in os.environ.items() if k != "SPARK_LOCAL_DIRS"},
            "DAGSTER_HOME": str(self.home),
            "DAGSTER_DISABLE_TELEMETRY": "1",
            "PYTHONPATH": str(ROOT),
            **environment,
        }
        self._code: subprocess.Popen[bytes] | None = None
        self._daemon: subprocess.Popen[bytes] | None = None
        self._sessions: list[int] = []  # of every code server so far: a run may outlive its own

    @cached_property
    def instance(self) -> dg.DagsterInstance:
        """The instance, to be read."""
        return dg.DagsterInstance.from_config(str(self.home))

    # -- the services --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start what does not run, and wait until the code server answers."""
        self.start_code_server()
        self.start_daemon()
        until("Dagster's code server", self._answers, START_S, every_s=0.2)

    def start_code_server(self) -> None:
        """Start it, unless it runs."""
        if self.code_server is None:
            command = ["dagster", "code-server", "start", "-m", MODULE, "--location-name", MODULE]
            self._code = self._popen("code-server", *command, "-h", HOST, "-p", str(self._port))
            self._sessions.append(self._code.pid)

    def start_daemon(self) -> None:
        """Start it, unless it runs."""
        if self.daemon is None:
            self._daemon = self._popen("daemon", "dagster._daemon", "run", "-w", str(self._workspace))

    @property
    def code_server(self) -> int | None:
        """Its first process; None when it does not run."""
        return self._code.pid if self._code is not None and self._code.poll() is None else None

    @property
    def daemon(self) -> int | None:
        """Its process; None when it does not run."""
        return self._daemon.pid if self._daemon is not None and self._daemon.poll() is None else None

    def kill_daemon(self) -> None:
        """Kill the daemon with ``kill -9``."""
        if self._daemon is not None:
            processes.kill_session(self._daemon.pid)
            self._daemon.wait()

    def pause_daemon(self) -> None:
        """SIGSTOP."""
        if self._daemon is not None:
            processes.stop_session(self._daemon.pid)

    def resume_daemon(self) -> None:
        """SIGCONT."""
        if self._daemon is not None:
            processes.continue_session(self._daemon.pid)

    def kill_code_server(self, runs_too: bool) -> None:
        """Kill its own processes with ``kill -9``.

        Also all runs in it at the same moment, as with a container, or none of them.
        """
        if self._code is None:
            return
        session = self._code.pid
        if runs_too:
            processes.kill_session(session)
        else:
            own = {pid for pid in processes.of_session(session) if _is_server(pid)}
            send(own, signal.SIGSTOP)
            send(own, signal.SIGKILL)
        self._code.wait()

    def stop(self) -> None:
        """Kill everything with ``kill -9``; the instance's records stay readable."""
        self.kill_daemon()
        for session in self._sessions:
            processes.kill_session(session)
        if self._code is not None:
            self._code.wait()

    # -- runs ----------------------------------------------------------------------------------------------------------

    def launch(self, job: str, config: Mapping[str, Any]) -> None:
        """Put a run of a job into the queue, as a person does at a terminal."""
        command = ["job", "launch", "-w", str(self._workspace), "-j", job, "--config-json", json.dumps(config)]
        ran = self._popen("launch", "dagster", *command)
        assert ran.wait(START_S) == 0, (self.folder / "launch.log").read_text()[-3000:]

    def of_runs(self) -> set[int]:
        """Every process of a run, also of one that outlived its code server."""
        all_of_them = set[int]().union(*(processes.of_session(session) for session in self._sessions))
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

    def _answers(self) -> bool:
        assert self.code_server is not None, (self.folder / "code-server.log").read_text()[-3000:]
        with contextlib.suppress(OSError), socket.create_connection((HOST, self._port), 1):
            return True
        return False

    def _popen(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", *command], cwd=ROOT, env=self._environment,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip


def is_driver(pid: int) -> bool:
    """Return whether a process is the JVM of a driver."""
    return "SparkSubmit" in processes.command_of(pid)


def _is_server(pid: int) -> bool:
    command = processes.command_of(pid)
    return any(name in command for name in SERVERS)
