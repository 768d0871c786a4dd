"""The report of a verification: its findings, what it proved, what it could not prove, and the balance: the answer on
each record of the output. Pure.

A record is *right* (a decision proves it), *wrong* (an anomaly concerns it), *not judged* (nothing of this sink's
decisions speaks of it) or *not proven* (a decision speaks of it, and the evidence does not suffice).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, NamedTuple

from exactly_once.tools.diagnosis import Diagnosis
from exactly_once.tools.verify.anomalies import Finding

RIGHT, WRONG, NOT_JUDGED, NOT_PROVEN = "right", "wrong", "not judged", "not proven"

#: Reasons why records are not judged.
OTHERS = "other writers"
UNCOMPARED = "other writers' transactions, too many to compare with the decided parts"
UNENDED = "other writers' transactions that have not ended"
OTHER_BATCHES = "this sink's batches outside of those that were checked"

#: The reason why records of an undecided transaction of the sink are not proven.
UNDECIDED = "this sink's transactions that have not ended and are not decided"


class Answer(NamedTuple):
    """One of the four answers, and the reason of the last two."""

    kind: str
    why: str = ""


@dataclass
class TopicBalance:
    """The offsets of one topic, from the log starts to the high watermarks, each under exactly one name.

    There are ``offsets`` of them, as the leaders say. ``right``, ``wrong``, ``not_judged`` and ``not_proven`` count
    records, the last two by reason; so does ``aborted``, those that readers do not get. ``markers`` are the end markers
    of transactions; under ``compacted`` offsets, compaction has left nothing; ``unread`` are before the oldest batch
    that was checked.
    """

    offsets: int = 0
    right: int = 0
    wrong: int = 0
    not_judged: Counter[str] = field(default_factory=Counter)
    not_proven: Counter[str] = field(default_factory=Counter)
    aborted: int = 0
    markers: int = 0
    compacted: int = 0
    unread: int = 0

    @property
    def counts(self) -> dict[str, int]:
        """The number of offsets under each name, for people."""
        return {
            RIGHT: self.right,
            WRONG: self.wrong,
            NOT_JUDGED: self.not_judged.total(),
            NOT_PROVEN: self.not_proven.total(),
            "aborted": self.aborted,
            "end markers": self.markers,
            "removed by compaction": self.compacted,
            "older than what was checked": self.unread,
        }

    @property
    def explained(self) -> int:
        """The number of offsets that have a name."""
        return sum(self.counts.values())

    @property
    def adds_up(self) -> bool:
        """True when each offset has exactly one name."""
        return self.explained == self.offsets

    def plus(self, other: TopicBalance) -> TopicBalance:
        return TopicBalance(**{name: value + getattr(other, name) for name, value in vars(self).items()})

    def as_json(self) -> dict[str, Any]:
        return {
            **vars(self),
            "not_judged": dict(self.not_judged),
            "not_proven": dict(self.not_proven),
            "adds_up": self.adds_up,
        }

    def count(self, answer: Answer, records: int) -> None:
        if answer.kind == RIGHT:
            self.right += records
        elif answer.kind == WRONG:
            self.wrong += records
        else:
            (self.not_judged if answer.kind == NOT_JUDGED else self.not_proven)[answer.why] += records


@dataclass(frozen=True)
class Balance:
    """The balance of each topic that was read."""

    topics: Mapping[str, TopicBalance] = field(default_factory=dict)

    @property
    def total(self) -> TopicBalance:
        return reduce(TopicBalance.plus, self.topics.values(), TopicBalance())

    @property
    def adds_up(self) -> bool:
        """True when each offset of each topic has exactly one name."""
        return all(one.adds_up for one in self.topics.values())

    def as_json(self) -> dict[str, Any]:
        return {
            "topics": {topic: one.as_json() for topic, one in self.topics.items()},
            "total": self.total.as_json(),
            "adds_up": self.adds_up,
        }


#: Most findings of one anomaly in a report; the rest is counted.
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
    counts, kept = Counter[str](), list[Finding]()
    for f in findings:
        counts[f.anomaly.value] += 1
        if counts[f.anomaly.value] <= MOST_FINDINGS:
            kept.append(f)
    return tuple(kept), dict(counts)
