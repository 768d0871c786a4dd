"""The report of a verification: its findings, what it proved, and what it could not prove."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from exactly_once.diagnosis import Diagnosis
from exactly_once.verify.anomalies import Finding
from exactly_once.verify.answers import Balance

#: Findings of one anomaly in a report; the rest is counted.
MOST_FINDINGS = 50


class Progress(NamedTuple):
    """The progress of a verification: offsets that it has read, of all that it will read as known so far."""

    step: str
    done: int
    of: int


OnProgress = Callable[[Progress], None]


@dataclass(frozen=True)
class Report:
    """The result of a verification.

    Attributes
    ----------
    sink_id : str
    findings : tuple of Finding
        The anomalies, at most :data:`MOST_FINDINGS` of each kind; ``counts`` has them all.
    batches, parts, records : int
        What was proven by the commit log: decided batches whose every part is visible with the number, the digest and
        the place that the decision names; with the parts and records in them.
    unproven : mapping of str to int
        Parts that could not be proven, by reason: an old version's decision without digests, records that retention or
        compaction removed, ...
    by_origin : mapping of str to int
        What was compared by the records' origin: ``input`` records expected, ``output`` records read; empty without
        an origin, and before the first batch.
    first_batch, last_batch : str
        The range that the commit log proves; "" when it holds no decision.
    read : int
        Output records that were read.
    took_s : float
    checked_ms : int
        By this machine's clock.
    claimed : bool
        Whether a driver has ever claimed the sink on this cluster.
    window : str
        Which part of the input was compared by origin; "" for all of it.
    against_sink : str
        The sink whose output was compared with this one's; "" without one.
    against : mapping of str to int
        What was compared with it: ``input`` records that have an output, how many have the ``same`` in both,
        and those of each anomaly; empty where there was nothing to compare.
    not_searched : int
        Topics that no decision names, and that this principal may not read: whether the sink wrote there is not known.
    balance : Balance
        The offsets of the output topics that were read for the commit log, each under one name: records that are right,
        wrong, not judged or not proven, and what is no record that readers get.
    removed : mapping of str to int
        Records that the decisions count and that are in the output no more, by reason; ``unproven`` has their parts.
    diagnoses : tuple of Diagnosis
        What is wrong with the sink itself, as every screen says it; those that contradict exactly-once are findings,
        too.
    """

    sink_id: str
    findings: tuple[Finding, ...] = ()
    batches: int = 0
    parts: int = 0
    records: int = 0
    unproven: Mapping[str, int] = field(default_factory=dict)
    by_origin: Mapping[str, int] = field(default_factory=dict)
    first_batch: str = ""
    last_batch: str = ""
    read: int = 0
    took_s: float = 0.0
    checked_ms: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    claimed: bool = False
    not_searched: int = 0
    window: str = ""
    against_sink: str = ""
    against: Mapping[str, int] = field(default_factory=dict)
    balance: Balance = field(default_factory=Balance)
    removed: Mapping[str, int] = field(default_factory=dict)
    diagnoses: tuple[Diagnosis, ...] = ()

    @property
    def clean(self) -> bool:
        """True when no anomaly was found."""
        return not self.findings

    @property
    def nothing_yet(self) -> bool:
        """True when there is nothing to prove: no batch is decided, and none was compared by origin."""
        return self.clean and not self.last_batch and not self.by_origin

    @property
    def proves_nothing(self) -> bool:
        """True when batches are decided, and nothing of them could be proven."""
        return not (self.nothing_yet or self.batches or self.parts or self.by_origin)

    def as_json(self) -> dict[str, Any]:
        """Plain values: what ``json.dumps`` takes."""
        return {
            "sink_id": self.sink_id,
            "clean": self.clean,
            "nothing_yet": self.nothing_yet,
            "anomalies": dict(self.counts),
            "findings": [f.as_json() for f in self.findings],
            "proven": {"batches": self.batches, "parts": self.parts, "records": self.records},
            "first_batch": self.first_batch,
            "last_batch": self.last_batch,
            "unproven": dict(self.unproven),
            "by_origin": dict(self.by_origin),
            "window": self.window,
            "against": {"sink_id": self.against_sink, **self.against} if self.against_sink else None,
            "balance": self.balance.as_json(),
            "removed": dict(self.removed),
            "diagnoses": [d.as_json() for d in self.diagnoses],
            "topics_not_searched": self.not_searched,
            "read": self.read,
            "took_s": round(self.took_s, 3),
            "checked_ms": self.checked_ms,
        }


def limited(findings: list[Finding]) -> tuple[tuple[Finding, ...], dict[str, int]]:
    """Return at most :data:`MOST_FINDINGS` findings of each anomaly, and the number of all by anomaly."""
    counts = Counter(f.anomaly.value for f in findings)
    shown: Counter[str] = Counter()
    kept = []
    for f in findings:
        shown[f.anomaly.value] += 1
        if shown[f.anomaly.value] <= MOST_FINDINGS:
            kept.append(f)
    return tuple(kept), dict(counts)
