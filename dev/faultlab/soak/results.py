"""The results of a soak so far: a line of JSON for each piece, and their sums. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

#: End of a topic's part that is judged: an offset for each partition.
Offsets = dict[int, int]


@dataclass(frozen=True)
class SoakSample:
    """One sample of a running piece. None: a process, or the broker, was away. Memory in MiB.

    Attributes
    ----------
    at_s : float
        Seconds since the piece's faults began.
    visible : int
        Offsets of the output that a read_committed reader can see, markers too.
    driver, workers, broker : int
        Resident memory of the driver's JVM, of its Python processes together, and of the broker.
    python, threads, files : int
        The number of those Python processes; threads and open files of the driver's JVM.
    log_bytes, checkpoint_bytes, checkpoint_files : int
        On disk: the commit log, and the checkpoint.
    """

    at_s: float
    visible: int | None = None
    driver: int | None = None
    workers: int | None = None
    python: int | None = None
    threads: int | None = None
    files: int | None = None
    broker: int | None = None
    log_bytes: int | None = None
    checkpoint_bytes: int | None = None
    checkpoint_files: int | None = None


@dataclass(frozen=True)
class Rest:
    """The state when a piece has drained.

    Transactional ids of the sink, offsets of its commit log, and heaps after a full collection in MiB.
    """

    ids: int = 0
    log_offsets: int = 0
    driver_heap: int = 0
    broker_heap: int = 0


@dataclass(frozen=True)
class Piece:
    """One piece.

    Attributes
    ----------
    number : int
        From 0; a piece that was cut short has no line, and its number is not used again.
    seed : int
        Of its plan: that of the soak and the number.
    seconds : float
        From the first fault's clock to the end of the drain.
    records : int
        That the stream owed for this piece, and for a piece before it that ended early.
    batches, starts : int
        Micro-batches that Spark committed; how often the operator started the stream.
    faults, ends : dict
        Faults by name; ends of the stream by their error's code.
    anomalies : dict
        By name; empty for a clean piece.
    failed : str
        Why the piece could not be judged; its records are judged with the next one.
    input_end, output_end : dict
        The next piece begins there.
    """

    number: int
    seed: int
    rate: int
    seconds: float
    records: int = 0
    batches: int = 0
    starts: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    anomalies: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)
    failed: str = ""
    input_end: Offsets = field(default_factory=dict)
    output_end: Offsets = field(default_factory=dict)
    rest: Rest = field(default_factory=Rest)
    samples: tuple[SoakSample, ...] = ()
    history: tuple[tuple[float, str], ...] = ()  #: When each fault was done, and its name.
    commit: str = ""  #: Of the code.
    started: str = ""  #: UTC.

    @property
    def clean(self) -> bool:
        """Judged, without an anomaly."""
        return not self.anomalies and not self.failed


def append(path: Path, piece: Piece) -> None:
    """Add a line to the results."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(piece), separators=(",", ":")) + "\n")


def read(path: Path) -> list[Piece]:
    """Every piece of a file of results, oldest first; none when there is no file."""
    if not path.exists():
        return []
    return [_piece(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines() if line]


def _piece(body: dict[str, Any]) -> Piece:
    body["input_end"], body["output_end"] = (
        {int(p): o for p, o in body[e].items()} for e in ("input_end", "output_end")
    )
    body["rest"], body["samples"] = Rest(**body["rest"]), tuple(SoakSample(**s) for s in body["samples"])
    body["history"] = tuple((at, name) for at, name in body["history"])
    return Piece(**body)


@dataclass(frozen=True)
class Total:
    """All pieces of a soak together."""

    pieces: int
    hours: float
    records: int
    batches: int
    starts: int
    faults: dict[str, int]
    ends: dict[str, int]
    anomalies: dict[str, int]
    failed: int  #: Could not be judged by themselves, or were cut short and have no line.

    @property
    def found(self) -> str:
        """The anomalies, in words."""
        return ", ".join(f"{count} {name}" for name, count in self.anomalies.items()) or "no anomaly"

    @property
    def short(self) -> str:
        """The sums without the names of the faults."""
        return (
            f"{self.pieces} piece(s), {self.hours:.2f} h: {self.records:,} records in {self.batches:,} batches, "
            f"{sum(self.faults.values())} faults of {len(self.faults)} kinds, {self.starts} starts: {self.found}"
        )

    def __str__(self) -> str:
        kinds = ", ".join(f"{name} {count}" for name, count in sorted(self.faults.items()))
        return (
            f"{self.pieces} piece(s), {self.hours:.2f} h: {self.records:,} records in {self.batches:,} batches, "
            f"{sum(self.faults.values())} faults ({kinds or 'none'}), {self.starts} starts: {self.found}"
            + (f"; {self.failed} piece(s) were judged with the next one" if self.failed else "")
        )


def total(pieces: Sequence[Piece]) -> Total:
    """Sum up."""
    return Total(
        pieces=len(pieces),
        hours=sum(p.seconds for p in pieces) / 3600,
        records=sum(p.records for p in pieces),
        batches=sum(p.batches for p in pieces),
        starts=sum(p.starts for p in pieces),
        faults=_summed([p.faults for p in pieces]),
        ends=_summed([p.ends for p in pieces]),
        anomalies=_summed([p.anomalies for p in pieces]),
        failed=sum(bool(p.failed) for p in pieces) + sum(b.number - a.number - 1 for a, b in pairwise(pieces)),
    )


def _summed(counts: Sequence[dict[str, int]]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for some in counts:
        found.update(some)
    return dict(found)


def begins_at(pieces: Sequence[Piece]) -> tuple[Offsets, Offsets]:
    """Return where input and output of the next piece begin: after what was judged."""
    judged = next((p for p in reversed(pieces) if not p.failed), None)
    return (judged.input_end, judged.output_end) if judged else ({}, {})


def spread(at_s: float, length_s: float, over_s: float) -> float:
    """Move a moment of a plan that was drawn for ``length_s`` into ``over_s``."""
    return round(at_s / length_s * over_s, 2)
