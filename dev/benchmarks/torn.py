"""Measures how long a reader can see a part of a batch: from its first visible record to its last."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.common import AT_LEAST_ONCE, OURS, SPARKS, Bench, median
from benchmarks.latency import streaming

SINKS = (OURS, AT_LEAST_ONCE, SPARKS)

#: Between two batches: on a small machine a batch of this load is done long before the next.
TRIGGER_S = 3.0

#: What became visible within this time belongs to one batch: no batch pauses for so long, and none follows sooner.
GAP_S = 1.2


@dataclass(frozen=True)
class TornRun:
    """One run of one sink: how long a part of a batch was visible, in ms, at least and at most (medians of the batches,
    and the largest); over so many batches of about so many records, looked at so often.
    """

    system: str
    round: int
    batches: int
    batch_records: int
    least_ms: float
    most_ms: float
    largest_ms: float
    look_ms: float
    rate: int
    partitions_out: int


def torn(bench: Bench, sink: str, rate: int, seconds: float, number: int) -> TornRun:
    """Write batches :data:`TRIGGER_S` apart under a steady load, and look at the last stable offset of each output
    partition as often as the broker answers.
    """
    with streaming(bench, sink, rate, f"{TRIGGER_S:g} seconds") as stream:
        time.sleep(2 * TRIGGER_S)  # what piled up before the start
        samples, end = [], time.monotonic() + seconds
        partitions = 0
        while time.monotonic() < end:
            offsets = stream.offsets(stream.out)
            partitions = len(offsets)
            samples.append((time.monotonic(), sum(offsets.values())))
    found = bursts(samples)
    if not found:
        raise RuntimeError(f"{sink}: fewer than three batches in {seconds:.0f} s")
    return TornRun(
        system=sink,
        round=number,
        batches=len(found),
        batch_records=round(median(b.offsets for b in found)),
        least_ms=round(median(b.least_s for b in found) * 1000, 1),
        most_ms=round(median(b.most_s for b in found) * 1000, 1),
        largest_ms=round(max(b.most_s for b in found) * 1000, 1),
        look_ms=round(median((b[0] - a[0]) * 1000 for a, b in pairwise(samples)), 1),
        rate=rate,
        partitions_out=partitions,
    )


@dataclass(frozen=True)
class Burst:
    """One batch: it was visible in part for at least ``least_s`` and at most ``most_s``; offsets that it added."""

    least_s: float
    most_s: float
    offsets: int


def bursts(samples: Sequence[tuple[float, int]], gap_s: float = GAP_S) -> list[Burst]:
    """Group samples (seconds, visible offsets) into batches, without the first and the last, which may be incomplete.

    A part of a batch was visible at least from the first look that saw some of it to the last one that did not see all,
    and at most from the last look that saw nothing of it to the first that saw all.
    """
    grown = [(before, now) for before, now in pairwise(samples) if now[1] > before[1]]
    batches: list[list[tuple[tuple[float, int], tuple[float, int]]]] = []
    for step in grown:
        if batches and step[1][0] - batches[-1][-1][1][0] < gap_s:
            batches[-1].append(step)
        else:
            batches.append([step])
    found = []
    for batch in batches[1:-1]:
        nothing, some = batch[0]
        partly, everything = batch[-1]
        least = max(0.0, partly[0] - some[0]) if len(batch) > 1 else 0.0
        found.append(Burst(least, everything[0] - nothing[0], everything[1] - nothing[1]))
    return found
