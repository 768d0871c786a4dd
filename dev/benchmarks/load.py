"""Measures visibility latency at shares of the highest rate that at least once reaches (open loop)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks import latency
from benchmarks.common import AT_LEAST_ONCE, OURS, SPARKS, Bench

SINKS = (OURS, AT_LEAST_ONCE, SPARKS)
SHARES = (0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class Maximum:
    """The highest rate of a sink in records a second, with the load and the reader on the same cores."""

    system: str
    rate: int
    seconds: float


@dataclass(frozen=True)
class Latency(latency.Visible):
    """One run of one sink at ``share`` of the maximum."""

    share: float


def measure(
    bench: Bench, seconds: float, warm_up_s: float, rounds: int, shares: Sequence[float] = SHARES
) -> Iterator[Maximum | Latency]:
    """Find the maximum of at least once, then run every sink at each share of it, in turn."""
    most = round(latency.maximum(bench, AT_LEAST_ONCE, seconds, warm_up_s))
    yield Maximum(AT_LEAST_ONCE, most, seconds)
    for number in range(1, rounds + 1):
        for share in shares:
            for sink in SINKS:
                rate = round(most * share)
                run = latency.one(bench, sink, rate, seconds, warm_up_s)
                yield Latency(
                    system=sink,
                    round=number,
                    share=share,
                    offered_rate=rate,
                    p50_ms=round(run.p50, 1),
                    p95_ms=round(run.p95, 1),
                    p99_ms=round(run.p99, 1),
                    seen=run.seen,
                    seconds=seconds,
                    partitions_out=latency.PARTITIONS,
                )
