"""The comparison in parts: each measures, adds JSON lines and says each result in a line as it comes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from benchmarks import compare, flink, flink_files, interval, load, quix, torn
from benchmarks.common import AT_LEAST_ONCE, OURS, SPARKS, Bench
from benchmarks.results import Conditions, Lines, Throughput, conditions
from benchmarks.systems import SPARK_SYSTEMS, BenchmarkSpark, BenchmarkSystem
from benchmarks.workloads import WORKLOADS

#: Systems by the name of the flag.
NAMES = {
    "ours": OURS,
    "ours-at-least-once": AT_LEAST_ONCE,
    "spark": SPARKS,
    "flink": flink.EXACTLY_ONCE,
    "flink-at-least-once": flink.AT_LEAST_ONCE,
    "quix": quix.NAME,
}
FLINKS = (flink.EXACTLY_ONCE, flink.AT_LEAST_ONCE)

SIZES = (100, 1_000, 100_000)
PARTITION_COUNTS = (4, 64, 256, 1_024)

#: Of each size: 256 MiB pass through, which is seconds of work and fits into the page cache.
TOTAL_BYTES = 256 * 2**20

#: Records a second, where a part of a batch is looked for: a batch of 60,000, well under a second of work.
TORN_RATE = 20_000

#: Of one run of that: eight batches.
TORN_SECONDS = 25.0


@dataclass(frozen=True)
class BenchmarkPlan:
    """The plan that the flags ask for. ``seconds`` and ``warm_up_s`` are those of one run under load."""

    systems: Sequence[str]
    workloads: Sequence[str]
    records: int
    rounds: int
    seconds: float
    warm_up_s: float

    def conditions(self) -> Conditions:
        """Return the conditions of every line."""
        with_flink = any(name in FLINKS for name in self.systems)
        return conditions(
            flink_files.FLINK if with_flink else None,
            flink_files.CONNECTOR if with_flink else None,
            quix.QUIX if quix.NAME in self.systems else None,
        )


def throughput(bench: Bench, plan: BenchmarkPlan, lines: Lines) -> None:
    """Every system on every workload."""
    with _systems(bench, plan.systems) as systems:
        workloads = [WORKLOADS[name] for name in plan.workloads]
        _keep(compare.compare(bench, systems, workloads, plan.records, plan.rounds), lines)


def sizes(bench: Bench, plan: BenchmarkPlan, lines: Lines) -> None:
    """Run the sinks of Spark by size of the record."""
    _keep(compare.by_size(bench, _spark(bench, plan), SIZES, plan.records, TOTAL_BYTES, plan.rounds), lines)


def partitions(bench: Bench, plan: BenchmarkPlan, lines: Lines) -> None:
    """Run the sinks of Spark by number of output partitions."""
    runs = compare.by_partitions(bench, _spark(bench, plan), PARTITION_COUNTS, plan.records, plan.rounds)
    _keep(runs, lines)


def latencies(bench: Bench, plan: BenchmarkPlan, lines: Lines) -> None:
    """Run the sinks of Spark at shares of the highest rate; one round, as a run is long."""
    for measured in load.measure(bench, plan.seconds, plan.warm_up_s, 1):
        lines.add(measured)
        if isinstance(measured, load.Maximum):
            print(f"  highest rate of {measured.system}: {measured.rate:,} records a second", flush=True)
        else:
            print(
                f"  {measured.share:.0%} ({measured.offered_rate:,} a second) {measured.system}: p50 "
                f"{measured.p50_ms:.0f}, p95 {measured.p95_ms:.0f}, p99 {measured.p99_ms:.0f} ms",
                flush=True,
            )


def intervals(bench: Bench, plan: BenchmarkPlan, lines: Lines) -> None:
    """Exactly once beside Flink, with commits as far apart."""
    with flink.cluster(bench.folder / "flink-interval", bench.connection.bootstrap_servers) as running:
        for measured in interval.measure(bench, running, plan.seconds, plan.warm_up_s, plan.rounds):
            lines.add(measured)
            print(
                f"  every {measured.interval_s:g} s, {measured.system}: p50 {measured.p50_ms:.0f}, "
                f"p95 {measured.p95_ms:.0f}, p99 {measured.p99_ms:.0f} ms",
                flush=True,
            )


def visibility(bench: Bench, plan: BenchmarkPlan, lines: Lines) -> None:
    """Measure how long a part of a batch is visible."""
    for number in range(1, plan.rounds + 1):
        for sink in torn.SINKS:
            measured = torn.torn(bench, sink, TORN_RATE, TORN_SECONDS, number)
            lines.add(measured)
            print(
                f"  {sink}: part of a batch of {measured.batch_records:,} records was visible for "
                f"{measured.least_ms:.0f} to {measured.most_ms:.0f} ms (at most {measured.largest_ms:.0f})",
                flush=True,
            )


PARTS: dict[str, Callable[[Bench, BenchmarkPlan, Lines], None]] = {
    "compare": throughput,
    "sizes": sizes,
    "partitions": partitions,
    "load": latencies,
    "interval": intervals,
    "torn": visibility,
}


def _spark(bench: Bench, plan: BenchmarkPlan) -> list[BenchmarkSpark]:
    return [BenchmarkSpark(bench, name) for name in SPARK_SYSTEMS if name in plan.systems]


@contextmanager
def _systems(bench: Bench, names: Sequence[str]) -> Iterator[list[BenchmarkSystem]]:
    """Yield the systems of these names; Flink's cluster and Quix's environment are made when they are among them."""
    with ExitStack() as stack:
        systems: list[BenchmarkSystem] = [BenchmarkSpark(bench, name) for name in SPARK_SYSTEMS if name in names]
        if wanted := [name for name in FLINKS if name in names]:
            servers = bench.connection.bootstrap_servers
            running = stack.enter_context(flink.cluster(bench.folder / "flink", servers))
            systems += [flink.BenchmarkFlink(running, name) for name in wanted]
        if quix.NAME in names:
            quix.python()
            systems.append(quix.QuixSystem(bench.connection, bench.folder / "quix"))
        yield systems


def _keep(runs: Iterator[Throughput], lines: Lines) -> None:
    for r in runs:
        lines.add(r)
        steady = f"{r.steady_rate:,.0f}" if r.steady_rate else "-"
        spent = f"{r.steady_processor_us['all']:.2f}" if r.steady_processor_us else "-"
        print(
            f"  round {r.round}, {r.workload}, {r.record_bytes:,} B, {r.partitions_out} partitions, {r.system}: "
            f"{r.rate:,.0f} / {steady} records a second, {spent} µs of processor time each",
            flush=True,
        )
