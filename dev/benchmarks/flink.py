"""Flink as a session cluster of two processes, and its Kafka sink as two of the systems that are compared."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from benchmarks.flink_files import classpath
from benchmarks.flink_sql import STATEMENTS, script
from benchmarks.systems import Job, fresh
from benchmarks.workloads import BenchmarkWorkload
from exactly_once.sparkenv.java import find_java
from exactly_once_local.cluster.guard import end_all, guarded
from exactly_once_local.ports import HOST, free_port

EXACTLY_ONCE, AT_LEAST_ONCE = "Flink exactly once", "Flink at least once"

#: As many tasks at once as Spark has with local[2].
PARALLELISM = 2

#: Between two checkpoints: about as long as a micro-batch of this benchmark takes.
CHECKPOINT_S = 2.0

#: A start takes some 10 s; a job of this benchmark takes minutes at most.
START_S, JOB_S = 120.0, 900.0

#: To end in order, for a process of another system.
STOP_S = 15.0

MANAGER, WORKER, CLIENT = "Flink JobManager", "Flink TaskManager", "Flink SQL client"
_MAIN = {
    MANAGER: "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint",
    WORKER: "org.apache.flink.runtime.taskexecutor.TaskManagerRunner",
    CLIENT: "org.apache.flink.table.client.SqlClient",
}
#: Heaps: the TaskManager's is that of 2 GiB for tasks and 128 MiB for Flink itself.
_HEAP = {MANAGER: "-Xmx512m", WORKER: "-Xmx2176m", CLIENT: "-Xmx256m"}

#: What Flink's own scripts open of Java 17 for its serialisers.
_OPENED = ("java.lang", "java.net", "java.io", "java.nio", "java.text", "java.time", "java.util", "sun.nio.ch")
_MORE_OPENED = (
    "java.lang.reflect",
    "java.util.concurrent",
    "java.util.concurrent.atomic",
    "java.util.concurrent.locks",
)

_LOG4J = """\
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
appender.console.type = CONSOLE
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %-5p %c{1}: %m%n
"""


class FlinkFailed(RuntimeError):
    """Flink did not start, or a job failed; its log says why."""


@dataclass(frozen=True)
class Cluster:
    """A running cluster: the folder of configuration, logs and checkpoints, and the port of its REST API."""

    folder: Path
    bootstrap_servers: str
    rest: int

    def submit(self, sql: str, run: str) -> None:
        """Run a file of the SQL client to the end of its job.

        Raises
        ------
        FlinkFailed
        """
        path = self.folder / f"{run}.sql"
        path.write_text(sql, encoding="utf-8")
        log = self.folder / f"{run}.log"
        client = _start(CLIENT, self.folder, log, "embedded", "-f", str(path))
        try:
            code = client.wait(JOB_S)
        finally:
            end_all([client], graceful_s=STOP_S)
        said = log.read_text(errors="replace")
        if code != 0 or "[ERROR]" in said:
            raise FlinkFailed(f"{run}: {said[-2000:]}")

    @contextmanager
    def running(self, sql: str, run: str) -> Iterator[None]:
        """Run an endless job until the block ends; raises as :meth:`submit`."""
        self.submit(sql, run)
        try:
            yield
        finally:
            self.cancel()

    def jobs(self) -> list[str]:
        """Return the states of its jobs, whatever they are; raises OSError when the JobManager does not answer."""
        return [job["status"] for job in json.loads(self._ask("GET", "/jobs"))["jobs"]]

    def cancel(self) -> None:
        """Cancel every job that runs."""
        for job in json.loads(self._ask("GET", "/jobs"))["jobs"]:
            if job["status"] == "RUNNING":
                self._ask("PATCH", f"/jobs/{job['id']}?mode=cancel")

    def _ask(self, method: str, path: str) -> str:
        request = urllib.request.Request(f"http://{HOST}:{self.rest}{path}", method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            text: str = answer.read().decode()
            return text


def configure(folder: Path, more: Mapping[str, object] = MappingProxyType({})) -> int:
    """Write the configuration of a cluster, with ``more`` settings; return the port of its REST API."""
    (folder / "tmp").mkdir(parents=True, exist_ok=True)
    rpc = free_port()
    rest = free_port({rpc})
    (folder / "config.yaml").write_text(_config(folder, rpc, rest, more))
    (folder / "log4j2.properties").write_text(_LOG4J)
    return rest


def launch(role: str, folder: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start the JobManager or a TaskManager of the configuration in ``folder``."""
    return _start(role, folder, log, "-c", str(folder), "--configDir", str(folder))


@contextmanager
def cluster(folder: Path, bootstrap_servers: str) -> Iterator[Cluster]:
    """Start a JobManager and a TaskManager; end them when the block ends."""
    rest = configure(folder)
    processes = []
    try:
        for role in (MANAGER, WORKER):
            processes.append(launch(role, folder, folder / f"{role.split()[-1]}.log"))
        await_slots(rest, processes, folder)
        yield Cluster(folder, bootstrap_servers, rest)
    finally:
        end_all(processes, graceful_s=STOP_S)


@dataclass(frozen=True)
class BenchmarkFlink:
    """Flink SQL on the cluster with one delivery guarantee."""

    cluster: Cluster
    name: str
    interval_s: float | None = CHECKPOINT_S
    batches: bool = False

    def supports(self, workload: BenchmarkWorkload) -> bool:
        """Return whether the workload is written in SQL."""
        return workload.name in STATEMENTS

    def group(self, words: Sequence[str]) -> str | None:
        """Return which of the three processes it is."""
        java = bool(words) and "java" in words[0]  # not the guard beside it
        return next((role for role, main in _MAIN.items() if java and main in words), None)

    def run(self, job: Job) -> None:
        """Submit the job and wait for its end."""
        run = fresh("flink")
        guarantee = "exactly-once" if self.name == EXACTLY_ONCE else "at-least-once"
        servers = self.cluster.bootstrap_servers
        self.cluster.submit(script(job.workload.name, servers, job.source, job.out, guarantee, run), run)


def _config(folder: Path, rpc: int, rest: int, more: Mapping[str, object]) -> str:
    values = {
        "jobmanager.rpc.address": HOST,
        "jobmanager.rpc.port": rpc,
        "jobmanager.bind-host": HOST,
        "rest.address": HOST,
        "rest.port": rest,
        "rest.bind-address": HOST,
        "taskmanager.host": HOST,
        "taskmanager.bind-host": HOST,
        "taskmanager.numberOfTaskSlots": PARALLELISM,
        # What Flink's scripts would derive from the size of the process.
        "taskmanager.cpu.cores": float(PARALLELISM),
        "taskmanager.memory.task.heap.size": "2g",
        "taskmanager.memory.task.off-heap.size": "128m",
        "taskmanager.memory.managed.size": "128m",
        "taskmanager.memory.framework.heap.size": "128m",
        "taskmanager.memory.framework.off-heap.size": "128m",
        "taskmanager.memory.jvm-metaspace.size": "256m",
        "taskmanager.memory.jvm-overhead.min": "256m",
        "taskmanager.memory.jvm-overhead.max": "256m",
        "taskmanager.memory.network.min": "128m",
        "taskmanager.memory.network.max": "128m",
        "parallelism.default": PARALLELISM,
        "execution.target": "remote",
        "execution.checkpointing.interval": f"{CHECKPOINT_S:g} s",
        "execution.checkpointing.dir": (folder / "checkpoints").as_uri(),
        "io.tmp.dirs": str(folder / "tmp"),
        **more,
    }
    return "".join(f"{name}: {value}\n" for name, value in values.items())


def _start(role: str, folder: Path, log: Path, *arguments: str) -> subprocess.Popen[bytes]:
    opened = [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in (*_OPENED, *_MORE_OPENED)]
    command = [find_java().executable, _HEAP[role], "-XX:-UsePerfData", f"-Djava.io.tmpdir={folder / 'tmp'}"]
    command += [*opened, f"-Dlog4j.configurationFile={folder / 'log4j2.properties'}"]
    command += ["-cp", classpath(role == CLIENT), _MAIN[role], *arguments]
    with log.open("w") as out:
        return guarded(command, out, folder, {**os.environ, "FLINK_CONF_DIR": str(folder)})


def await_slots(rest: int, processes: Sequence[subprocess.Popen[bytes]], folder: Path) -> None:
    """Wait until the TaskManager has offered its slots."""
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        if any(p.poll() is not None for p in processes):
            raise FlinkFailed(f"a process of Flink ended at its start; see the logs in {folder}")
        with suppress(OSError), urllib.request.urlopen(f"http://{HOST}:{rest}/overview", timeout=5) as answer:
            if f'"slots-available":{PARALLELISM}' in answer.read().decode():
                return
        time.sleep(0.5)
    raise FlinkFailed(f"Flink did not start within {START_S:.0f} s; see the logs in {folder}")
