"""Quix Streams, in a virtual environment of its own, as one of the systems that are compared."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import PRODUCER
from benchmarks.flink import STOP_S
from benchmarks.systems import Job, fresh
from benchmarks.workloads import JSON, LEAST_AMOUNT, PASS, BenchmarkWorkload
from exactly_once.kafka.connection import Connection
from exactly_once.sparkenv.jars import cache_folder
from exactly_once_local.cluster.guard import end_all, guarded

NAME = "Quix Streams exactly once"
QUIX = "3.28.1"

#: One for each core: a process uses one.
PROCESSES = 2

#: As long as Flink's checkpoint interval.
COMMIT_S = 2.0

#: A process ends when it has read nothing for so long: a commit, and a rebalance, are over by then.
IDLE_S = 8.0

#: A job of this benchmark takes minutes at most.
JOB_S = 900.0

_APP = Path(__file__).with_name("quix_app.py")


class QuixFailed(RuntimeError):
    """Quix Streams could not be installed, or a process failed; its log says why."""


def python() -> Path:
    """Return the Python of an environment with Quix Streams; makes it the first time.

    Raises
    ------
    QuixFailed
    """
    folder = cache_folder() / f"quixstreams-{QUIX}-py{sys.version_info[0]}{sys.version_info[1]}"
    executable, complete = folder / "bin" / "python", folder / "complete"
    if complete.is_file():
        return executable
    venv.create(folder, clear=True, with_pip=True)
    command = [str(executable), "-m", "pip", "install", "--quiet", "--no-input", f"quixstreams=={QUIX}"]
    installed = subprocess.run(command, capture_output=True, text=True)
    if installed.returncode != 0:
        raise QuixFailed(f"pip could not install quixstreams {QUIX}: {installed.stderr.strip()[-300:]}")
    complete.touch()
    return executable


@dataclass(frozen=True)
class QuixSystem:
    """Two processes of one consumer group, exactly once."""

    connection: Connection
    folder: Path
    name: str = NAME
    interval_s: float | None = COMMIT_S
    batches: bool = False

    def supports(self, workload: BenchmarkWorkload) -> bool:
        """Return whether the workload is written for it."""
        return workload.name in (PASS, JSON)

    def group(self, words: Sequence[str]) -> str | None:
        """Return the group of its processes."""
        return "Quix processes" if str(_APP) in words and "python" in words[0] else None

    def run(self, job: Job) -> None:
        """Run both processes until they have read everything and committed."""
        run = fresh("quix")
        folder = self.folder / run
        folder.mkdir(parents=True)
        settings = {
            "bootstrap_servers": self.connection.bootstrap_servers,
            "group": run,
            "source": job.source,
            "out": job.out,
            "workload": job.workload.name,
            "least_amount": LEAST_AMOUNT,
            "interval_s": COMMIT_S,
            "idle_s": IDLE_S,
            "producer": {name.removeprefix("kafka."): value for name, value in PRODUCER.items()},
        }
        command = [str(python()), str(_APP), json.dumps(settings)]
        logs = [folder / f"{n}.log" for n in range(PROCESSES)]
        processes = []
        try:
            for log in logs:
                with log.open("w") as out:
                    processes.append(guarded(command, out, folder))
            codes = [process.wait(JOB_S) for process in processes]
        finally:
            end_all(processes, graceful_s=STOP_S)
        if any(codes):
            raise QuixFailed("\n".join(log.read_text(errors="replace")[-1000:] for log in logs))
