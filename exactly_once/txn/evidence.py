"""Evidence of how a transaction ended, from the records themselves: used where EndTxn's answer is ambiguous.

EndTxn has no definite answer for an id that was initialised again or has expired (KIP-890 and before), nor, below
version 5, for one that timed out. The partitions' logs have: a leader lists the aborted transactions of what it returns
to a read_committed fetch (KIP-98), and a batch of records names its producer. Both are looked for at the first record
of the transaction, whose place is in the handle. While another application's open transaction holds read_committed
fetches back, the end marker of the producer says the same. Only a positive sign counts, so that a compacted or
truncated log proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import Any

from kafka.record.memory_records import MemoryRecords

from exactly_once.deadline import Deadline
from exactly_once.errors import ExactlyOnceError, UnknownTopic
from exactly_once.kafka.admin import Admin, Watermarks
from exactly_once.protocol.records import Place, PreparedTransaction
from exactly_once.txn.fetch import READ_COMMITTED, READ_UNCOMMITTED, fetch
from exactly_once.txn.leaders import open_on

#: Bytes that are enough for the first batch of records: the leader returns it whole, however large it is.
_SOME_BYTES = 1024

#: Bytes that are read at once, on the way to an end marker.
_MANY_BYTES = 4 * 1024 * 1024

#: Longest wait for markers, which take a moment after the coordinator has decided.
_MARKERS_S = 10.0


class TransactionOutcome(Enum):
    """The outcome of a transaction."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    OPEN = "open"
    """No reader may pass it yet: its end markers are still to be written."""
    UNKNOWN = "unknown"
    """Its records, or the right to read them, are gone."""


def transaction_outcomes(admin: Admin, handles: Sequence[PreparedTransaction]) -> dict[str, TransactionOutcome]:
    """Return what became of these transactions, by transactional id; it needs READ on the output topics.

    Waits a moment for those whose markers are on their way.
    """
    found = {
        h.transactional_id: TransactionOutcome.UNKNOWN if h.place is None else TransactionOutcome.OPEN for h in handles
    }
    for _ in Deadline(min(_MARKERS_S, max(1.0, admin.deadline.left))).tries():
        todo = [h for h in handles if found[h.transactional_id] is TransactionOutcome.OPEN]
        if not todo:
            break
        marks: dict[str, dict[int, Watermarks]] = {}
        found |= {h.transactional_id: _outcome_of(admin, h, marks) for h in todo}
    return found


def _outcome_of(
    admin: Admin, handle: PreparedTransaction, seen: dict[str, dict[int, Watermarks]]
) -> TransactionOutcome:
    """Ask how one transaction ended. ``seen`` are the watermarks of this round, by topic, which it adds to."""
    place = handle.place
    assert place is not None
    try:
        if place.topic not in seen:
            seen[place.topic] = admin.watermarks(place.topic)
        marks = seen[place.topic].get(place.partition)
        if marks is None or not marks.low <= place.offset < marks.high:
            return TransactionOutcome.UNKNOWN
        if marks.last_stable > place.offset:
            return read_outcome(fetch(admin, place[:2], place.offset, READ_COMMITTED, _SOME_BYTES), handle)
        mine = (handle.producer_id, place.offset)
        if any((h.producer_id, h.start_offset) == mine for h in open_on(admin, [(place.topic, place.partition)])):
            return TransactionOutcome.OPEN
        return read_marker(_batches(admin, place), handle)  # another transaction holds the partition back
    except UnknownTopic:
        return TransactionOutcome.UNKNOWN
    except ExactlyOnceError as e:
        if e.restart_heals:
            raise
        return TransactionOutcome.UNKNOWN


def _batches(admin: Admin, place: Place) -> Iterator[Any]:
    """Yield the batches of records from ``place`` to the end of the partition, markers included."""
    offset = place.offset
    while not admin.deadline.over:
        fetched = fetch(admin, place[:2], offset, READ_UNCOMMITTED, _MANY_BYTES)
        records, before = MemoryRecords(bytes(fetched.records or b"")), offset
        while records.has_next():
            batch = records.next_batch()
            if batch is None or batch.magic != 2:
                return
            if batch.next_offset > offset:
                offset = batch.next_offset
                yield batch
        if offset == before:
            return


def read_outcome(fetched: Any, handle: PreparedTransaction) -> TransactionOutcome:
    """Return the outcome that a leader's answer proves.

    The answer begins at the first record of ``handle``, which lies before the last stable offset.
    """
    place = handle.place
    assert place is not None
    if any(
        (t.producer_id, t.first_offset) == (handle.producer_id, place.offset)
        for t in fetched.aborted_transactions or ()
    ):
        return TransactionOutcome.ABORTED
    if fetched.records:
        records = MemoryRecords(bytes(fetched.records))
        batch = records.next_batch() if records.has_next() else None
        if batch is not None and _begins(batch, handle):
            return TransactionOutcome.COMMITTED
    return TransactionOutcome.UNKNOWN


def read_marker(batches: Iterable[Any], handle: PreparedTransaction) -> TransactionOutcome:
    """Return the outcome that the end marker of ``handle`` among ``batches`` proves; they begin at its first record.

    It is the first marker of the producer after that record: a transaction has an initialisation of its own, and the
    next one of the same producer begins after the end of this one.
    """
    found = iter(batches)
    first = next(found, None)
    if first is None or not _begins(first, handle):
        return TransactionOutcome.UNKNOWN
    for batch in found:
        if batch.is_control_batch and batch.producer_id == handle.producer_id:
            marker: Any = next(batch)
            return (
                TransactionOutcome.COMMITTED
                if marker.commit
                else TransactionOutcome.ABORTED
                if marker.abort
                else TransactionOutcome.UNKNOWN
            )
    return TransactionOutcome.OPEN


def _begins(batch: Any, handle: PreparedTransaction) -> bool:
    """Return whether the transaction of ``handle`` begins with ``batch``."""
    place = handle.place
    if place is None or batch.magic != 2 or not batch.is_transactional or batch.is_control_batch:
        return False
    mine = (handle.producer_id, handle.epoch, place.offset)
    return bool((batch.producer_id, batch.producer_epoch, batch.base_offset) == mine)
