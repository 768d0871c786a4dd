"""Dagster as `dagster dev` runs it, each of its processes apart, so that a test can kill one and start it again."""

import contextlib
import os
import signal
import socket
import subprocess
import sys

import dagster as dg
import psutil

from dagster_exactly_once.runs.tags import TAG_PID
from exactly_once_local.ports import free_port
from testkit.processes import kill_session, of_session, until
from tests.dagster.client import Client
from tests.dagster.conftest import ROOT

HOST = "127.0.0.1"


class Dagster(Client):
    """Code server, web server and daemon of a site, with the intervals of the sensors as they are delivered."""

    def __init__(self, site):
        self.site = site
        self.failpoints = site.folder / "failpoints"
        self.failpoints.mkdir()
        self.code_port = free_port()
        port = free_port({self.code_port})
        super().__init__(f"http://{HOST}:{port}")
        self.workspace = site.folder / "workspace.yaml"
        self.workspace.write_text(
            f"load_from: [{{grpc_server: {{host: {HOST}, port: {self.code_port}, location_name: platform_assets}}}}]\n"
        )
        self.env = site.env | {
            "DAGSTER_IS_DEV_CLI": "1",
            "EXACTLY_ONCE_SENSORS": "running",
            "EXACTLY_ONCE_FAILPOINTS": str(self.failpoints),
        }
        code = ["-m", "dagster", "code-server", "start", "-m", "platform_assets.definitions", "-d", str(ROOT)]
        web = ["-m", "dagster_webserver", "-h", HOST, "-p", str(port), "--live-data-poll-rate", "1000"]
        workspace = ["-w", str(self.workspace)]
        self.commands = {
            "code": [*code, "-h", HOST, "-p", str(self.code_port), "--location-name", "platform_assets"],
            "web": [*web, *workspace],
            "daemon": ["-m", "dagster._daemon", "run", *workspace],
        }
        self.processes = {}

    def __enter__(self):
        try:
            self.start("code")
            until("the code server", self._code_answers, 120, every_s=0.3)
            self.start("web")
            self.start("daemon")
            until("the web server", self.answers, 120, every_s=0.3)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error):
        for name in list(self.processes):
            self.kill(name)

    def start(self, name, kind=None):
        """Start a process; ``kind`` says which when it has another name."""
        with self.log(name).open("a") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, *self.commands[kind or name]],
                cwd=ROOT,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self, name):
        """kill -9 for a process and all its children: with the code server, these are the runs and their JVMs."""
        process = self.processes.pop(name)
        kill_session(process.pid)
        process.wait()

    def arm(self, point, action):
        """Have whoever comes to ``point`` next do ``action`` there."""
        draft = self.failpoints / ".draft"
        draft.write_text(action)
        draft.rename(self.failpoints / point)

    def reached(self, point, timeout_s=60.0):
        """Wait until somebody is at ``point``."""
        mark = self.failpoints / f"{point}.reached"
        until(f"the failpoint {point}", mark.exists, timeout_s)
        mark.unlink()

    def log(self, name):
        return self.site.folder / f"{name}.log"

    def answers(self):
        """Whether the web server shows the code location."""
        self._alive("web")
        with contextlib.suppress(OSError):
            return self.live("flight_delays_stream") is not None and self._loaded()
        return False

    def tags(self, run_id):
        """The tags of a run, those that Dagster's pages and API leave out too."""
        with dg.DagsterInstance.from_config(str(self.site.home)) as instance:
            run = instance.get_run_by_id(run_id)
            return {} if run is None else dict(run.tags)

    def pid(self, run_id):
        """The process of a run, once it has said which it is."""
        until(f"the process of run {run_id}", lambda: TAG_PID in self.tags(run_id), 60, every_s=0.3)
        return int(self.tags(run_id)[TAG_PID].partition("@")[0])

    def kill_run(self, run_id, tree=False):
        """kill -9 for the process of a run; with ``tree`` for its JVM and Spark's Python processes at the same moment
        too, as when a machine goes.
        """
        process = psutil.Process(self.pid(run_id))
        assert process.pid in of_session(self.processes["code"].pid), "not a process of this test"
        family = [process, *(process.children(recursive=True) if tree else [])]
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for member in family:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(member.pid, number)

    def _loaded(self):
        query = "query { repositoriesOrError { ... on RepositoryConnection { nodes { name } } } }"
        return bool(self.graphql(query)["repositoriesOrError"].get("nodes"))

    def _code_answers(self):
        self._alive("code")
        with contextlib.suppress(OSError), socket.create_connection((HOST, self.code_port), 1):
            return True
        return False

    def _alive(self, name):
        assert self.processes[name].poll() is None, self.log(name).read_text()[-3000:]
