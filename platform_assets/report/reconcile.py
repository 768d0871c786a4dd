"""Counts the lost, repeated, misordered and wrong records of the output. Pure: records in, figures out.

Two independent comparisons. By place: every record of ``flights`` must appear exactly once in the two output topics,
and each output names its source partition and offset. By content: every event must equal the one computed from the
package.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from dagster_exactly_once.declare.origin import Record

#: Examples kept for each kind of fault.
EXAMPLES = 3


@dataclass
class Findings:
    """The result of the reconciliation. All counts except the first four must be 0.

    Attributes
    ----------
    expected : int
        Events of the package.
    records_in, out, rejected : int
        Records in ``flights``, ``flight_delays`` and ``flight_delays_rejected``.
    foreign : int
        Records of ``flights`` that are not from the package: allowed, and they must come out like all others.
    not_fed, fed_twice, fed_out_of_order : int
        Events of the package missing in ``flights``, there too often, or in the wrong order for their key.
    lost, duplicated, out_of_order : int
        Input records with no output, output records beyond the first for their source, and records that come after a
        later one of the same key.
    invented : int
        Output records whose source is not in the input.
    wrong : int
        Output records that differ from what was computed from the package, and rejected ones that should not be.
    """

    expected: int = 0
    records_in: int = 0
    foreign: int = 0
    out: int = 0
    rejected: int = 0
    not_fed: int = 0
    fed_twice: int = 0
    fed_out_of_order: int = 0
    lost: int = 0
    duplicated: int = 0
    out_of_order: int = 0
    invented: int = 0
    wrong: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def faults(self) -> dict[str, int]:
        """The counts that must be 0 and are not."""
        names = ("not_fed", "fed_twice", "fed_out_of_order", "lost", "duplicated", "out_of_order", "invented", "wrong")
        return {name: count for name in names if (count := getattr(self, name))}


class Reconciler:
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
            self._expected.append(hash((key, _text(body))))
        self._fed = bytearray(len(self._expected))
        self._sources: dict[tuple[int, int], int] = {}  # (partition, offset) -> hash of the value
        self._seen: set[tuple[int, int]] = set()
        self._last_fed: dict[bytes, tuple[int, int]] = {}
        self._last_out: dict[tuple[str, bytes], tuple[int, int, int]] = {}  # order holds within a topic
        self._findings = Findings(expected=len(self._expected))
        self._examples: dict[str, int] = {}

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
            self._fault("fed_twice", record, f"event {sequence}")
        self._fed[sequence] = 1
        if record.key is not None:
            partition, last = self._last_fed.get(record.key, (record.partition, -1))
            if partition != record.partition or sequence < last:
                self._fault("fed_out_of_order", record, f"event {sequence} after {last}")
            self._last_fed[record.key] = (record.partition, max(sequence, last))

    def add_output(self, record: Record) -> None:
        """Add a record of ``flight_delays``."""
        self._findings.out += 1
        try:
            text = (record.value or b"").decode()
            body, source = split(text)
            place = (int(source["partition"]), int(source["offset"]))
        except (ValueError, KeyError, TypeError, AttributeError):
            self._fault("wrong", record, "it does not name its source")
            return
        fingerprint = self._came_from("out", record, place)
        sequence = self._sequence.get(fingerprint) if fingerprint is not None else None
        if sequence is not None:
            key = record.key.decode(errors="replace") if record.key is not None else None
            if hash((key, body)) != self._expected[sequence] and not self._equal(key, text, sequence):
                self._fault("wrong", record, f"it is not what event {sequence} should become")

    def _equal(self, key: str | None, text: str, sequence: int) -> bool:
        """Return whether a record that is not equal as text is equal as JSON: other spaces, fields in another order."""
        body = json.loads(text)
        if body.keys() != {*self._fields, "src"}:
            return False
        return hash((key, _text({name: body[name] for name in self._fields}))) == self._expected[sequence]

    def add_rejected(self, record: Record) -> None:
        """Add a record of ``flight_delays_rejected``."""
        self._findings.rejected += 1
        headers = dict(record.headers)
        try:
            place = (int(headers["source.partition"]), int(headers["source.offset"]))
        except (KeyError, ValueError):
            self._fault("wrong", record, "it does not name its source")
            return
        fingerprint = self._came_from("rejected", record, place)
        if fingerprint is None:
            return
        if hash(record.value) != fingerprint:
            self._fault("wrong", record, "it is not the event at its source")
        elif fingerprint in self._sequence:
            self._fault("wrong", record, f"a valid event was rejected: {headers.get('reason', b'')!r}")

    def findings(self) -> Findings:
        """Return the result, after all three topics were added."""
        found = self._findings
        found.not_fed = len(self._expected) - sum(self._fed)
        lost = self._sources.keys() - self._seen
        found.lost = len(lost)
        for partition, offset in sorted(lost)[:EXAMPLES]:
            found.examples.append(f"lost: flights partition {partition} offset {offset} has no output")
        return found

    def _came_from(self, topic: str, record: Record, place: tuple[int, int]) -> int | None:
        """Note that the source at ``place`` has an output; returns its fingerprint, None when nothing more can be
        checked.
        """
        fingerprint = self._sources.get(place)
        if fingerprint is None:
            self._fault("invented", record, f"there is no input at {place}")
            return None
        if place in self._seen:
            self._fault("duplicated", record, f"again the input at {place}")
            return None
        self._seen.add(place)
        if record.key is not None:
            last = self._last_out.get((topic, record.key))
            if last is not None and (last[0] != record.partition or last[1:] > place):
                self._fault("out_of_order", record, f"input {place} after {last[1:]}")
            if last is None or last[1:] < place:
                self._last_out[topic, record.key] = (record.partition, *place)
        return fingerprint

    def _fault(self, kind: str, record: Record, why: str) -> None:
        setattr(self._findings, kind, getattr(self._findings, kind) + 1)
        self._examples[kind] = self._examples.get(kind, 0) + 1
        if self._examples[kind] <= EXAMPLES:
            self._findings.examples.append(f"{kind}: partition {record.partition} offset {record.offset}: {why}")


_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
_SOURCE = ',"src":'


def _text(body: dict[str, Any]) -> str:
    return _encode(body)


def split(text: str) -> tuple[str, dict[str, Any]]:
    """Return the text of a record without its last field, ``src``, and that field.

    Parsing all of it would take four times as long.
    """
    at = text.rfind(_SOURCE)
    if at >= 0 and text.endswith("}}"):
        return text[:at] + "}", json.loads(text[at + len(_SOURCE) : -1])
    body = json.loads(text)
    source = body.pop("src")
    return _text(body), source
