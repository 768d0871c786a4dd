"""Batches of an output beside Kafka, written and decided by hand, so that a test can plant what must never be there."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa

from exactly_once.participant import Participant, PartName
from exactly_once.protocol.log_state import LogState, fold
from exactly_once.protocol.names import incarnation
from exactly_once.protocol.records import Claim, Completed, Decision, Entry, PreparedPart, Record
from exactly_once.tools.verify.anomalies import Finding
from exactly_once.tools.verify.by_log.judge import Verdict
from exactly_once.tools.verify.outputs import judge_outputs, read_again, read_outputs

SINK = "orders"
LOG = incarnation("cluster", "log")
ROWS = pa.schema([("id", pa.int64()), ("word", pa.string())])
QUERY = "q"


class Planted:
    """A sink without Kafka, with any outputs; its owner has claim 3. A batch has two parts of three rows."""

    def __init__(self, *outputs: Participant[Any]):
        self.outputs = outputs
        self.records: list[Record] = []
        self.claim(3)
        for output in outputs:
            output.check(SINK, ROWS)

    def claim(self, token: int) -> None:
        """Another driver becomes the owner."""
        self.token = token
        self.records.append(Claim(token, QUERY, 0, "stream", "h", 1))

    def part(self, output: Participant[Any], batch: int, part: int, attempt: str = "0.1") -> PreparedPart:
        """Write and prepare a part; the same rows in every attempt and every output."""
        writer = output.begin(PartName(SINK, self.token, batch, part, attempt, LOG, output.name))
        first = batch * 100 + part * 10
        writer.write(pa.RecordBatch.from_pylist([{"id": first + n, "word": f"w{n}"} for n in range(3)], schema=ROWS))
        handle = writer.pre_commit()
        assert isinstance(handle, PreparedPart)
        return handle

    def batch(self, number: int, *, commit: bool = True, mark: bool = True) -> Decision:
        """Write and decide a batch; commit it in every output, and mark it completed, unless told otherwise."""
        handles = [self.part(output, number, part) for output in self.outputs for part in range(2)]
        decision = Decision(QUERY, number, self.token, tuple(handles), "", 2, 0)
        self.records.append(decision)
        for output in self.outputs if commit else ():
            assert list(output.commit(decision.parts_of(output.name))) == []
        if mark:
            self.records.append(Completed(QUERY, number, self.token, 0))
        return decision

    @property
    def log(self) -> LogState:
        return fold(Entry(record, offset) for offset, record in enumerate(self.records))

    def verdict(self, *outputs: Participant[Any], since: int = 0) -> Verdict:
        """Return the verdict on all batches since ``since``, with all of the sink's outputs unless some are given."""
        log, verdict = self.log, Verdict()
        decisions = [d for d in log.decisions if d.batch_id >= since]
        verdict.whole |= {(d.query_id, d.batch_id) for d in decisions}
        given = outputs or self.outputs
        seen = read_again(SINK, decisions, given, read_outputs(SINK, decisions, given))
        judge_outputs(decisions, log, seen, verdict)
        return verdict

    def anomalies(self) -> Counter[str]:
        """Return the names of what is found, with their numbers."""
        return Counter(f.anomaly.value for f in self.verdict().findings)

    def finding(self, anomaly: str) -> Finding:
        """Return the one finding of this name."""
        (found,) = (f for f in self.verdict().findings if f.anomaly.value == anomaly)
        return found
