"""Compares the contents of the topics with the package: what ``exactly-once verify`` cannot know. Pure.

Every event in ``flights`` must be one of the package's, in its order, and every output must be what its event becomes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from dagster_exactly_once import Record
from exactly_once.error_headers import reason_in
from platform_assets.constants import FLIGHT_DELAYS, FLIGHT_DELAYS_REJECTED
from platform_assets.flights.origin import encoded, origin, split

#: Examples kept for each kind of fault.
EXAMPLES = 3


@dataclass
class Findings:
    """The result of the comparison.

    Attributes
    ----------
    expected : int
        Events of the package.
    records_in, out, rejected : int
        Records in ``flights``, ``flight_delays`` and ``flight_delays_rejected``.
    foreign : int
        Records of ``flights`` that are not from the package: allowed, and they must come out like all others.
    faults : dict
        By kind, how often: ``not fed``, ``fed twice`` and ``fed out of order`` are events of the package in
        ``flights``; ``wrong`` are output records that differ from what was computed, and rejected ones that should not
        be.
    """

    expected: int = 0
    records_in: int = 0
    foreign: int = 0
    out: int = 0
    rejected: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    examples: list[str] = field(default_factory=list)


class Contents:
    """Compares the three topics, each read in offset order: all inputs first, then both outputs.

    Parameters
    ----------
    events : iterable of bytes
        The values that ``flights`` must hold, in the order of their sequence numbers.
    delays : iterable of (str or None, dict)
        Key and value, without ``src``, of what ``flight_delays`` must hold for them.
    """

    def __init__(self, events: Iterable[bytes], delays: Iterable[tuple[str | None, dict[str, Any]]]):
        # Hashes within one process are enough to tell records apart, and a tenth of the memory of the records.
        self._sequence = {hash(value): n for n, value in enumerate(events)}
        self._expected: list[int] = []
        self._fields: tuple[str, ...] = ()
        for key, body in delays:
            self._fields = self._fields or tuple(body)
            self._expected.append(hash((key, encoded(body))))
        self._fed = bytearray(len(self._expected))
        self._sources: dict[tuple[int, int], int] = {}  # (partition, offset) -> hash of the value
        self._last_fed: dict[bytes, tuple[int, int]] = {}
        self._findings = Findings(expected=len(self._expected))

    def add_input(self, record: Record) -> None:
        """Add a record of ``flights``."""
        found = self._findings
        found.records_in += 1
        fingerprint = hash(record.value)
        self._sources[record.partition, record.offset] = fingerprint
        sequence = self._sequence.get(fingerprint)
        if sequence is None:
            found.foreign += 1
            return
        if self._fed[sequence]:
            self._fault("fed twice", record, f"event {sequence}")
        self._fed[sequence] = 1
        if record.key is not None:
            partition, last = self._last_fed.get(record.key, (record.partition, -1))
            if partition != record.partition or sequence < last:
                self._fault("fed out of order", record, f"event {sequence} after {last}")
            self._last_fed[record.key] = (record.partition, max(sequence, last))

    def add_output(self, record: Record) -> None:
        """Add a record of ``flight_delays``."""
        self._findings.out += 1
        fingerprint = self._source_of(FLIGHT_DELAYS, record)
        sequence = self._sequence.get(fingerprint) if fingerprint is not None else None
        if sequence is not None:
            key = record.key.decode(errors="replace") if record.key is not None else None
            if not self._equal(key, (record.value or b"").decode(), self._expected[sequence]):
                self._fault("wrong", record, f"it is not what event {sequence} should become")

    def _equal(self, key: str | None, text: str, expected: int) -> bool:
        """Return whether a record is equal as text, or as JSON: other spaces, fields in another order."""
        if hash((key, split(text)[0])) == expected:
            return True
        body = json.loads(text)
        ordered = {name: body.get(name) for name in self._fields}
        return body.keys() == {*self._fields, "src"} and hash((key, encoded(ordered))) == expected

    def add_rejected(self, record: Record) -> None:
        """Add a record of ``flight_delays_rejected``."""
        self._findings.rejected += 1
        fingerprint = self._source_of(FLIGHT_DELAYS_REJECTED, record)
        if fingerprint is None:
            return
        if hash(record.value) != fingerprint:
            self._fault("wrong", record, "it is not the event at its source")
        elif fingerprint in self._sequence:
            self._fault("wrong", record, f"a valid event was rejected: {reason_in(record.headers)}")

    def findings(self) -> Findings:
        """Return the result, after all three topics were added."""
        if missing := len(self._expected) - sum(self._fed):
            self._findings.faults["not fed"] = missing
        return self._findings

    def _source_of(self, topic: str, record: Record) -> int | None:
        """Return the fingerprint of the event that a record names; None when there is none."""
        place = origin(topic, record)
        if place is None:
            self._fault("wrong", record, "it does not name its source")
        return self._sources.get(place) if place is not None else None

    def _fault(self, kind: str, record: Record, why: str) -> None:
        count = self._findings.faults.get(kind, 0) + 1
        self._findings.faults[kind] = count
        if count <= EXAMPLES:
            self._findings.examples.append(f"{kind}: partition {record.partition} offset {record.offset}: {why}")
