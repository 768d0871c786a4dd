"""Streams for tests: deterministic input, a job, and a Spark driver in a session of its own that can be killed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from exactly_once.errors import code_in, sentence_in
from exactly_once.kafka.connection import Connection
from exactly_once.spark.session import file_manager
from exactly_once.sparkenv.jars import session_jars
from testkit import processes
from testkit.processes import Timeout, until

ROOT = Path(__file__).resolve().parents[2]

#: Small and quick to start, not fast: batches of tests have a few hundred rows.
CONF = {
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.checkpointFileManagerClass": file_manager("FileSystemBased"),
    # one input file is one part: no file fits beside another one
    "spark.sql.files.openCostInBytes": "1048576",
    "spark.sql.files.maxPartitionBytes": "1048576",
}

#: What makes Spark 4.2 take names of sources, and keep offsets by them.
NAMED_SOURCES = {
    "spark.sql.streaming.queryEvolution.enableSourceEvolution": "true",
    "spark.sql.streaming.offsetLog.formatVersion": "2",
}

#: How long a driver may take for anything on a busy machine of two cores.
PATIENCE_S = 90.0

#: The rows of a batch write, over their numbers.
NUMBERED = ("concat('k', id) key", "concat('w-', id) value")

Row = tuple[str, str]  # key, value; each value is unique in its test


class Input:
    """Batches of text files, each batch visible at one moment. Line: ``key|value``; a key stays in one part of every
    batch.
    """

    def __init__(self, folder: Path, parts: int = 4, rows: int = 50):
        self._incoming, self.folder = folder / "incoming", folder / "input"
        self._incoming.mkdir(parents=True)
        self.folder.mkdir()
        self.parts, self.rows = parts, rows
        self.batches: list[list[list[Row]]] = []

    def add(self, batches: int = 1) -> None:
        """Add that many micro-batches."""
        for _ in range(batches):
            self.add_rows(
                [
                    [(f"k{p}.{i % 7}", f"b{len(self.batches)}-p{p}-{i}") for i in range(self.rows)]
                    for p in range(self.parts)
                ]
            )

    def add_rows(self, parts: list[list[Row]]) -> None:
        """Add one micro-batch of these parts."""
        number = len(self.batches)
        fresh = self._incoming / f"batch-{number:03d}"
        fresh.mkdir()
        for p, rows in enumerate(parts):
            path = fresh / f"part-{p:02d}.txt"
            path.write_text("".join(f"{k}|{v}\n" for k, v in rows))
            written = time.time() - 3600 + number * 60 + p  # Spark reads in the order of these
            os.utime(path, (written, written))
        fresh.rename(self.folder / fresh.name)
        self.batches.append(parts)

    def expected(self, batches: slice = slice(None)) -> list[Row]:
        """All rows of these batches, in an order that every key must keep."""
        return [row for batch in self.batches[batches] for part in batch for row in part]

    def source(self) -> dict[str, Any]:
        """Return :attr:`Job.source`."""
        options = {
            "path": str(self.folder),
            "recursiveFileLookup": "true",
            "maxFilesPerTrigger": str(self.parts),
        }
        return {"format": "text", "options": options}


@dataclass
class Job:
    """One streaming query, as data.

    Attributes
    ----------
    transform : str
        ``module:function``, applied to the selected DataFrame with ``arguments``.
    register : bool
        Call ``exactly_once.register`` first.
    participants : list of dict, optional
        Then the batches go through ``exactly_once.foreach_batch``: each with ``class`` (``module:name``) and its
        arguments.
    """

    source: dict[str, Any]
    options: dict[str, str]
    select: list[str] = field(default_factory=lambda: ["split(value, '[|]')[0] key", "split(value, '[|]')[1] value"])
    transform: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    format: str = "kafka_exactly_once"
    trigger: dict[str, Any] = field(default_factory=lambda: {"availableNow": True})
    output_mode: str = "append"
    name: str = ""
    register: bool = True
    participants: list[dict[str, Any]] | None = None

    def until_stopped(self) -> Job:
        """Return the same query, waiting for more input."""
        return Job(**{**asdict(self), "trigger": {"processingTime": "0 seconds"}})

    def having(self, **options: str | None) -> Job:
        """Return the same query with other sink options (``_`` stands for ``.``); None takes one away."""
        changed = {**self.options, **{k.replace("_", "."): v for k, v in options.items()}}
        return Job(**{**asdict(self), "options": {k: v for k, v in changed.items() if v is not None}})


@dataclass
class Ended:
    """The end of a query."""

    active: bool
    failure: str | None

    @property
    def code(self) -> str | None:
        """The EO code of the failure."""
        return code_in(self.failure) if self.failure else None

    @property
    def sentence(self) -> str:
        """The engine's sentence in the failure, or all of its text."""
        return (sentence_in(self.failure) or self.failure) if self.failure else ""

    def with_code(self, code: str) -> Ended:
        """Assert that the failure has this code, and return this end."""
        assert self.code == code, self.failure
        return self

    def consent(self, option: str) -> dict[str, str]:
        """Return the option that the failure says to set for one start, with its value, for :meth:`Job.having`."""
        found = re.search(re.escape(option) + r"=(\S+)", self.sentence)
        assert found, f"{option} is not in: {self.sentence}"
        return {option.replace(".", "_"): found[1]}


class Run:
    """A query in a :class:`Stream`."""

    def __init__(self, driver: SparkDriver, run: str, query_id: str, checkpoint: Path):
        self.driver, self._run = driver, run
        self.query_id, self.checkpoint = query_id, checkpoint

    def end(self, timeout_s: float = PATIENCE_S) -> Ended:
        """Wait for its end."""
        ended = Ended(**self.driver.ask("wait", timeout_s + 10, run=self._run, seconds=timeout_s))
        if ended.active:
            raise Timeout(f"the query did not end within {timeout_s:g} s\n{self.driver.log_tail()}")
        return ended

    def stop(self) -> Callable[[], Any]:
        """Ask for query.stop(); the result waits until that has returned."""
        return self.driver.send("stop", run=self._run)

    @property
    def run_id(self) -> str:
        """The run id that Spark gave, for commands to the driver."""
        return self._run

    def has_ended(self) -> bool:
        """Return whether the query is over."""
        return not self.driver.ask("wait", 10, run=self._run, seconds=0)["active"]

    def is_committed(self, batch: int) -> bool:
        """Return whether Spark has written ``commits/<batch>``."""
        return (self.checkpoint / "commits" / str(batch)).exists()

    def lose_commit(self, batch: int) -> None:
        """Remove ``commits/<batch>``, as a machine that stops before the write is durable does."""
        for name in (str(batch), f".{batch}.crc"):
            (self.checkpoint / "commits" / name).unlink(missing_ok=True)

    def await_point(self, point: str) -> None:
        """Wait until a process of its driver has come to ``point``."""
        self.await_true(point, lambda: self.driver.has_reached(point))

    def await_commit(self, batch: int, timeout_s: float = PATIENCE_S) -> None:
        """Wait until Spark has written ``commits/<batch>``."""
        self.await_true(f"commits/{batch}", lambda: self.is_committed(batch), timeout_s)

    def await_true(self, what: str, condition: Callable[[], object], timeout_s: float = PATIENCE_S) -> None:
        """Wait until ``condition``; raise at once when the query fails first."""
        looked = time.monotonic()

        def happened() -> bool:
            nonlocal looked
            if condition():
                return True
            if time.monotonic() - looked > 1:
                looked = time.monotonic()
                now = Ended(**self.driver.ask("wait", 10, run=self._run, seconds=0))
                if not now.active and not condition():
                    raise AssertionError(f"the query ended before {what}: {now.failure}\n{self.driver.log_tail()}")
            return False

        until(what, happened, timeout_s)


def python_workers(session: int) -> list[int]:
    """Return the Python processes of Spark's tasks in a session: what its ``pyspark.daemon`` has forked."""
    found = []
    for pid in processes.of_session(session) - {session}:
        command = processes.command_of(pid)
        if "python" in command and "pyspark.daemon" in command and processes.parent_is(pid, "pyspark.daemon"):
            found.append(pid)
    return found


class SparkDriver:
    """A Spark application in a session of its own, so that all of it (JVM, Python daemon, workers) can be killed.

    Parameters
    ----------
    folder : Path
        Its local files, its log, and its failpoints (:meth:`arm`).
    environment : mapping, optional
        More variables of its processes.
    python : str
        The Python of the driver and of its workers.
    """

    def __init__(
        self,
        folder: Path,
        master: str = "local[2]",
        conf: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        python: str = sys.executable,
    ):
        folder.mkdir(parents=True)
        self.folder, self.failpoints, self.log = folder, folder / "failpoints", folder / "log"
        self.failpoints.mkdir()
        conf = {
            **CONF,
            "spark.jars": ",".join(session_jars()),
            "spark.local.dir": str(folder / "local"),
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            **(conf or {}),
        }
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [python, "-m", "testkit.driver"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                bufsize=1,
                cwd=folder,
                env={
                    **{k: v for k, v in os.environ.items() if k != "SPARK_LOCAL_DIRS"},
                    "PYTHONPATH": str(ROOT),
                    "PYSPARK_PYTHON": python,
                    "PYSPARK_DRIVER_PYTHON": python,
                    "EXACTLY_ONCE_FAILPOINTS": str(self.failpoints),
                    **(environment or {}),
                },
                start_new_session=True,
            )
        self._answers: dict[int, dict[str, Any]] = {}
        self._arrived = threading.Condition()
        self._sent = 0
        threading.Thread(target=self._read, daemon=True).start()
        self._write({"master": master, "conf": conf})

    # -- commands --------------------------------------------------------------------------------------------------

    def start(self, job: Job) -> Run:
        """Start a query."""
        checkpoint = Path(job.options.get("checkpointLocation", os.devnull))
        return Run(self, **self.ask("start", job=asdict(job)), checkpoint=checkpoint)

    def run(self, job: Job, timeout_s: float = PATIENCE_S) -> Ended:
        """Start a query and wait for its end."""
        try:
            return self.start(job).end(timeout_s)
        except Refused as e:
            return Ended(False, str(e))

    def complete(self, job: Job, timeout_s: float = PATIENCE_S) -> Ended:
        """Start a query and wait for its end, which must be a good one."""
        ended = self.run(job, timeout_s)
        assert ended.failure is None, f"{ended.failure}\n{self.log_tail()}"
        return ended

    def write_batch(
        self,
        options: dict[str, str],
        rows: int = 40,
        parts: int = 4,
        mode: str = "append",
        columns: Sequence[str] = NUMBERED,
    ) -> Ended:
        """Write the rows ``w-0``, ``w-1``, ... as a batch; or ``columns`` over their numbers, ``id``."""
        try:
            self.send_batch(options, rows, parts, mode, columns=columns)()
        except Refused as e:
            return Ended(False, str(e))
        return Ended(False, None)

    def send_batch(
        self,
        options: dict[str, str],
        rows: int = 40,
        parts: int = 4,
        mode: str = "append",
        register: bool = True,
        columns: Sequence[str] = NUMBERED,
    ) -> Callable[[], Any]:
        """Begin to write a batch; call what comes back to wait for its end, which raises Refused when it failed."""
        wanted: dict[str, Any] = {
            "options": options,
            "rows": rows,
            "parts": parts,
            "mode": mode,
            "columns": list(columns),
        }
        return self.send("write_batch", register=register, **wanted)

    @contextmanager
    def having(self, conf: Mapping[str, str]) -> Iterator[SparkDriver]:
        """Set the settings of its session for some steps, and unset them afterwards."""
        for name, value in conf.items():
            self.ask("conf", name=name, value=value)
        try:
            yield self
        finally:
            for name in conf:
                self.ask("unset", name=name)

    def state(self, checkpoint: Path, **options: str) -> list[dict[str, Any]]:
        """Return what a query's state store holds after its last batch.

        The rows of ``format("statestore")``, their fields as ``key.<field>`` and ``value.<field>``.
        """
        return [json.loads(row) for row in self.ask("state", checkpoint=str(checkpoint), options=options)]

    def ask(self, do: str, timeout_s: float = PATIENCE_S, **arguments: Any) -> Any:
        """Send a command and return its result."""
        return self.send(do, timeout_s, **arguments)()

    def send(self, do: str, timeout_s: float = PATIENCE_S, **arguments: Any) -> Callable[[], Any]:
        """Send a command; call what comes back to wait for its result."""
        self._await(0, PATIENCE_S)
        self._sent += 1
        number = self._sent
        self._write({"id": number, "do": do, "arguments": arguments})
        return lambda: self._await(number, timeout_s)

    # -- failpoints ------------------------------------------------------------------------------------------------

    def arm(self, point: str, action: str = "hang") -> None:
        """Make the next process that comes to ``point`` do ``action``."""
        (self.failpoints / f"{point}.reached").unlink(missing_ok=True)  # of an earlier test with this driver
        draft = self.failpoints / ".draft"
        draft.write_text(action)
        draft.rename(self.failpoints / point)

    def hold(self, job: Job, point: str, action: str = "hang") -> Run:
        """Start a query and bring it to ``point``."""
        self.arm(point, action)
        run = self.start(job)
        run.await_point(point)
        return run

    def has_reached(self, point: str) -> bool:
        """Return whether one did."""
        return (self.failpoints / f"{point}.reached").exists()

    def release(self, point: str) -> None:
        """Let the process go on that waits at ``point``."""
        (self.failpoints / f"{point}.reached").unlink()

    def who_reached(self, point: str) -> int | None:
        """Return the process that did."""
        path = self.failpoints / f"{point}.reached"
        text = path.read_text() if path.exists() else ""
        return int(text) if text.isdigit() else None

    # -- the end ---------------------------------------------------------------------------------------------------

    def kill9(self) -> None:
        """Kill everything with ``kill -9`` at one moment, as when the machine goes."""
        processes.kill_session(self._process.pid)
        self._process.wait()

    def end(self, timeout_s: float = PATIENCE_S) -> None:
        """Let the application end in order, its JVM too."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout_s)
        processes.until("the end of the JVM", lambda: not processes.of_session(self._process.pid), timeout_s)

    def freeze(self) -> None:
        """SIGSTOP of everything, as when a virtual machine is paused."""
        processes.stop_session(self._process.pid)

    def thaw(self) -> None:
        """Let everything go on."""
        processes.continue_session(self._process.pid)

    @property
    def pid(self) -> int:
        """The id of its first process, and of its session."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """True while its first process runs, or is frozen."""
        return self._process.poll() is None

    def close(self) -> None:
        """Leave nothing behind."""
        if self._process.poll() is None or processes.of_session(self._process.pid):
            self.kill9()

    def workers(self) -> list[int]:
        """Return the Python processes that Spark runs beside the driver's own and the daemon that forks them."""
        return python_workers(self._process.pid)

    def connections(self, connection: Connection) -> int:
        """Return how many connections its Python has to a broker of ``connection``."""
        ports = {int(server.rpartition(":")[2]) for server in connection.bootstrap_servers.split(",")}
        sockets = psutil.Process(self.pid).net_connections("tcp")
        return len([s for s in sockets if s.raddr and s.raddr.port in ports and s.status == "ESTABLISHED"])

    def log_tail(self, lines: int = 40) -> str:
        """Return the last lines of the log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    # -- plumbing --------------------------------------------------------------------------------------------------

    def _write(self, body: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(body) + "\n")

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            with self._arrived:
                self._answers[answer["id"]] = answer
                self._arrived.notify_all()
        with self._arrived:
            self._arrived.notify_all()

    def _await(self, number: int, timeout_s: float) -> Any:
        end = time.monotonic() + timeout_s
        with self._arrived:
            while number not in self._answers:
                if self._process.poll() is not None:
                    raise AssertionError(f"the driver ended\n{self.log_tail()}")
                if time.monotonic() > end:
                    raise Timeout(f"the driver gave no answer within {timeout_s:g} s\n{self.log_tail()}")
                self._arrived.wait(0.5)
            answer = self._answers[number]
        if "error" in answer:
            raise Refused(answer["error"])
        return answer.get("result")


class Refused(AssertionError):
    """The driver answered a command with an error."""
