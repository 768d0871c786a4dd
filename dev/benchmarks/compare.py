"""Runs systems in turn on the same input, and measures each run from outside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from confluent_kafka.admin import AdminClient

from benchmarks.common import Bench
from benchmarks.inputs import count, fill
from benchmarks.monitor import Monitor, end_of, spent, steady
from benchmarks.results import Throughput
from benchmarks.systems import BenchmarkSystem, Job
from benchmarks.workloads import PARTITIONS, PASS, WORKLOADS, BenchmarkWorkload

#: The size of a micro-batch that keeps all sinks busy without filling the memory of a small machine.
BATCH = 800_000

#: A run has at least so many micro-batches: the first of them is its start.
BATCHES = 5

#: The usual size of a pass-through record in bytes, key included.
SMALL = 100

#: Of the warm-up of each system on each workload.
WARM_UP_RECORDS = 50_000


class WrongOutput(RuntimeError):
    """A system did not write what the workload asks for, so its speed means nothing."""


def compare(
    bench: Bench, systems: Sequence[BenchmarkSystem], workloads: Sequence[BenchmarkWorkload], records: int, rounds: int
) -> Iterator[Throughput]:
    """Run every system that has it on every workload, ``rounds`` times in turn, after a short warm-up of each; a
    workload gets its share of ``records``.
    """
    inputs = {w.name: fill(bench, w, w.size_of(records), SMALL) for w in workloads}
    for w in workloads:
        _warm_up(bench, [s for s in systems if s.supports(w)], w, w.size_of(records))
    for n in range(1, rounds + 1):
        for w in workloads:
            source, size = inputs[w.name]
            for s in _mixed([s for s in systems if s.supports(w)], n):
                yield run_once(
                    bench, s, w, source, records=w.size_of(records), size=size, measurement="compare", number=n
                )


def by_size(
    bench: Bench, systems: Sequence[BenchmarkSystem], sizes: Sequence[int], records: int, total_bytes: int, rounds: int
) -> Iterator[Throughput]:
    """Pass records of each size through, at most ``records`` and about ``total_bytes`` of them."""
    numbers = {size: max(BATCHES, min(records, total_bytes // size)) for size in sizes}
    _warm_up(bench, systems, WORKLOADS[PASS], records)
    topics = {size: fill(bench, WORKLOADS[PASS], numbers[size], size)[0] for size in sizes}
    for n in range(1, rounds + 1):
        for size in sizes:
            for s in _mixed(systems, n):
                yield run_once(
                    bench,
                    s,
                    WORKLOADS[PASS],
                    topics[size],
                    records=numbers[size],
                    size=size,
                    measurement="sizes",
                    number=n,
                )


def by_partitions(
    bench: Bench, systems: Sequence[BenchmarkSystem], counts: Sequence[int], records: int, rounds: int
) -> Iterator[Throughput]:
    """Pass records through to topics with so many partitions."""
    _warm_up(bench, systems, WORKLOADS[PASS], records)
    topic, size = fill(bench, WORKLOADS[PASS], records, SMALL)
    for n in range(1, rounds + 1):
        for partitions in counts:
            for s in _mixed(systems, n):
                yield run_once(
                    bench,
                    s,
                    WORKLOADS[PASS],
                    topic,
                    records=records,
                    size=size,
                    measurement="partitions",
                    number=n,
                    partitions=partitions,
                )


def _warm_up(bench: Bench, systems: Sequence[BenchmarkSystem], workload: BenchmarkWorkload, records: int) -> None:
    few = min(records, WARM_UP_RECORDS)
    source, size = fill(bench, workload, few, SMALL)
    for s in systems:
        run_once(bench, s, workload, source, records=few, size=size, measurement="warm-up", number=0)


def run_once(
    bench: Bench,
    system: BenchmarkSystem,
    workload: BenchmarkWorkload,
    source: str,
    records: int,
    size: int,
    measurement: str,
    number: int,
    partitions: int = PARTITIONS,
) -> Throughput:
    """Run one job and measure it; in the first round, and in warm-ups, also count what came out."""
    out = bench.topic(f"out-{workload.name}", partitions)
    job = Job(workload, source, out, records, batch_of(records))
    with Monitor(bench.connection, out, partitions, str(bench.folder / "broker"), system.group) as monitor:
        system.run(job)
    counted = count(bench.connection, out, partitions) if number <= 1 else None
    _check(system, workload, records, counted)
    admin = AdminClient(bench.connection.librdkafka())
    admin.delete_topics([out])[out].result(30)  # the disk of a small machine holds a few runs, not all
    end, part = end_of(monitor.samples), steady(monitor.samples)
    if end is None:
        raise WrongOutput(f"{system.name}, {workload.name}: nothing became visible")
    rows = records * part.share if part else 0
    return Throughput(
        measurement=measurement,
        round=number,
        system=system.name,
        workload=workload.name,
        records=records,
        record_bytes=size,
        partitions_in=PARTITIONS,
        partitions_out=partitions,
        batch_records=job.batch_records if system.batches else None,
        interval_s=system.interval_s,
        visible_offsets=end.visible,
        counted=counted,
        seconds=round(end.at, 3),
        rate=round(records / end.at, 1),
        steady_share=round(part.share, 4) if part else None,
        steady_seconds=round(part.seconds, 3) if part else None,
        steady_rate=round(rows / part.seconds, 1) if part else None,
        processor_us=_each(spent(monitor.samples[0], end), records),
        steady_processor_us=_each(part.cpu_s, rows) if part else None,
        peak_mib=monitor.peak_mib(),
    )


def _mixed(systems: Sequence[BenchmarkSystem], number: int) -> list[BenchmarkSystem]:
    """Another one first, and other neighbours, in each round.

    The code of a JVM and of the broker gets faster from run to run, so the last of a round would be the fastest.
    """
    first = number % len(systems)
    turned = [*systems[first:], *systems[:first]]
    return turned[::-1] if number % 2 else turned


def batch_of(records: int) -> int:
    """Return the size of a micro-batch."""
    return max(1, min(BATCH, records // BATCHES))


def _each(seconds: Mapping[str, float], records: float) -> dict[str, float]:
    """Microseconds of each record by group, and their sum."""
    each = {group: round(s / records * 1e6, 3) for group, s in sorted(seconds.items())}
    return {**each, "all": round(sum(each.values()), 3)}


def _check(system: BenchmarkSystem, workload: BenchmarkWorkload, records: int, counted: int | None) -> None:
    wanted = workload.expected(records)
    if counted is None or wanted is None:
        return
    enough = counted == wanted if "exactly" in system.name else counted >= wanted
    if not enough:
        raise WrongOutput(f"{system.name}, {workload.name}: {counted:,} records came out, not {wanted:,}")
