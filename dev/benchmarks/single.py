"""Measurements that are asked for one at a time: their report in the terminal, and the guard of CI."""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, fields
from pathlib import Path

from benchmarks import commit, distance, endurance, latency, limits, streams, throughput
from benchmarks.common import AT_LEAST_ONCE, OURS, SINKS, SPARKS, Bench, bench, median, ratio, spread

#: Asked for one at a time, with ``--only``.
PARTS = ("throughput", "latency", "failover", "endurance", "ticks", "streams", "limits", "distance")


def main(args: argparse.Namespace) -> None:
    """Measure one of :data:`PARTS`, print it, and keep the raw figures as JSON."""
    (part,) = args.only
    raw: dict[str, object] = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "arguments": vars(args) | {"folder": ""},
    }
    if part == "failover":
        _report_failover(args, raw)
        return
    if part == "ticks":
        _report_ticks(args, raw)
        return
    if part == "distance":
        _report_distance(args, raw)
        return
    with bench(args.folder.absolute(), "local[2]") as b:
        if part == "endurance":
            _report_endurance(b, args.batches or 10_000, args.endurance_rate, raw)
        if part == "streams":
            _report_streams(b, args.seconds, raw)
        if part == "limits":
            _report_limits(b, args.what, args.sizes, raw)
        if part == "throughput":
            sinks = (*SINKS, AT_LEAST_ONCE) if args.all_sinks else SINKS
            runs = throughput.measure(b, args.records or 4_000_000, args.rounds, sinks)
            _report_throughput(runs, raw)
            _guard(runs, args.at_most)
        if part == "latency":
            _report_latency(latency.measure(b, args.rate, args.seconds, args.warm_up, args.rounds), raw)
    _keep(args, raw)


def _keep(args: argparse.Namespace, raw: dict[str, object]) -> None:
    out = args.folder.parent / "benchmark.json"
    out.write_text(json.dumps(raw, indent=1), encoding="utf-8")
    print(f"Raw figures: {out}")


def _report_failover(args: argparse.Namespace, raw: dict[str, object]) -> None:
    from benchmarks import failover  # needs Dagster, and what the tests need

    runs = failover.measure(args.folder.absolute(), args.rounds)
    raw["failover"] = [asdict(r) for r in runs]
    print(f"From kill -9 of a running stream to its first new decision, s (median of {len(runs)}, smallest, largest);")
    print("sparks_own is a new run of the same query with Spark's own sink, goal is detection + sparks_own + 2:")
    parts = ("total", "detection", "reported", "noticed", "recovery", "queued", "recovered")
    for name in (*parts, "start", "wanted", "launched", "streamed", "sparks_own", "goal", "cold", "sparks_cold"):
        values = [getattr(r, name) for r in runs]
        print(f"  {name:10} {median(values):5.1f} ({min(values):.1f} to {max(values):.1f})")
    _keep(args, raw)


def _report_ticks(args: argparse.Namespace, raw: dict[str, object]) -> None:
    from benchmarks import ticks  # needs Dagster

    found = []
    print("Duration of a sensor's tick, ms (median, longest), by the number of streams:")
    for t in ticks.measure(args.folder.absolute() / "ticks"):
        found.append(asdict(t))
        print(f"  {t.streams:4d} streams, {t.sensor:20} {t.median_ms:8.1f} {t.longest_ms:8.1f}", flush=True)
    raw["ticks"] = found
    _keep(args, raw)


def _report_distance(args: argparse.Namespace, raw: dict[str, object]) -> None:
    runs: list[distance.FarRun] = []
    print(f"A batch of {distance.PARTS} parts, {distance.RATE:,} records a second, by distance of the brokers, ms:")
    for r in distance.measure(args.folder.absolute(), args.rounds, args.batches or distance.BATCHES):
        runs.append(r)
        print(
            f"  round {r.round}, {r.asked_ms:g} ms (measured {r.round_trip_ms:.1f}), {r.system}: triggerExecution "
            f"{r.trigger_ms:.0f}, addBatch {r.add_batch_ms:.0f}, median of {r.batches}",
            flush=True,
        )
    raw["distance"] = [asdict(r) for r in runs]
    for sink in distance.SINKS:
        waits = spread(distance.round_trips(runs, sink))
        at = (f"{ms:g} ms {spread(distance.ratios(runs, sink, ms))}" for ms in distance.ROUND_TRIPS_MS)
        print(f"  {sink}: round trips in addBatch {waits}; triggerExecution to {SPARKS}'s: {', '.join(at)}")
    _keep(args, raw)


def commits(folder: Path, large: bool, keep: Callable[[commit.Commit], None]) -> None:
    """Measure small batches on one broker; ``large`` adds thousands of parts and three brokers, which takes minutes."""
    clusters = ((1, commit.SIZES), (3, commit.SIZES)) if large else ((1, commit.SIZES[:4]),)
    print("Duration of one commit, medians (ms):")
    for brokers, sizes in clusters:
        for r in commit.measure(folder / "commit", brokers, sizes):
            keep(r)
            print(
                f"  {r.brokers} broker(s), {r.parts:5,d} parts: alive {r.alive_ms:.1f}, leaders {r.leaders_ms:.1f}, "
                f"decide {r.decide_ms:.1f}, end {r.end_ms:.1f}, mark {r.mark_ms:.1f}; opening one part "
                f"{r.open_ms:.1f}; the decision {r.decision_bytes:,} bytes of JSON",
                flush=True,
            )


def _report_streams(b: Bench, seconds: float, raw: dict[str, object]) -> None:
    found: list[object] = []
    raw["streams"] = found
    print("Several streams in one driver, a batch a second asked of each:")
    for s in streams.measure(b, seconds):
        found.append(asdict(s))
        print(
            f"  {s.streams:3d} to {s.system}: {s.batches_each:.0f} batches of each in {s.seconds:.0f} s, "
            f"{s.batch_ms:.0f} ms each ({s.slowest_ms:.0f} the slowest stream), {s.cores:.2f} cores; running after "
            f"{s.started_s:.0f} s; driver {s.driver_rss_mib:,.0f} MiB, {s.threads} threads, its Python "
            f"{s.python_rss_mib:,.0f} MiB",
            flush=True,
        )


def _report_limits(b: Bench, what: str, sizes: Sequence[int], raw: dict[str, object]) -> None:
    found: list[object] = []
    raw["limits"] = found
    print(f"What one driver holds, {what} (memory in MiB, heaps after a full collection):")
    for held in limits.measure(b, what, sizes):
        found.append(asdict(held))
        print("  " + ", ".join(f"{name} {value}" for name, value in asdict(held).items() if value), flush=True)


def _report_endurance(b: Bench, batches: int, rate: int | None, raw: dict[str, object]) -> None:
    print(f"Growth over {batches:,} batches (memory in MiB, heaps after a full collection):")
    names = [f.name for f in fields(endurance.EnduranceSample)]
    print("  " + " ".join(f"{name:>12}" for name in names), flush=True)

    def show(s: endurance.EnduranceSample) -> None:
        print("  " + " ".join(f"{value:>12,.0f}" for value in astuple(s)), flush=True)

    raw["endurance"] = [asdict(s) for s in endurance.measure(b, batches, 10, show, rate)]


def _report_throughput(runs: list[throughput.ThroughputRun], raw: dict[str, object]) -> None:
    raw["throughput"] = [asdict(r) for r in runs]
    by = {name: [r for r in runs if r.sink == name] for name in dict.fromkeys(r.sink for r in runs)}
    print("Throughput, records a second (median; whole run / without the first batch), processor time of a record:")
    for name, some in by.items():
        spent = {g: median(r.processor_us[g] for r in some) for g in some[0].processor_us}
        print(f"  {name}: {median(r.rate for r in some):,.0f} / {median(r.steady_rate for r in some):,.0f}")
        print(f"    microseconds: {', '.join(f'{group} {us:.2f}' for group, us in spent.items())}")
        print(f"    where a batch's time goes (ms): {some[-1].steps_ms}")
    for ours, theirs in ((OURS, SPARKS), (OURS, AT_LEAST_ONCE)):
        if ours in by and theirs in by:
            pair = by[ours], by[theirs]
            print(
                f"  {ours} / {theirs}: whole run {ratio(*([r.rate for r in some] for some in pair))}, "
                f"without the first batch {ratio(*([r.steady_rate for r in some] for some in pair))}, "
                f"processor time {ratio(*([r.processor_us['all'] for r in some] for some in pair))}",
                flush=True,
            )


def _guard(runs: list[throughput.ThroughputRun], at_most: float | None) -> None:
    """Fail when a record costs too much: of all figures, other work on the machine moves processor time least."""
    ours, theirs = ([r.processor_us["all"] for r in runs if r.sink == s] for s in (OURS, SPARKS))
    found = median(a / b for a, b in zip(ours, theirs, strict=True))
    if at_most is not None and found > at_most:
        raise SystemExit(
            f"A record takes {found:.2f} times the processor time of Spark's own sink; {at_most} is allowed"
        )


def _report_latency(runs: list[latency.LatencyRun], raw: dict[str, object]) -> None:
    raw["latency"] = [asdict(r) for r in runs]
    print("Visibility latency, ms (median of the runs):")
    for name in (SPARKS, OURS):
        some = [r for r in runs if r.sink == name]
        p50, p95, p99 = (median(getattr(r, q) for r in some) for q in ("p50", "p95", "p99"))
        print(f"  {name}: p50 {p50:.0f}, p95 {p95:.0f}, p99 {p99:.0f}")
        print(f"    where a batch's time goes (ms): {some[-1].steps_ms}")
    ours, theirs = ([r.p50 for r in runs if r.sink == s] for s in (OURS, SPARKS))
    print(f"  ratio of p50: {ratio(ours, theirs)}", flush=True)
