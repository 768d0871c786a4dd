"""Looks for growth over many batches: transactional ids, the commit log, memory of driver and broker."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from kafka.structs import TopicPartition

from benchmarks.common import OURS, Bench
from exactly_once.kafka.admin import EARLIEST, LATEST, Admin
from exactly_once.protocol.names import commit_log_topic, namespace
from exactly_once.txn.coordinators import list_transactions

#: Ten records in two parts: batches matter here, not records.
ROWS, PARTS = 10, 2

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_MIB = 1024 * 1024

#: The generations of the serial, the parallel and the G1 collector.
_USED = re.compile(r"(?:def new generation|tenured generation|PSYoungGen|ParOldGen|garbage-first heap) .*?used (\d+)K")


@dataclass(frozen=True)
class EnduranceSample:
    """One sample. Memory in MiB; heaps after a full collection."""

    batch: int
    seconds: float
    ids: int
    log_offsets: int
    driver_heap: float
    driver_rss: float
    python_rss: float
    broker_heap: float
    broker_rss: float
    threads: int
    files: int


def measure(
    bench: Bench, batches: int, samples: int, show: Callable[[EnduranceSample], None], rate: int | None = None
) -> list[EnduranceSample]:
    """Run a stream for this many batches and look at it now and then.

    Batches of ten records at full speed; with ``rate``, batches of a second with so many records.
    """
    topic = bench.topic("endurance", PARTS)
    rows = _rows(bench, rate).selectExpr("cast(value as string) key", "concat('row-', value) value")
    trigger = "0 seconds" if rate is None else "1 second"
    query = bench.writer(OURS, rows, topic).queryName("endurance").trigger(processingTime=trigger).start()
    checkpoint = max((bench.folder / "checkpoints").iterdir(), key=lambda p: p.stat().st_ctime)
    sink_id = f"bench-{checkpoint.name}"
    begun, found = time.monotonic(), []
    for target in _targets(batches, samples):
        while (done := _last(checkpoint / "commits")) < target:
            if not query.isActive:
                raise RuntimeError(f"the query ended: {query.exception()}")
            time.sleep(0.5)
        sample = _sample(bench, sink_id, done, time.monotonic() - begun)
        found.append(sample)
        show(sample)
    query.stop()
    return found


def _rows(bench: Bench, rate: int | None) -> DataFrame:
    if rate is None:
        made = bench.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS)
    else:
        made = bench.spark.readStream.format("rate").option("rowsPerSecond", rate)
    return made.option("numPartitions", PARTS).load()


def _targets(batches: int, samples: int) -> Iterator[int]:
    """Choose the batches at which to look; the first look comes when the JIT and the caches are warm."""
    yield min(200, batches - 1)
    for n in range(1, samples + 1):
        if (target := batches * n // samples - 1) > 200:
            yield target


def _last(commits: Path) -> int:
    if not commits.exists():
        return -1
    return max((int(f.name) for f in commits.iterdir() if f.name.isdigit()), default=-1)


@dataclass(frozen=True)
class Processes:
    """The broker's JVM, the driver's, and the driver's Python: this process."""

    broker: psutil.Process
    driver: psutil.Process
    python: psutil.Process


def processes() -> Processes:
    """Find the JVMs among the children of this process."""
    children = psutil.Process().children(recursive=True)
    broker = next(p for p in children if "kafka.Kafka" in " ".join(_command(p)) and "java" in _name(p))
    driver = next(p for p in children if "SparkSubmit" in " ".join(_command(p)) and "java" in _name(p))
    return Processes(broker, driver, psutil.Process())


def _sample(bench: Bench, sink_id: str, batch: int, seconds: float) -> EnduranceSample:
    found = processes()
    broker, driver = found.broker, found.driver
    with Admin(bench.connection, 30) as admin:
        ids = list_transactions(admin, namespace(sink_id), ())
        log = [TopicPartition(commit_log_topic(sink_id), 0)]
        low, high = (admin.list_offsets(log, spec, "read_uncommitted")[log[0]].offset for spec in (EARLIEST, LATEST))
    return EnduranceSample(
        batch=batch,
        seconds=round(seconds, 1),
        ids=len(ids),
        log_offsets=high - low,
        driver_heap=heap_mib(driver.pid),
        driver_rss=rss_mib(driver),
        python_rss=rss_mib(found.python),
        broker_heap=heap_mib(broker.pid),
        broker_rss=rss_mib(broker),
        threads=driver.num_threads(),
        files=driver.num_fds(),
    )


def rss_mib(process: psutil.Process) -> float:
    """Return the resident memory of a process, in MiB."""
    return float(process.memory_info().rss / _MIB)


def heap_mib(pid: int) -> float:
    """Return the used heap of a JVM after a full collection, in MiB."""
    subprocess.run(["jcmd", str(pid), "GC.run"], capture_output=True, check=True)
    out = subprocess.run(["jcmd", str(pid), "GC.heap_info"], capture_output=True, check=True, text=True).stdout
    return sum(int(used) for used in _USED.findall(out)) / 1024


def _command(process: psutil.Process) -> list[str]:
    with suppress(psutil.Error):
        command: list[str] = process.cmdline()
        return command
    return []


def _name(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return str(process.name())
    return ""
