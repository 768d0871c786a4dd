"""The measurements of a run as JSON lines; docs/lab/benchmark.md says what each field means."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from exactly_once.sparkenv.jars import pinned
from exactly_once.sparkenv.java import find_java

#: Of every system that is compared.
COMPRESSION = "lz4"


@dataclass(frozen=True)
class Throughput:
    """One run of one system on one workload at full speed; None is what such a run does not have."""

    measurement: str
    round: int
    system: str
    workload: str
    records: int
    record_bytes: int
    partitions_in: int
    partitions_out: int
    batch_records: int | None
    interval_s: float | None
    visible_offsets: int
    counted: int | None
    seconds: float
    rate: float
    steady_share: float | None
    steady_seconds: float | None
    steady_rate: float | None
    processor_us: Mapping[str, float]
    steady_processor_us: Mapping[str, float] | None
    peak_mib: Mapping[str, float]


@dataclass(frozen=True)
class Conditions:
    """The conditions that every line of one run of the benchmark shares."""

    machine: str
    cores: int
    memory_gib: float
    spark: str
    kafka: str
    connector: str
    flink: str | None
    flink_connector: str | None
    quix: str | None
    java: str
    python: str
    compression: str = COMPRESSION
    brokers: int = 1
    replication: int = 1
    started: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))


def conditions(flink: str | None, flink_connector: str | None, quix: str | None) -> Conditions:
    """Look at this machine and at the pinned versions."""
    jars = [name.split("/", 1)[1].removesuffix(".jar") for name in pinned()]
    said = subprocess.run([find_java().executable, "-version"], capture_output=True, text=True, timeout=30).stderr
    return Conditions(
        machine=f"{platform.system()} {platform.machine()}",
        cores=os.cpu_count() or 1,
        memory_gib=round(psutil.virtual_memory().total / 2**30, 1),
        spark=version("pyspark"),
        kafka=_version(jars, "kafka_2.13-"),
        connector=_version(jars, "spark-sql-kafka-0-10_2.13-"),
        flink=flink,
        flink_connector=flink_connector,
        quix=quix,
        java=said.split('"')[1] if '"' in said else said.strip(),
        python=platform.python_version(),
    )


class Lines:
    """A file to which measurements are added as JSON lines, each with the conditions; whole lines even after a kill."""

    def __init__(self, path: Path, shared: Conditions):
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self._shared = path, asdict(shared)
        path.write_text("", encoding="utf-8")

    def add(self, measured: Any) -> None:
        """Append a dataclass, with ``kind``: its name in lower case."""
        kind = type(measured).__name__.lower()
        line = json.dumps({"kind": kind, **asdict(measured), "conditions": self._shared})
        with self.path.open("a", encoding="utf-8") as out:
            out.write(line + "\n")


def read(path: Path) -> list[dict[str, Any]]:
    """Return every line of a file that :class:`Lines` wrote."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


def _version(jars: Iterable[str], name: str) -> str:
    return next(jar.removeprefix(name) for jar in jars if jar.startswith(name))
