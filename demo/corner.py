"""A contestant as the referee handles it: started, killed, started again."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from demo.processes import kill_sessions
from demo.rules import FINISH, DuelFailed, Sink, checkpoint
from resources.java import find_java
from resources.spark_home import fast_spark_home

PROJECT = Path(__file__).resolve().parents[1]

#: Of the log of a contestant that failed.
TAIL_LINES = 15


class Corner:
    """One contestant: its process (one at a time), its folder, its log.

    Attributes
    ----------
    kills : int
        How often it was killed.
    """

    def __init__(self, sink: Sink, brokers: str, folder: Path, batch: int, archive: Path):
        self.sink, self.kills = sink, 0
        self._brokers, self._batch = brokers, batch
        self._java = f"-XX:SharedArchiveFile={archive} -Xshare:auto" if archive.is_file() else ""
        self._folder = folder / sink.name
        self._folder.mkdir(parents=True)
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] = (self._folder / "log").open("wb")
        self._committed_at_start = -1

    def start(self) -> None:
        """Start its driver, in a session of its own."""
        self._committed_at_start = self._last_commit()
        self._process = launch(self.sink.name, self._brokers, self._folder, self._batch, self._java, self._log)

    def finish(self) -> None:
        """Tell it to write what is in the input now, and to end."""
        assert self._process is not None and self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended by itself, which `done` tells
            self._process.stdin.write(FINISH + b"\n")
            self._process.stdin.flush()

    @property
    def done(self) -> bool:
        """Whether it has written everything and ended.

        Raises
        ------
        DuelFailed
            It ended, and nobody had killed it.
        """
        code = self._process.poll() if self._process else None
        if code:
            log = tail(self._folder / "log")
            raise DuelFailed(f"The driver of {self.sink.format} ended by itself with {code}:\n{log}")
        return code == 0

    @property
    def at_work(self) -> bool:
        """Whether Spark has marked a batch as committed since this start, or everything is written."""
        return self._last_commit() > self._committed_at_start or self.done

    def close(self) -> None:
        """Leave no process behind."""
        if self._process:
            kill_sessions([self._process.pid])
            self._process.wait()
        self._log.close()

    def _last_commit(self) -> int:
        names = [p.name for p in (checkpoint(self._folder, self.sink) / "commits").glob("*")]
        return max((int(n) for n in names if n.isdigit()), default=-1)

    def _pid_to_kill(self) -> int | None:
        return self._process.pid if self._process and self._process.poll() is None else None


def kill_all(corners: Iterable[Corner]) -> None:
    """kill -9 all those that still run, at one moment."""
    running = {pid: corner for corner in corners if (pid := corner._pid_to_kill()) is not None}
    kill_sessions(running)
    for corner in running.values():
        assert corner._process is not None
        corner._process.wait()
        corner.kills += 1


def start_all(corners: Iterable[Corner]) -> None:
    """Start all of them, one right after the other."""
    for corner in corners:
        corner.start()


def launch(name: str, brokers: str, folder: Path, batch: int, java: str, log: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start a driver (see :mod:`demo.contestant`) in a session of its own, which ends when we do."""
    return subprocess.Popen(
        [sys.executable, "-m", "demo.contestant", name, brokers, str(folder), str(batch), java],
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=subprocess.STDOUT,
        cwd=PROJECT,
        env=_environment(),
        start_new_session=True,
    )


def tail(log: Path) -> str:
    """The last lines of a log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-TAIL_LINES:])


def _environment() -> dict[str, str]:
    java = find_java()
    return {
        **os.environ,
        **({"JAVA_HOME": java.home} if java.home else {}),
        # this checkout first, in the driver and in Spark's Python workers
        "PYTHONPATH": os.pathsep.join(filter(None, (str(PROJECT), os.environ.get("PYTHONPATH")))),
        "SPARK_HOME": str(fast_spark_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
