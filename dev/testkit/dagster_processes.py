"""Dagster as a service manager runs it, each of its processes apart, so that one can be killed and started again."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from exactly_once_local.ports import HOST, free_port
from testkit import processes
from testkit.processes import until
from testkit.stream import ROOT

#: An import of Dagster and of a code location, on a busy machine.
START_S = 120.0


class DagsterProcesses:
    """A code server, with the runs in it, and a daemon; their output goes to ``<folder>/<name>.log``.

    Parameters
    ----------
    environment : mapping
        All variables of the processes, and so of the runs.
    module, location : str
        Where the code is, and what Dagster calls it.

    Attributes
    ----------
    commands : dict
        By name, what each process is: a Python module with its arguments.
    sessions : list of int
        Of every code server so far: a run may outlive its own.
    python, root : str, Path
        The code server's Python, and the folder with its code: those of this process, unless a test sets others.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str], module: str, location: str):
        self.folder, self.env = folder, dict(environment)
        self.code_port = free_port()
        self.workspace = folder / "workspace.yaml"
        server = f"host: {HOST}, port: {self.code_port}, location_name: {location}"
        self.workspace.write_text(f"load_from: [{{grpc_server: {{{server}}}}}]\n")
        code = ["dagster", "code-server", "start", "-m", module, "-d", ".", "--location-name", location]
        self.python, self.root = sys.executable, ROOT
        self.commands = {
            "code": [*code, "-h", HOST, "-p", str(self.code_port)],
            "daemon": ["dagster._daemon", "run", "-w", str(self.workspace)],
        }
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.sessions: list[int] = []

    def start(self, name: str, kind: str = "") -> None:
        """Start a process unless it runs; ``kind`` says which when it has another name."""
        if self.pid_of(name) is None:
            self.processes[name] = self.popen(name, *self.commands[kind or name])
            if name == "code":
                self.sessions.append(self.processes[name].pid)

    def await_code_server(self) -> None:
        """Wait until the code server answers."""
        until("the code server", self._code_answers, START_S, every_s=0.3)

    def pid_of(self, name: str) -> int | None:
        """Return the first process of a service; None when it does not run."""
        process = self.processes.get(name)
        return process.pid if process is not None and process.poll() is None else None

    def kill(self, name: str) -> None:
        """Kill a process and all below it with ``kill -9``: with the code server, these are the runs and their JVMs."""
        process = self.processes.pop(name)
        processes.kill_session(process.pid)
        process.wait()

    def stop(self) -> None:
        """Kill everything with ``kill -9``; the instance's records stay readable."""
        for name in list(self.processes):
            self.kill(name)
        for session in self.sessions:
            processes.kill_session(session)

    def log(self, name: str) -> Path:
        """Return where the output of a process goes."""
        return self.folder / f"{name}.log"

    def check(self, name: str) -> None:
        """Fail at once when a process has ended."""
        assert self.pid_of(name) is not None, self.log(name).read_text()[-3000:]

    def popen(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        """Start a Python module with its arguments."""
        mine = name != "code"
        python, root = (sys.executable, ROOT) if mine else (self.python, self.root)
        with self.log(name).open("ab") as log:
            return subprocess.Popen(
                [python, "-m", *command], cwd=root, env=self.env | {"PYTHONPATH": str(root)},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def _code_answers(self) -> bool:
        self.check("code")
        with contextlib.suppress(OSError), socket.create_connection((HOST, self.code_port), 1):
            return True
        return False
