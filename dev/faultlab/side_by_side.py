"""Several systems under the same faults, side by side: what is kept of each run, and the table. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path


@dataclass(frozen=True)
class WatchSample:
    """One look at the output: its moment in seconds, and by partition the last stable offset and the end."""

    at_s: float
    ends: Mapping[int, tuple[int, int]]

    @property
    def visible(self) -> int:
        """Offsets that a read_committed reader can see."""
        return sum(stable for stable, _ in self.ends.values())


@dataclass(frozen=True)
class ComparedLine:
    """One run of one system.

    Attributes
    ----------
    system : str
    seed : int
        Of the plan and of the workload.
    seconds : float
        Faults began in so many seconds.
    timeout_ms : int or None
        Of its transactions; None for a system without.
    faults : dict
        That struck something, by name.
    records : int
        In the input, without those of aborted transactions.
    anomalies : dict
        By name, as :class:`faultlab.judge.LabVerdict` counts them.
    open_transactions, aborted_records : int
        When all was over: transactions that were not; records in the output that no read_committed reader sees.
    starts, failed_starts : int
        By the operator: the first one counts. Each is a hand that the system needed.
    submissions : int
        Of those, how often a job was submitted again from its checkpoint (Flink).
    held_s : float
        The longest time for which readers stood still before records that were in the output already.
    first_s : float
        From the first start to the first visible record: a cold start, before any fault.
    silent_s : float
        The longest time in which no new record became visible, from the first one on.
    failed : str
        Why the run could not be brought to its end.
    """

    system: str
    seed: int
    seconds: float
    timeout_ms: int | None
    faults: dict[str, int] = field(default_factory=dict)
    records: int = 0
    anomalies: dict[str, int] = field(default_factory=dict)
    open_transactions: int = 0
    aborted_records: int = 0
    starts: int = 0
    failed_starts: int = 0
    submissions: int = 0
    held_s: float = 0.0
    first_s: float = 0.0
    silent_s: float = 0.0
    ends: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)
    failed: str = ""


#: The rows that come from the verdict: what people call it, and its name there.
ANOMALIES = {
    "lost": "lost",
    "duplicated": "duplicate",
    "phantom": "phantom",
    "keys out of order": "key reorder",
    "keys on two partitions": "split key",
    "partitions with readers held back at the end": "stalled",
}


def append(path: Path, line: ComparedLine) -> None:
    """Add a line to a file of results."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(line)) + "\n")


def read(path: Path) -> list[ComparedLine]:
    """Every line of a file of results."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [ComparedLine(**json.loads(line)) for line in text.splitlines() if line]


def table(lines: Sequence[ComparedLine]) -> str:
    """Return a table in Markdown: a column for each system, the sums (of times: the longest) over its runs."""
    systems = {
        name: [line for line in lines if line.system == name] for name in dict.fromkeys(li.system for li in lines)
    }
    rows = [
        ["", *systems],
        ["---", *("---:" for _ in systems)],
        ["seeds", *(", ".join(str(li.seed) for li in some) for some in systems.values())],
        ["faults that struck", *(f"{sum(sum(li.faults.values()) for li in some):,}" for some in systems.values())],
        ["records in", *_sums(systems, "records")],
    ]
    for title, name in ANOMALIES.items():
        rows.append([title, *(f"{sum(li.anomalies.get(name, 0) for li in some):,}" for some in systems.values())])
    for title, name in (
        ("transactions left open", "open_transactions"),
        ("records of aborted transactions in the output", "aborted_records"),
        ("starts by the operator", "starts"),
        ("starts that failed", "failed_starts"),
        ("jobs submitted again from a checkpoint, among them", "submissions"),
    ):
        rows.append([title, *_sums(systems, name)])
    for title, name in (
        ("readers stood still before written records, longest, s", "held_s"),
        ("nothing new visible, longest, s", "silent_s"),
        ("from the start to the first visible record, longest, s", "first_s"),
    ):
        rows.append([title, *(f"{max(getattr(li, name) for li in some):.1f}" for some in systems.values())])
    rows.append(["runs without an end", *(str(sum(bool(li.failed) for li in some)) for some in systems.values())])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows).replace("|  |", "| |")


def _sums(systems: Mapping[str, Sequence[ComparedLine]], name: str) -> list[str]:
    return [f"{sum(getattr(li, name) for li in some):,}" for some in systems.values()]


def failed_starts(events: Sequence[str]) -> int:
    """Return the number of ends before which the stream did not run, by the names of a run's events in their order."""
    turns = ["ended", *(name for name in events if name in ("started", "ended"))]
    return sum(before == after == "ended" for before, after in pairwise(turns))


def longest_hold(samples: Sequence[WatchSample]) -> float:
    """Return the longest time in which the last stable offset of a partition stood still below its end, in seconds.

    It counts from the first look that saw the reader stand at that offset with records behind it, to the look that saw
    it move.
    """
    longest, since = 0.0, dict[int, tuple[int, float]]()
    for sample in samples:
        for partition, (stable, end) in sample.ends.items():
            stood = since.get(partition)
            if stood is not None:
                longest = max(longest, sample.at_s - stood[1])
            if stable >= end:
                since.pop(partition, None)
            elif stood is None or stood[0] != stable:
                since[partition] = stable, sample.at_s
    return round(longest, 1)


def first_visible(samples: Sequence[WatchSample], since_s: float) -> float:
    """Return the time from ``since_s`` to the first look that saw a visible record, in seconds; 0.0 without one."""
    return round(max(0.0, next((s.at_s - since_s for s in samples if s.visible), 0.0)), 1)


def longest_silence(samples: Sequence[WatchSample]) -> float:
    """Return the longest time in which no look saw anything new, in seconds.

    It counts from the first visible record to the last one.
    """
    moments = [now.at_s for before, now in pairwise(samples) if now.visible > before.visible]
    return round(max((b - a for a, b in pairwise(moments)), default=0.0), 1)
