"""An output as the checker reads it back, made without a broker: its transactions in the order of the log, and their
end markers. For the verdicts that are pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from types import SimpleNamespace

from kafka.record.default_records import DefaultRecordBatchBuilder

from exactly_once.digest import RowDigest
from exactly_once.participants.kafka.digest_scope import PLAIN, add_read
from exactly_once.protocol.batch_headers import Header
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.records import Completed, Decision, Place, PreparedTransaction
from exactly_once.tools.verify.by_log.judge import differing
from exactly_once.tools.verify.by_log.ledger import Copies, Ledger, Writer
from exactly_once.txn.scan import LogBatch
from testkit.part_ids import part_id

SINK, TOPIC, QUERY = "orders", "out", "q"

#: When markers are written unless told otherwise, and when batches are decided: right before.
MARKED_MS, DECIDED_MS = 20_000, 19_900


class ReadBack:
    """A topic. Each transaction has a producer of its own, as in the sink."""

    def __init__(self) -> None:
        self.batches: list[LogBatch] = []
        self.ids: dict[int, str] = {}
        self._ends: Counter[int] = Counter()

    def write(
        self,
        writer: Writer,
        values: Sequence[str],
        partition: int = 0,
        *,
        hidden: bool = False,
        transactional: bool = True,
        dated: bool = False,
        headers: Sequence[Header] = (),
    ) -> int:
        """Write one batch of records; returns the offset of the first. The key of each is its value."""
        first = self._ends[partition]
        self._ends[partition] += len(values)
        made = DefaultRecordBatchBuilder(2, 0, transactional, *writer, 0, 1 << 20)
        for n, value in enumerate(values):
            made.append(n, 7, value.encode(), value.encode(), list(headers))
        self.batches.append(
            LogBatch(TOPIC, partition, first, first + len(values) - 1, *writer, transactional, None, hidden, True,
                  1_000, dated, len(values), bytes(made.build()))
        )  # fmt: skip
        return first

    def end(self, writer: Writer, partition: int = 0, commit: bool = True, at_ms: int = MARKED_MS) -> None:
        """Write an end marker."""
        at = self._ends[partition]
        self._ends[partition] += 1
        self.batches.append(
            LogBatch(TOPIC, partition, at, at, *writer, True, commit, False, True, at_ms, False, 1, b"")
        )

    def end_parts(self, *handles: PreparedTransaction) -> None:
        """Commit parts that were left open, one after the other."""
        for handle in handles:
            for partition in (0, 1):
                self.end((handle.producer_id, handle.epoch), partition)

    def part(
        self,
        batch: int,
        part: int = 0,
        *,
        records: int = 4,
        partitions: Sequence[int] = (0, 1),
        commit: bool | None = True,
        attempt: str = "0.0",
        token: int = 1,
        rows: str = "",
        at_ms: int = MARKED_MS,
        hidden: bool = False,
        form: str = PLAIN,
        dated: bool = False,
        headers: Sequence[Header] = (),
    ) -> PreparedTransaction:
        """Write a part, spread over partitions, and end it (None: leave it open); returns its handle.

        ``headers`` are those of each record.
        ``rows`` distinguishes rows; by default it is those of this batch and part, in any attempt.
        """
        writer = 100 + len(self.ids), 3
        self.ids[writer[0]] = part_id(SINK, token, part, attempt)
        digest, place = RowDigest(), None
        for number, partition in enumerate(partitions):
            mine = [f"{rows or f'{batch}-{part}'}-{n}" for n in range(records) if n % len(partitions) == number]
            first = self.write(writer, mine, partition, hidden=hidden or commit is False, dated=dated, headers=headers)
            place = place or Place(TOPIC, partition, first)
            add_read(digest, form or PLAIN, TOPIC, partition, read(mine, headers))
        if commit is not None:
            for partition in partitions:
                self.end(writer, partition, commit, at_ms)
        return PreparedTransaction(
            self.ids[writer[0]], *writer, part, records, 0, digest.text, place, end_txn_version=2, form=form
        )

    def ledger(self, *decisions: Decision, copies: Copies | None = None) -> Ledger:
        """Return what the checker knows of the topic after it has read it."""
        ledger = Ledger.of_sink(decisions, self.ids)
        ledger.copies = copies or ledger.copies
        for batch in self.batches:
            ledger.add(batch)
        differing(decisions, ledger)
        for batch in self.batches:
            ledger.add_again(batch)
        return ledger


def read(values: Iterable[str], headers: Sequence[Header] = ()) -> list[SimpleNamespace]:
    """Return records as kafka-python reads them."""
    return [SimpleNamespace(key=v.encode(), value=v.encode(), headers=[*headers], timestamp=7) for v in values]


def decided(number: int, *parts: PreparedTransaction, query: str = QUERY, token: int = 1, **more: object) -> Decision:
    """Return the decision of a batch."""
    return Decision(query, number, token, parts, "", 2, 0, topics=(TOPIC,), **more)  # type: ignore[arg-type]


def log_of(
    *decisions: Decision, marked: bool | Sequence[int] = True, at_ms: int = DECIDED_MS, **more: object
) -> LogState:
    """Return the commit log with these decisions, and the completed marks of all or of these batches."""
    done = [d for d in decisions if marked is True or (marked and d.batch_id in marked)]
    return LogState(
        decisions=decisions,
        marks={(d.query_id, d.batch_id): Completed(d.query_id, d.batch_id, d.token, at_ms + 200) for d in done},
        decided_ms={(d.query_id, d.batch_id): at_ms for d in decisions},
        **more,  # type: ignore[arg-type]
    )
