"""Flink's exactly-once Kafka sink as a system under test: a JobManager, a TaskManager, and an operator's hands."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import KafkaException

from benchmarks.flink import MANAGER, START_S, STOP_S, WORKER, Cluster, FlinkFailed, await_slots, configure, launch
from exactly_once.kafka.connection import Connection
from exactly_once_local.cluster.guard import end_all
from faultlab.soak.reading import read_from
from faultlab.system import GONE, Stopped
from faultlab.workload import Workload
from testkit.broker import create_topic, fresh_name
from testkit.processes import send

#: Of the output, as for the other systems.
PARTITIONS = 4

#: Without a new record for so long, nothing more is to come: longer than a job's restart.
QUIET_S = 40.0

#: Of a job that is there, whether it works just now or recovers by itself.
ALIVE = ("INITIALIZING", "CREATED", "RUNNING", "RESTARTING", "FAILING", "RECONCILING")

#: What a standalone cluster needs, so that its operator finds the newest checkpoint when the JobManager is gone.
CONFIGURATION = {"execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION"}


@dataclass
class FlinkSystem:
    """A job of Flink SQL on a standalone cluster, whose operator submits it again from its newest checkpoint when the
    JobManager, which has nothing to recover it from, was lost.

    Parameters
    ----------
    connection : Connection
        The cluster as the job sees it.
    timeout_ms : int
        ``transaction.timeout.ms`` of its transactions.
    """

    workload: Workload
    connection: Connection
    folder: Path
    timeout_ms: int
    name: str = "Flink exactly once"
    points: tuple[str, ...] = ()
    roles: tuple[str, ...] = ("driver", "worker")
    submissions: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.run = fresh_name("flink")
        self.topic = create_topic(self.workload.connection.bootstrap_servers, f"{self.run}-out", PARTITIONS)
        self._home = self.folder / "flink"
        self._cluster = Cluster(self._home, self.connection.bootstrap_servers, configure(self._home, CONFIGURATION))
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._launched, self._submitted = 0, False
        self._lock = threading.Lock()  # between the thread that starts and the one that kills

    # -- an operator's hands -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the system, as :meth:`faultlab.system.System.start` does.

        A lost TaskManager is replaced, and Flink restarts its job itself; a lost JobManager takes the job with it.
        """
        try:
            if not self._runs(MANAGER):
                self.kill()
                self._submitted = False
            with self._lock:
                for role in (MANAGER, WORKER):
                    if not self._runs(role):
                        self._launch(role)
            if not self._submitted or not self._has_job():
                await_slots(self._cluster.rest, list(self._processes.values()), self._home)
                self._submit()
            self._await_running()
        except (FlinkFailed, OSError, subprocess.SubprocessError) as e:
            raise Stopped(
                f"{GONE if not self._runs(MANAGER) else 'failed'}: {' '.join(str(e).split())[-300:]}"
            ) from None

    def ended(self) -> str | None:
        for role in (MANAGER, WORKER):
            if not self._runs(role):
                return f"{GONE}: {role}"
        if not self._submitted:
            return "not started"
        try:
            return None if self._has_job() else "failed: the job is over"
        except OSError:  # paused, or just killed
            return None

    def kill(self) -> None:
        with self._lock:
            processes, self._processes = self._processes, {}
        end_all(processes.values(), graceful_s=0)

    def pause(self) -> None:
        self._send(signal.SIGSTOP)

    def resume(self) -> None:
        self._send(signal.SIGCONT)

    def desert(self) -> None:
        raise NotImplementedError("a second JobManager would take the ports of the first")

    def wake(self) -> None:
        raise NotImplementedError("nothing was deserted")

    def drain(self, timeout_s: float) -> None:
        """Drain the system, as :meth:`faultlab.system.System.drain` does.

        A job that reads Kafka does not end: it is cancelled when each record of the input is visible, or when nothing
        more comes.
        """
        end = time.monotonic() + timeout_s
        if self.ended() is not None:
            self.start()
        owed = {value for _, value in self.workload.expected()}
        seen, came = set[str](), time.monotonic()
        while owed - seen and time.monotonic() < min(end, came + QUIET_S):
            if (why := self.ended()) is not None:
                raise Stopped(why)
            with contextlib.suppress(KafkaException):
                places, _ = read_from(self.workload.connection, self.topic, PARTITIONS, {})
                if more := {p.value for p in places} - seen:
                    seen |= more
                    came = time.monotonic()
            time.sleep(0.5)
        with contextlib.suppress(OSError):
            self._cluster.cancel()
            _until(lambda: not self._has_job(), START_S)
        end_all(self._processes.values(), graceful_s=STOP_S)
        if time.monotonic() >= end:
            raise Stopped(f"failed: {len(owed - seen)} records are not visible after {timeout_s:.0f} s")

    def close(self) -> None:
        self.kill()

    # -- for faults --------------------------------------------------------------------------------------------------

    def pids(self, role: str) -> list[int]:
        """Return the processes of a role: the JobManager is the "driver", the TaskManager the "worker"."""
        name = {"driver": MANAGER, "worker": WORKER}.get(role)
        return [self._processes[name].pid] if name is not None and self._runs(name) else []

    def arm(self, point: str, action: str) -> None:
        raise NotImplementedError("Flink has none of this project's points")

    def has_reached(self, point: str) -> bool:
        return False

    def process_at(self, point: str) -> int:
        return 0

    def disarm(self, point: str) -> None:
        return None

    # -- plumbing ----------------------------------------------------------------------------------------------------

    def _runs(self, role: str) -> bool:
        process = self._processes.get(role)
        return process is not None and process.poll() is None

    def _has_job(self) -> bool:
        return any(state in ALIVE for state in self._cluster.jobs())

    def _launch(self, role: str) -> None:
        self._launched += 1
        log = self._home / f"{role.split()[-1]}-{self._launched}.log"
        self._processes[role] = launch(role, self._home, log)

    def _submit(self) -> None:
        newest = newest_checkpoint(self._home / "checkpoints")
        self.submissions += 1
        sql = statements(
            self.workload.topic, self.topic, self._cluster.bootstrap_servers, self.run, self.timeout_ms, newest
        )
        self._cluster.submit(sql, f"{self.run}-{self.submissions}")
        self._submitted = True

    def _await_running(self) -> None:
        def runs() -> bool:
            for role in (MANAGER, WORKER):
                if not self._runs(role):
                    raise FlinkFailed(f"the {role} is gone")
            return "RUNNING" in self._cluster.jobs()

        if not _until(runs, START_S):
            raise FlinkFailed(f"the job does not run after {START_S:.0f} s: {self._cluster.jobs()}")

    def _send(self, number: signal.Signals) -> None:
        send([process.pid for process in self._processes.values()], number)


def newest_checkpoint(folder: Path) -> Path | None:
    """Return the newest complete checkpoint of any job in Flink's folder of checkpoints."""
    complete = [metadata for metadata in folder.glob("*/chk-*/_metadata") if metadata.stat().st_size]
    return max(complete, key=lambda m: m.stat().st_mtime).parent if complete else None


def statements(source: str, out: str, servers: str, run: str, timeout_ms: int, checkpoint: Path | None) -> str:
    """Return the SQL client's file.

    Its job writes what :data:`faultlab.workload.SELECT` does, from ``checkpoint`` on.
    """
    shared = {
        "connector": "kafka",
        "properties.bootstrap.servers": servers,
        "key.format": "raw",
        "key.fields": "k",
        "value.format": "raw",
        "value.fields-include": "EXCEPT_KEY",
    }
    reading = {
        **shared,
        "topic": source,
        "properties.group.id": run,
        "properties.isolation.level": "read_committed",
        "scan.startup.mode": "earliest-offset",
    }
    writing = {
        **shared,
        "topic": out,
        "sink.delivery-guarantee": "exactly-once",
        "sink.transactional-id-prefix": run,
        "properties.transaction.timeout.ms": str(timeout_ms),
    }
    settings = {"table.dml-sync": "false", "pipeline.name": run}
    if checkpoint is not None:
        settings["execution.state-recovery.path"] = checkpoint.as_uri()
    place = f"'{source}-' || CAST(p AS STRING) || '-' || CAST(o AS STRING) || '|' || CAST(v AS STRING)"
    metadata = "p INT METADATA FROM 'partition' VIRTUAL, o BIGINT METADATA FROM 'offset' VIRTUAL"
    return "\n".join(
        [
            *(f"SET '{name}' = '{value}';" for name, value in settings.items()),
            f"CREATE TABLE source (k BYTES, v BYTES, {metadata}) WITH ({_options(reading)});",
            f"CREATE TABLE sink (k BYTES, v BYTES) WITH ({_options(writing)});",
            f"INSERT INTO sink SELECT k, CAST({place} AS BYTES) FROM source;\n",
        ]
    )


def _options(values: dict[str, str]) -> str:
    return ", ".join(f"'{name}' = '{value}'" for name, value in values.items())


def _until(condition: Callable[[], bool], timeout_s: float) -> bool:
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            if condition():
                return True
        time.sleep(0.2)
    return False
