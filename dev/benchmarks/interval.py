"""Measures visibility latency at one commit interval: a trigger of Spark's, and a checkpoint interval of Flink's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

from benchmarks import flink, latency
from benchmarks.common import OURS, Bench
from benchmarks.flink_sql import script
from benchmarks.systems import fresh
from benchmarks.workloads import PASS

#: Far below what either system can do on two cores.
RATE = 20_000


@dataclass(frozen=True)
class Interval(latency.Visible):
    """One run of one system with commits ``interval_s`` apart."""

    interval_s: float


def measure(bench: Bench, cluster: flink.Cluster, seconds: float, warm_up_s: float, rounds: int) -> Iterator[Interval]:
    """Run both systems in turn, another one first in each round."""
    for number in range(1, rounds + 1):
        systems = [OURS, flink.EXACTLY_ONCE]
        for system in systems if number % 2 else systems[::-1]:
            ms = _ours(bench, seconds, warm_up_s) if system == OURS else _flinks(bench, cluster, seconds, warm_up_s)
            if not ms:
                raise RuntimeError(f"{system}: no record became visible")
            p50, p95, p99 = (round(q, 1) for q in latency.percentiles(ms))
            yield Interval(
                system=system,
                round=number,
                offered_rate=RATE,
                p50_ms=p50,
                p95_ms=p95,
                p99_ms=p99,
                seen=len(ms),
                seconds=seconds,
                partitions_out=latency.PARTITIONS,
                interval_s=flink.CHECKPOINT_S,
            )


def _ours(bench: Bench, seconds: float, warm_up_s: float) -> list[float]:
    with latency.streaming(bench, OURS, RATE, f"{flink.CHECKPOINT_S:g} seconds") as stream:
        return stream.latencies_ms(seconds, warm_up_s)


def _flinks(bench: Bench, cluster: flink.Cluster, seconds: float, warm_up_s: float) -> list[float]:
    with latency.under_load(bench, RATE, _job(cluster)) as stream:
        return stream.latencies_ms(seconds, warm_up_s)


def _job(cluster: flink.Cluster) -> Callable[[str, str], AbstractContextManager[None]]:
    def start(source: str, out: str) -> AbstractContextManager[None]:
        run = fresh("flink")
        sql = script(PASS, cluster.bootstrap_servers, source, out, "exactly-once", run, endless=True)
        return cluster.running(sql, run)

    return start
