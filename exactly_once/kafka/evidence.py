"""What became of a transaction, by the records themselves: asked where an answer to EndTxn cannot tell it.

EndTxn has no definite answer for an id that was initialised again or has expired (KIP-890 and before), nor, below
version 5, for one that timed out. The partitions' logs have: a leader lists the aborted transactions of what it returns
to a read_committed fetch (KIP-98), and a batch of records names its producer. Both are looked for at the first record
of the transaction, whose place is in the handle; only a positive sign counts, so that a compacted or truncated log
proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

from kafka.errors import for_code
from kafka.protocol.consumer.fetch import FetchRequest
from kafka.record.memory_records import MemoryRecords

from exactly_once.deadline import Deadline
from exactly_once.errors import ExactlyOnceError, UnknownTopic
from exactly_once.kafka.control import Description
from exactly_once.kafka.hanging import Leaders
from exactly_once.protocol.records import Place, PreparedTransaction

#: Enough for the first batch of records: the leader returns it whole, however large it is.
_SOME_BYTES = 1024

#: Versions of Fetch with isolation levels and topic names: KIP-98 brought the one, KIP-516 takes the other away in 13.
_FIRST_VERSION, _LAST_VERSION = 4, 12

#: Markers take a moment after the coordinator has decided.
_MARKERS_S = 10.0

_READ_COMMITTED = 1


class Fate(Enum):
    """What became of a transaction."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    OPEN = "open"
    """No reader may pass it yet: its end markers are still to be written."""
    UNKNOWN = "unknown"
    """Its records, or the right to read them, are gone."""


class Evidence(Leaders):
    """Where transactions begin, and how they ended; needs READ on the output topics."""

    def places(self, described: Iterable[Description]) -> dict[str, Place]:
        """Where each of these open transactions has its first record, on one of its partitions.

        Nothing for those whose partitions may not be read: the batch goes on, without this evidence.
        """
        wanted = {d.transactional_id: d for d in described if d.partitions}
        try:
            found = self._open_on(sorted({min(d.partitions) for d in wanted.values()}))
        except ExactlyOnceError:
            return {}
        at = {(h.topic, h.partition, h.producer_id, h.producer_epoch): h.start_offset for h in found}
        keys = {i: (*min(d.partitions), d.producer_id, d.producer_epoch) for i, d in wanted.items()}
        return {i: Place(key[0], key[1], at[key]) for i, key in keys.items() if key in at}

    def fates(self, handles: Sequence[PreparedTransaction]) -> dict[str, Fate]:
        """What became of these transactions, by transactional id. Waits a moment for those whose markers are on their
        way.
        """
        fates = {h.transactional_id: Fate.UNKNOWN if h.place is None else Fate.OPEN for h in handles}
        for _ in Deadline(min(_MARKERS_S, max(1.0, self._deadline.left))).tries():
            todo = [h for h in handles if fates[h.transactional_id] is Fate.OPEN]
            if not todo:
                break
            fates |= {h.transactional_id: self._fate(h) for h in todo}
        return fates

    def _fate(self, handle: PreparedTransaction) -> Fate:
        place = handle.place
        assert place is not None
        try:
            marks = self.watermarks(place.topic).get(place.partition)
            if marks is None or not marks.low <= place.offset < marks.high:
                return Fate.UNKNOWN
            if marks.last_stable <= place.offset:
                return Fate.OPEN
            return read_fate(self._fetch(place), handle)
        except UnknownTopic:
            return Fate.UNKNOWN
        except ExactlyOnceError as e:
            if e.restart_heals:
                raise
            return Fate.UNKNOWN

    def _fetch(self, place: Place) -> Any:
        """The leader's answer for this partition from this offset on, as a read_committed reader gets it."""
        topic = FetchRequest.FetchTopic

        async def ask() -> Any:
            leader = next(
                node
                for node, parts in (await self._leaders([place.topic])).items()
                if (place.topic, place.partition) in parts
            )
            partition = topic.FetchPartition(
                partition=place.partition,
                current_leader_epoch=-1,
                fetch_offset=place.offset,
                last_fetched_epoch=-1,
                log_start_offset=-1,
                partition_max_bytes=_SOME_BYTES,
            )
            request = FetchRequest(
                max_wait_ms=0,
                min_bytes=1,
                max_bytes=_SOME_BYTES,
                isolation_level=_READ_COMMITTED,
                session_id=0,
                session_epoch=-1,
                topics=[topic(topic=place.topic, partitions=[partition])],
                forgotten_topics_data=[],
                rack_id="",
                min_version=_FIRST_VERSION,
                max_version=_LAST_VERSION,
            )
            answer = await self._admin._manager.send(request, node_id=leader)
            found = answer.responses[0].partitions[0]
            if found.error_code:
                raise for_code(found.error_code)(f"Fetch of {place.topic}-{place.partition}")
            return found

        return self._retry(ask)


def read_fate(fetched: Any, handle: PreparedTransaction) -> Fate:
    """What a leader's answer from the first record of ``handle`` on says, which lies before the last stable offset."""
    place = handle.place
    assert place is not None
    if any(
        (t.producer_id, t.first_offset) == (handle.producer_id, place.offset)
        for t in fetched.aborted_transactions or ()
    ):
        return Fate.ABORTED
    if fetched.records:
        records = MemoryRecords(bytes(fetched.records))
        batch = records.next_batch() if records.has_next() else None
        if batch is not None and batch.magic == 2 and batch.is_transactional and not batch.is_control_batch:
            mine = (handle.producer_id, handle.epoch, place.offset)
            if (batch.producer_id, batch.producer_epoch, batch.base_offset) == mine:
                return Fate.COMMITTED
    return Fate.UNKNOWN


def with_places(handles: Sequence[PreparedTransaction], places: Mapping[str, Place]) -> tuple[PreparedTransaction, ...]:
    """The handles with what is known of where their records begin."""
    return tuple(h.at(places.get(h.transactional_id)) for h in handles)
