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
class Torn:
    """One run of one sink: how long a part of a batch was visible, in ms; over so many batches of about so many
    records, looked at so often.
    """

    system: str
    round: int
    batches: int
    batch_records: int
    torn_ms_median: float
    torn_ms_largest: float
    look_ms: float
    rate: int
    partitions_out: int


def torn(bench: Bench, sink: str, rate: int, seconds: float, number: int) -> Torn:
    """Write batches :data:`TRIGGER_S` apart under a steady load, and look at the last stable offset of each output
    partition as often as the broker answers.
    """
    with streaming(bench, sink, rate, f"{TRIGGER_S:g} seconds") as stream:
        time.sleep(2 * TRIGGER_S)  # what piled up before the start
        looks, end = [], time.monotonic() + seconds
        partitions = 0
        while time.monotonic() < end:
            offsets = stream.offsets(stream.out)
            partitions = len(offsets)
            looks.append((time.monotonic(), sum(offsets.values())))
    found = bursts(looks)
    if not found:
        raise RuntimeError(f"{sink}: fewer than three batches in {seconds:.0f} s")
    ms = [duration * 1000 for duration, _ in found]
    return Torn(
        system=sink,
        round=number,
        batches=len(found),
        batch_records=round(median(count for _, count in found)),
        torn_ms_median=round(median(ms), 1),
        torn_ms_largest=round(max(ms), 1),
        look_ms=round(median((b[0] - a[0]) * 1000 for a, b in pairwise(looks)), 1),
        rate=rate,
        partitions_out=partitions,
    )


def bursts(looks: Sequence[tuple[float, int]], gap_s: float = GAP_S) -> list[tuple[float, int]]:
    """Group looks (seconds, visible offsets) into batches: seconds from the first to the last growth, and the growth.

    Without the first and the last batch, which may have been seen in part. A batch that became visible between two
    looks has 0 seconds: it is shorter than a look.
    """
    grown = [(b[0], b[1] - a[1]) for a, b in pairwise(looks) if b[1] > a[1]]
    batches: list[list[tuple[float, int]]] = []
    for at, count in grown:
        if batches and at - batches[-1][-1][0] < gap_s:
            batches[-1].append((at, count))
        else:
            batches.append([(at, count)])
    return [(batch[-1][0] - batch[0][0], sum(count for _, count in batch)) for batch in batches[1:-1]]
