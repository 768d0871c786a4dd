"""A Spark standalone cluster on this machine: a master and workers, from the PySpark that is installed.

It shows what a stream needs when its tasks run elsewhere than its driver: executors that are JVMs alone. The processes
never outlive the one that started them, however it dies.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
import urllib.request
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any

from exactly_once.errors import ExactlyOnceError
from exactly_once.sparkenv.java import find_java
from exactly_once_local.cluster.guard import end_all, guarded
from exactly_once_local.ports import HOST

#: Time for a JVM to start: seconds, unless two cores are busy with other ones.
START_BUDGET_S = 90.0
#: Memory for executors: the heap of one, and what Spark adds to it.
WORKER_MEMORY = "1g"
STOP_BUDGET_S = 10.0

#: Value of ``PYSPARK_PYTHON`` for executors without Python: a task that asks for it fails.
NO_PYTHON = "/nonexistent/python"

_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
_MASTER_STARTED = re.compile(r"Starting Spark master at (spark://\S+)")
_PAGE_STARTED = re.compile(r"Bound MasterWebUI to \S+, and started at (http://\S+)")
_WORKER_STARTED = "Successfully registered with master"
#: Variables that no executor gets: its environment is its worker's, which shares no checkout with this process.
_NOT_INHERITED = ("PYTHONPATH", "SPARK_CONF_DIR", "SPARK_LOCAL_DIRS", "SPARK_MASTER_HOST", "SPARK_WORKER_CORES")


class ClusterFailed(ExactlyOnceError):
    """A process of the Spark cluster did not start."""

    code = "EO-CLUSTER"
    default_safe = "Nothing is running"


class SparkCluster:
    """A master and workers of this process. A context manager.

    Parameters
    ----------
    folder : Path
        For logs and for the workers' files.
    workers : int
        How many, each with one core for executors.
    """

    def __init__(self, folder: Path, *, workers: int = 2):
        self.folder = Path(folder).absolute()
        self._count = workers
        self._master: subprocess.Popen[bytes] | None = None
        self._workers: dict[int, subprocess.Popen[bytes]] = {}
        self._page = ""
        self.master = ""  #: ``spark://host:port``, once it has started

    def start(self) -> SparkCluster:
        """Start the master, then the workers, and wait until all of them are registered.

        Raises
        ------
        ClusterFailed
            With the end of the log of the process that did not start.
        JavaUnusable
        """
        try:
            self._master = self._launch("master", _MASTER, "--host", HOST, "--port", "0", "--webui-port", "0")
            self.master = self._await("master", self._master, _MASTER_STARTED)
            self._page = self._await("master", self._master, _PAGE_STARTED)
            for number in range(1, self._count + 1):
                self._workers[number] = self._launch_worker(number)
            for number, worker in self._workers.items():
                self._await(f"worker-{number}", worker, re.compile(f"({_WORKER_STARTED})"))
        except BaseException:
            self.stop(graceful_s=0)
            raise
        return self

    def stop(self, graceful_s: float = STOP_BUDGET_S) -> None:
        """Stop all its processes, executors included; after ``graceful_s``, by force."""
        end_all([*self._workers.values(), *([self._master] if self._master else [])], graceful_s=graceful_s)
        self._workers, self._master = {}, None

    def start_worker(self, number: int) -> None:
        """Start a worker whose process is gone, and return at once: it registers by itself."""
        if number not in self.workers:
            self._workers[number] = self._launch_worker(number)

    @property
    def workers(self) -> dict[int, int]:
        """The process id of each worker that runs, which is also that of its session: its executors' too."""
        return {number: worker.pid for number, worker in self._workers.items() if worker.poll() is None}

    def applications(self) -> list[dict[str, Any]]:
        """Return what the master says of each application, newest first: ``name``, ``cores``, ``state`` and more."""
        with urllib.request.urlopen(f"{self._page}/json/", timeout=10) as answer:
            told = json.load(answer)
        every = [*told.get("activeapps", []), *told.get("completedapps", [])]
        return sorted(every, key=lambda application: application["starttime"], reverse=True)

    def executors(self, application: str) -> dict[int, int]:
        """Return how many executors of an application (its id) each worker has started."""
        return {
            number: len([p for p in (self._place(number) / application).glob("*") if p.name.isdigit()])
            for number in range(1, self._count + 1)
        }

    def __enter__(self) -> SparkCluster:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _place(self, number: int) -> Path:
        return self.folder / f"worker-{number}"

    def _launch_worker(self, number: int) -> subprocess.Popen[bytes]:
        options = ["--host", HOST, "--webui-port", "0", "--work-dir", str(self._place(number))]
        options += ["--cores", "1", "--memory", WORKER_MEMORY]
        return self._launch(f"worker-{number}", _WORKER, *options, self.master, **self._variables(number))

    def _variables(self, number: int) -> Mapping[str, str]:
        """Further environment of a worker, and so of its executors."""
        return {}

    def _launch(self, name: str, main: str, *arguments: str, **variables: str) -> subprocess.Popen[bytes]:
        (self.folder / "tmp").mkdir(parents=True, exist_ok=True)
        home = spark_home()
        java = [find_java().executable, "-Xmx256m", "-XX:+UseSerialGC", "-XX:-UsePerfData"]
        java += [f"-Djava.io.tmpdir={self.folder / 'tmp'}", "-cp", f"{home / 'jars'}/*", main]
        with self._log(name).open("w") as log:
            return guarded([*java, *arguments], log, self.folder, {**_environment(self.folder, home), **variables})

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def _await(self, name: str, process: subprocess.Popen[bytes], said: re.Pattern[str]) -> str:
        deadline = time.monotonic() + START_BUDGET_S
        while process.poll() is None and time.monotonic() < deadline:
            if found := said.search(self._log(name).read_text(errors="replace")):
                return found[1]
            time.sleep(0.05)
        tail = "\n".join(self._log(name).read_text(errors="replace").splitlines()[-10:])
        how = "did not start in time" if process.poll() is None else "exited while it was starting"
        raise ClusterFailed(f"Spark's {name} {how}: {tail}", f"The whole log is {self._log(name)}")


def spark_home() -> Path:
    """Return the folder of the installed PySpark, which is a whole Spark."""
    spec = find_spec("pyspark")  # not an import, which would take seconds
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


def _environment(folder: Path, home: Path) -> Mapping[str, str]:
    return {
        **{name: value for name, value in os.environ.items() if name not in _NOT_INHERITED},
        "SPARK_HOME": str(home),
        "SPARK_SCALA_VERSION": "2.13",  # the script that starts executors would look for a build of Spark
        "SPARK_LOCAL_IP": HOST,
        "SPARK_LOCAL_DIRS": str(folder / "tmp"),
    }
