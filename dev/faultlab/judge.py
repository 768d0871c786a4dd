"""The verdict on a run: the output beside the input, read by a consumer that the sink does not use."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.protocol.names import namespace
from exactly_once.txn.coordinators import list_transactions
from testkit import oracle
from testkit.oracle import UNFINISHED, Message, Row
from testkit.processes import Timeout, until

#: How many offending records a verdict names.
NAMED = 5

#: Markers of the last transactions reach every partition within milliseconds; a busy machine takes longer.
SETTLE_S = 20.0


@dataclass
class LabVerdict:
    """The findings in ``read`` records of the output, where ``records`` were due.

    ``anomalies`` counts by name; ``examples`` names some of the records.
    """

    records: int
    read: int = 0
    anomalies: Counter[str] = field(default_factory=Counter)
    allowed: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)

    @property
    def clean(self) -> bool:
        """True without any anomaly."""
        return not self.anomalies

    def add(self, anomaly: str, found: Sequence[object]) -> None:
        """Count what was found of one kind; nothing when it is empty."""
        if found:
            self.anomalies[anomaly] += len(found)
            self.examples.setdefault(anomaly, []).extend(str(f) for f in found[:NAMED])

    def forgive(self, anomalies: Collection[str]) -> None:
        """Move what a guarantee allows from ``anomalies`` to ``allowed``."""
        for anomaly in set(anomalies) & set(self.anomalies):
            self.allowed[anomaly] = self.anomalies.pop(anomaly)

    def __str__(self) -> str:
        if self.clean:
            allowed = "".join(f", {n} {anomaly} (allowed)" for anomaly, n in self.allowed.items())
            return f"clean: {self.records} records{allowed}"
        counts = ", ".join(f"{n} {anomaly}" for anomaly, n in self.anomalies.items())
        named = "; ".join(f"{anomaly}: {', '.join(some)}" for anomaly, some in self.examples.items())
        return f"NOT CLEAN: {counts} of {self.records} records ({named})"


def compare(found: Sequence[Row], expected: Sequence[Row]) -> LabVerdict:
    """Compare the output with what a system owes. Values are unique; ``found`` is in the order of a reader.

    Anomalies: "lost", "duplicate", "phantom" (never in the input, or aborted there, or with another key), "key reorder"
    (a key's records in another order than in the input; duplicates count once).
    """
    want, have = Counter(expected), Counter(found)
    verdict = LabVerdict(len(expected), len(found))
    verdict.add("lost", sorted((want - have).elements(), key=str))
    extra = sorted((have - want).elements(), key=str)
    verdict.add("duplicate", [r for r in extra if r in want])
    verdict.add("phantom", [r for r in extra if r not in want])
    verdict.add("key reorder", _reordered(found, expected))
    return verdict


def judge_output(connection: Connection, topic: str, expected: Sequence[Row], sink_id: str | None = None) -> LabVerdict:
    """Read a topic as a read_committed reader does, and judge it.

    Beside the anomalies of :func:`compare`: "stalled" (a partition whose last stable offset is below its high
    watermark), "lingering" (a transaction of ``sink_id`` that is not over) and "split key" (a key on two partitions).
    """
    settle(connection, topic, sink_id)
    read = oracle.read(connection, [topic], timeout_s=120)
    verdict = compare([(m.key, m.value) for m in read], expected)
    verdict.add("split key", split_keys(read))
    add_unsettled(verdict, connection, topic, sink_id)
    return verdict


def add_unsettled(verdict: LabVerdict, connection: Connection, topic: str, sink_id: str | None) -> None:
    """Add what :func:`settle` has not seen end: "stalled" and "lingering"."""
    with Admin(connection, SETTLE_S) as admin:
        verdict.add("stalled", [f"{p}: {marks}" for p, marks in oracle.held_back(admin, [topic]).items()])
        if sink_id is not None:
            open_ones = list_transactions(admin, namespace(sink_id), UNFINISHED)
            verdict.add("lingering", [t.transactional_id for t in open_ones])


def settle(connection: Connection, topic: str, sink_id: str | None) -> None:
    """Wait until nothing is open, at most :data:`SETTLE_S`; what is open then is for the verdict."""
    with Admin(connection, SETTLE_S + 10) as admin:

        def settled() -> bool:
            ours = sink_id is not None and list_transactions(admin, namespace(sink_id), UNFINISHED)
            return not ours and not oracle.held_back(admin, [topic])

        try:
            until("the sink to settle", settled, SETTLE_S, 0.2)
        except Timeout:
            return


def _reordered(found: Sequence[Row], expected: Sequence[Row]) -> list[str]:
    """Return the keys whose records come in another order than they should: of each record, the first appearance."""
    place = {row: n for n, row in enumerate(expected)}
    last: dict[str | None, int] = {}
    wrong: dict[str | None, str] = {}
    for row in dict.fromkeys(found):
        if row not in place:
            continue
        if place[row] < last.get(row[0], -1):
            wrong.setdefault(row[0], f"{row}")
        last[row[0]] = max(place[row], last.get(row[0], -1))
    return list(wrong.values())


def split_keys(read: Sequence[Message]) -> list[str]:
    """Return the keys whose records are on more than one partition."""
    partitions: Mapping[str | None, set[int]] = defaultdict(set)
    for m in read:
        partitions[m.key].add(m.partition)
    return [f"{key} on {sorted(on)}" for key, on in partitions.items() if len(on) > 1]
