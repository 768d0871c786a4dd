"""Samples of a running soak, taken from outside in a thread of its own, while faults kill what it measures."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from kafka.structs import TopicPartition

from benchmarks.endurance import heap_mib
from exactly_once.errors import ExactlyOnceError
from exactly_once.kafka.admin import EARLIEST, LATEST, Admin
from exactly_once.protocol.names import commit_log_topic, namespace
from exactly_once.txn.coordinators import list_transactions
from faultlab.lab import Lab
from faultlab.soak.results import Rest, SoakSample

#: A sample takes some 50 ms of a core.
EVERY_S = 5.0

#: For what the broker is asked for a sample: it may be away.
ASK_S = 2.0

_MIB = 1024 * 1024


class Sampler:
    """Takes a sample every :data:`EVERY_S` seconds, from entry to exit.

    Parameters
    ----------
    checkpoint, broker_data : Path
        Folders of the query's checkpoint and of the broker's partitions.
    """

    def __init__(self, lab: Lab, sink_id: str, checkpoint: Path, broker_data: Path):
        self.found: list[SoakSample] = []
        self._lab, self._checkpoint = lab, checkpoint
        self._log = f"{commit_log_topic(sink_id)}-*"
        self._broker_data = broker_data
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="samples", daemon=True)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join(60)

    def _work(self) -> None:
        while not self._over.wait(EVERY_S):
            self.found.append(self._sample())

    def _sample(self) -> SoakSample:
        system, broker = self._lab.system, self._lab.broker
        log = [p for folder in self._broker_data.glob(self._log) for p in folder.glob("*.log")]
        checkpoint = [p for p in self._checkpoint.rglob("*") if p.is_file()]
        return SoakSample(
            round(self._lab.history.now_s, 1),
            self._visible(),
            **_processes(system.pids("driver"), [*system.pids("python"), *system.pids("worker")]),
            broker=_resident(broker.pids.values()),
            log_bytes=_size(log),
            checkpoint_bytes=_size(checkpoint),
            checkpoint_files=len(checkpoint),
        )

    def _visible(self) -> int | None:
        with suppress(ExactlyOnceError, TimeoutError), Admin(self._lab.workload.connection, ASK_S) as admin:
            return sum(marks.last_stable for marks in admin.watermarks(self._lab.system.topic).values())
        return None


def at_rest(lab: Lab, sink_id: str) -> Rest:
    """Look at what is left when the stream has drained, and its driver still lives."""
    driver = lab.system.pids("driver")
    log = TopicPartition(commit_log_topic(sink_id), 0)
    with Admin(lab.workload.connection, 30) as admin:
        ids = len(list_transactions(admin, namespace(sink_id), ()))
        low, high = (admin.list_offsets([log], spec, "read_uncommitted")[log].offset for spec in (EARLIEST, LATEST))
    return Rest(ids, high - low, _heap(driver), _heap(lab.broker.pids.values()))


def _heap(pids: Iterable[int]) -> int:
    """0 where no process is, or it has no jcmd beside it."""
    with suppress(OSError, subprocess.CalledProcessError):
        return round(sum(heap_mib(pid) for pid in pids))
    return 0


def _processes(driver: list[int], workers: list[int]) -> dict[str, Any]:
    if not driver:
        return {}
    with suppress(psutil.Error):
        jvm = psutil.Process(driver[0])
        return {
            "driver": round(jvm.memory_info().rss / _MIB),
            "threads": jvm.num_threads(),
            "files": jvm.num_fds(),
            "workers": _resident(workers),
            "python": len(workers),
        }
    return {}


def _resident(pids: Iterable[int]) -> int | None:
    found = [size for pid in pids if (size := _of(pid, lambda p: p.memory_info().rss)) is not None]
    return round(sum(found) / _MIB) if found else None


def _of(pid: int, what: Callable[[psutil.Process], int]) -> int | None:
    with suppress(psutil.Error):
        return what(psutil.Process(pid))
    return None


def _size(files: Iterable[Path]) -> int:
    found = 0
    for path in files:
        with suppress(OSError):  # Spark and the broker remove files meanwhile
            found += path.stat().st_size
    return found
