"""The system under test: a stream from the workload's topic to a topic of its own, as processes that can be killed."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import psutil

from dagster_exactly_once.runs.failures import diagnose
from exactly_once.kafka.connection import Connection
from exactly_once_local.cluster.spark_cluster import NO_PYTHON, SparkCluster
from faultlab.driver_line import DriverLine
from faultlab.points import OF_STREAMS, Points
from faultlab.state import TRANSFORM, settings_of
from faultlab.workload import ORIGIN_COLUMN, SELECT, Workload
from testkit import processes
from testkit.broker import create_topic, fresh_name
from testkit.processes import Timeout
from testkit.stream import ROOT, Ended, Job, Refused, Run, SparkDriver, python_workers

#: A driver that does not say in this time whether its query runs is paused.
PAUSED_S = 5.0

#: Two tasks at once, each tried up to four times, as on a cluster.
LOCAL = "local[2,4]"

#: In the command of an executor's JVM.
EXECUTOR = "CoarseGrainedExecutorBackend"

#: Why a stream does not run whose process is gone.
GONE = "no process"


class System(Protocol):
    """A stream under test, as an operator handles it. One thread starts it; faults come from another.

    Attributes
    ----------
    name : str
        For reports.
    topic : str
        Its output. Records have the keys of the input, and :func:`faultlab.workload.place` as values.
    points : tuple of str
        Points of the protocol that :meth:`arm` knows.
    roles : tuple of str
        What :meth:`pids` can find: "driver" (its JVM), "python" (the driver's), "worker" (the Python of a task),
        "executor" (its JVM).
    """

    name: str
    topic: str
    points: tuple[str, ...]

    @property
    def roles(self) -> tuple[str, ...]: ...

    def start(self) -> None:
        """Start the stream, in a new process where the old one is dead. Returns when it runs.

        Raises
        ------
        Stopped
            It did not start, or died while it did.
        """

    def ended(self) -> str | None:
        """Return why the stream does not run (an error's code, or a short text); None while it runs, or is paused."""

    def kill(self) -> None:
        """Kill everything with ``kill -9`` at one moment. It does nothing when nothing runs."""

    def pause(self) -> None:
        """SIGSTOP of everything."""

    def resume(self) -> None:
        """SIGCONT of everything."""

    def drain(self, timeout_s: float) -> None:
        """Write what is in the input and end in order. Called when no fault is left; whatever ran is stopped first.

        Raises
        ------
        Stopped
            It did not end well.
        """

    def desert(self) -> None:
        """SIGSTOP of everything, and forget it: the next start is that of a second process beside the first."""

    def wake(self) -> None:
        """SIGCONT of everything that was deserted. It is killed before a drain."""

    def close(self) -> None:
        """Leave no process behind."""

    def pids(self, role: str) -> list[int]:
        """Return the processes of a role, in the order of their ids; empty without it."""

    def arm(self, point: str, action: str) -> None:
        """Make the next process that comes to one of :attr:`points` do an action of :mod:`exactly_once.failpoints`."""

    def has_reached(self, point: str) -> bool:
        """Return whether one did."""

    def process_at(self, point: str) -> int:
        """Return which one did; 0: none."""

    def disarm(self, point: str) -> None:
        """Take the point back, reached or not."""


class Stopped(Exception):
    """The stream does not run; the text begins with the error's code, where there is one."""


@dataclass
class SparkSystem(Points):
    """The sink of this project, in a Spark driver of its own.

    Parameters
    ----------
    workload : Workload
    connection : Connection
        The cluster as the stream sees it: through a proxy, if there is one.
    folder : Path
        For checkpoint, drivers and failpoints.
    options : mapping, optional
        Options of the sink beside connection, id, topic and checkpoint.
    participants : list of dict, optional
        Further outputs, as :attr:`testkit.stream.Job.participants`.
    checkpoint : str
        A path, or the URI of a folder that Spark and :mod:`exactly_once.checkpoint` read; by default in ``folder``.
    cluster : SparkCluster, optional
        For the executors; without it, tasks run in the driver's JVM.
    origin : bool
        Whether records have the header :data:`faultlab.workload.ORIGIN`, by which the product's checker compares the
        whole output with the whole input.
    state : str
        One of :data:`faultlab.state.STORES`: the stream drops what its input has twice. Empty: it has no state.
    sink_id : str
        By default a new one.
    topic : str
        An output that is there; by default a new one.
    """

    workload: Workload
    connection: Connection
    folder: Path
    options: Mapping[str, str] = field(default_factory=dict)
    participants: list[dict[str, Any]] | None = None
    checkpoint: str = ""
    name: str = "kafka_exactly_once"
    points: tuple[str, ...] = OF_STREAMS
    cluster: SparkCluster | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    #: At most so many offsets in a batch: batches stay short, and a stream that was away has several to write.
    per_batch: int = 1000
    origin: bool = False
    state: str = ""
    sink_id: str = ""
    topic: str = ""

    def __post_init__(self) -> None:
        self.sink_id = self.sink_id or fresh_name("lab")
        servers = self.workload.connection.bootstrap_servers
        self.topic = self.topic or create_topic(servers, f"{self.sink_id}-out", 4)
        self.checkpoint = self.checkpoint or str(self.folder / "checkpoint")
        self.failpoints = self.folder / "failpoints"
        self.failpoints.mkdir(parents=True)
        self.drivers = 0
        self._driver: SparkDriver | None = None
        self._run: Run | None = None
        self._zombies: list[SparkDriver] = []
        self._lock = threading.Lock()  # between the thread that starts and the one that kills
        #: Between its drivers and their executors.
        self.line = DriverLine(self._worker_of) if self.cluster is not None else None

    def job(self) -> Job:
        """Return the query, as data."""
        options = {
            **self.connection.spark(),
            "sink.id": self.sink_id,
            "topic": self.topic,
            "checkpointLocation": self.checkpoint,
            **self.options,
        }
        source = self.workload.source(self.connection, self.per_batch)
        select = [*SELECT, *([ORIGIN_COLUMN] if self.origin else [])]
        transform = TRANSFORM if self.state else ""
        return Job(source, options, select, transform, participants=self.participants)

    # -- an operator's hands -----------------------------------------------------------------------------------------

    def start(self) -> None:
        self._begin(self.job().until_stopped())

    def ended(self) -> str | None:
        driver, run = self._driver, self._run
        if driver is None or not driver.alive:
            return GONE
        if run is None:
            return "not started"
        try:
            now = Ended(**driver.ask("wait", PAUSED_S, run=run.run_id, seconds=0))
        except Timeout:  # it is paused
            return None
        except (AssertionError, OSError):
            return GONE
        return None if now.active else _why(now)

    def kill(self) -> None:
        with self._lock:
            driver, self._driver, self._run = self._driver, None, None
        if driver is not None:
            driver.close()

    def pause(self) -> None:
        if (driver := self._driver) is not None:
            driver.freeze()

    def resume(self) -> None:
        if (driver := self._driver) is not None:
            driver.thaw()

    def desert(self) -> None:
        with self._lock:
            driver, self._driver, self._run = self._driver, None, None
        if driver is not None:
            driver.freeze()
            self._zombies.append(driver)

    def wake(self) -> None:
        for driver in self._zombies:
            driver.thaw()

    def drain(self, timeout_s: float) -> None:
        self._end_zombies()
        self.stop()
        run = self._begin(self.job())
        try:
            ended = run.end(timeout_s)
        except AssertionError as e:
            self.kill()
            raise Stopped(str(e)) from None
        if ended.failure is not None:
            raise Stopped(_why(ended))

    def stop(self) -> None:
        """query.stop(), where a query runs; kill -9 where that does not return."""
        driver, run = self._driver, self._run
        if driver is None or run is None:
            return
        try:
            run.stop()()
        except (AssertionError, OSError):
            self.kill()
        self._run = None

    def close(self) -> None:
        self.kill()
        self._end_zombies()
        if self.line is not None:
            self.line.close()

    # -- for faults --------------------------------------------------------------------------------------------------

    @property
    def roles(self) -> tuple[str, ...]:
        tasks = (("worker",) if self._has_python_tasks else ()) + (("executor",) if self.cluster is not None else ())
        return ("driver", "python", *tasks)

    @property
    def _has_python_tasks(self) -> bool:
        return self.participants is not None

    def pids(self, role: str) -> list[int]:
        driver = self._driver
        if driver is None or not driver.alive:
            return []
        if role == "python":
            return [driver.pid]
        if role == "worker":
            sessions = [driver.pid, *(self.cluster.workers.values() if self.cluster is not None else ())]
            return sorted(pid for session in sessions for pid in python_workers(session))
        if role == "driver":
            return sorted(p for p in processes.of_session(driver.pid) if "SparkSubmit" in processes.command_of(p))
        if role == "executor" and self.cluster is not None:
            of_workers = set().union(*(processes.of_session(pid) for pid in self.cluster.workers.values()))
            return sorted(p for p in of_workers if EXECUTOR in processes.command_of(p))
        return []

    def _worker_of(self, port: int) -> int:
        """Return the Spark worker whose executor connects from this port; 0: none that runs."""
        assert self.cluster is not None
        for number, session in self.cluster.workers.items():
            for pid in processes.of_session(session):
                with contextlib.suppress(psutil.Error):
                    if any(c.laddr and c.laddr.port == port for c in psutil.Process(pid).net_connections("tcp")):
                        return number
        return 0

    def _end_zombies(self) -> None:
        while self._zombies:
            self._zombies.pop().close()

    def _begin(self, job: Job) -> Run:
        try:
            with self._lock:
                driver = self._driver
                if driver is not None and not driver.alive:
                    self._zombies.append(driver)  # its JVM may outlive its Python
                if driver is None or not driver.alive:
                    driver = self._driver = self._launch()
            run = driver.start(job)
        except Refused as e:
            refusal = Ended(False, str(e))
            if refusal.code is None:  # its JVM is gone
                self.kill()
            raise Stopped(_why(refusal)) from None
        except (AssertionError, OSError) as e:  # it was killed meanwhile
            self.kill()
            raise Stopped(f"{GONE}: {str(e).splitlines()[0]}") from None
        self._run = run
        return run

    def _launch(self) -> SparkDriver:
        self.drivers += 1
        environment = {**self.environment, "EXACTLY_ONCE_FAILPOINTS": str(self.failpoints)}
        conf = {**(settings_of(self.state) if self.state else {}), **self.conf}
        master = LOCAL
        if self.cluster is not None and self.line is not None:
            master = self.cluster.master
            seen = {"EXACTLY_ONCE_FAILPOINTS": str(self.failpoints)}
            if self._has_python_tasks:
                seen["PYTHONPATH"] = str(ROOT)
            else:
                environment["PYSPARK_PYTHON"] = NO_PYTHON
            conf |= {f"spark.executorEnv.{name}": value for name, value in seen.items()}
            conf |= {"spark.executor.memory": "512m", **self.line.conf()}
        return SparkDriver(self.folder / f"driver-{self.drivers}", master, conf, environment)


def _why(ended: Ended) -> str:
    if not ended.failure:
        return "ended in order"
    return f"{diagnose(RuntimeError(ended.failure)).code}: {' '.join(ended.sentence.split())[:200]}"
