"""The systems that are compared: each runs one job from an input topic to an output topic, to its end."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from benchmarks.common import AT_LEAST_ONCE, OURS, SPARKS, Bench
from benchmarks.monitor import spark_group
from benchmarks.workloads import BenchmarkWorkload
from dagster_exactly_once.resources.spark import kafka_source_options


@dataclass(frozen=True)
class Job:
    """A workload on its topics; ``records`` as many as the input has, ``batch_records`` for systems with batches."""

    workload: BenchmarkWorkload
    source: str
    out: str
    records: int
    batch_records: int


class BenchmarkSystem(Protocol):
    """A system with one guarantee.

    Attributes
    ----------
    name : str
        As in the results.
    interval_s : float or None
        Between two commits or checkpoints; None for micro-batches, which follow each other.
    batches : bool
        Whether ``batch_records`` means something to it.
    """

    @property
    def name(self) -> str: ...

    @property
    def interval_s(self) -> float | None: ...

    @property
    def batches(self) -> bool: ...

    def supports(self, workload: BenchmarkWorkload) -> bool:
        """Return whether it has this workload."""

    def group(self, words: Sequence[str]) -> str | None:
        """Return the group of one of its processes, by command line; None for any other process."""

    def run(self, job: Job) -> None:
        """Run ``job`` until its output is complete and visible."""


@dataclass(frozen=True)
class BenchmarkSpark:
    """A sink of the session; every run is a query with a checkpoint of its own."""

    bench: Bench
    name: str
    interval_s: float | None = None
    batches: bool = True

    def supports(self, workload: BenchmarkWorkload) -> bool:
        """Return True: every workload is written for Spark."""
        return True

    def group(self, words: Sequence[str]) -> str | None:
        """Return the JVM's group: no sink has a Python on executors."""
        return spark_group(words)

    def run(self, job: Job) -> None:
        """Run the query with the trigger availableNow."""
        query = self.query(job).trigger(availableNow=True).start()
        query.awaitTermination()

    def query(self, job: Job):  # type: ignore[no-untyped-def]
        """Return the writer of the query, without a trigger."""
        source = self.bench.spark.readStream.format("kafka")
        options = kafka_source_options(self.bench.connection, job.source, job.batch_records)
        frame = job.workload.frame(source.options(**options).load())
        return self.bench.writer(self.name, frame, job.out)


SPARK_SYSTEMS = (OURS, AT_LEAST_ONCE, SPARKS)


def fresh(name: str) -> str:
    """Return ``name`` with an ending that no run before has had."""
    return f"{name}-{uuid.uuid4().hex[:6]}"
