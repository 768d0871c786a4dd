"""Evidence of how a transaction ended, from the records themselves: used where EndTxn's answer is ambiguous.

EndTxn has no definite answer for an id that was initialised again or has expired (KIP-890 and before), nor, below
version 5, for one that timed out. The partitions' logs have: a leader lists the aborted transactions of what it returns
to a read_committed fetch (KIP-98), and a batch of records names its producer. Both are looked for at the first record
of the transaction, whose place is in the handle. While somebody else's open transaction holds read_committed fetches
back, the end marker of the producer says the same. Only a positive sign counts, so that a compacted or truncated log
proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from kafka.errors import for_code
from kafka.protocol.consumer.fetch import FetchRequest
from kafka.record.memory_records import MemoryRecords

from exactly_once.deadline import Deadline
from exactly_once.errors import ExactlyOnceError, UnknownTopic
from exactly_once.kafka.control import Description
from exactly_once.kafka.hanging import Leaders, Partition
from exactly_once.kafka.raw import Watermarks
from exactly_once.protocol.records import Place, PreparedTransaction

#: Enough for the first batch of records: the leader returns it whole, however large it is.
_SOME_BYTES = 1024

#: At once, on the way to an end marker.
_MANY_BYTES = 4 * 1024 * 1024

#: (Transaction, partition) pairs that are looked at before a decision, at least one for each transaction. A leader
#: answers with every producer that wrote to the partition within a day, at some 30 microseconds each: for this many
#: pairs a tenth of a second.
_PAIRS = 1_000

#: A leader that says that a transaction is not there is asked again for this long: it may be one that has been deposed
#: and does not know it yet.
_SURE_S = 2.0

#: Versions of Fetch with isolation levels and topic names: KIP-98 brought the one, KIP-516 takes the other away in 13.
_FIRST_VERSION, _LAST_VERSION = 4, 12

#: Markers take a moment after the coordinator has decided.
_MARKERS_S = 10.0

_READ_UNCOMMITTED, _READ_COMMITTED = 0, 1


class Fate(Enum):
    """The outcome of a transaction."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    OPEN = "open"
    """No reader may pass it yet: its end markers are still to be written."""
    UNKNOWN = "unknown"
    """Its records, or the right to read them, are gone."""


class Beginnings(NamedTuple):
    """The partition leaders' reports about open transactions; see :meth:`Evidence.beginnings`.

    Attributes
    ----------
    places : dict of str to Place
        By transactional id, where the transaction has its first record, on one of its partitions.
    missing : dict of str to (str, int)
        By transactional id, a partition of the transaction whose leader knows no such open transaction: its records are
        gone.
    unasked : str
        Why some leaders could not be asked; "" when all were.
    """

    places: dict[str, Place]
    missing: dict[str, Partition]
    unasked: str = ""


class Evidence(Leaders):
    """Finds where transactions begin, and how they ended; needs READ on the output topics."""

    def beginnings(self, described: Iterable[Description]) -> Beginnings:
        """Find the first record of each of these open transactions, or that it has none.

        Partitions that may not be read, and leaders that do not answer, say nothing either way.
        """
        wanted = {d.transactional_id: d for d in described if d.partitions}
        each = max(1, _PAIRS // max(1, len(wanted)))
        asked = sorted({p for d in wanted.values() for p in d.partitions[:each]})
        found = Beginnings({}, {})
        for _ in Deadline(min(_SURE_S, self._deadline.left)).tries():
            try:
                answers, unasked = self._producers_on(asked)
            except ExactlyOnceError as e:
                return found if found.missing else Beginnings({}, {}, e.what)
            found = read_beginnings(wanted.values(), answers, each, unasked)
            if not found.missing:
                break
        return found

    def fates(self, handles: Sequence[PreparedTransaction]) -> dict[str, Fate]:
        """What became of these transactions, by transactional id. Waits a moment for those whose markers are on their
        way.
        """
        fates = {h.transactional_id: Fate.UNKNOWN if h.place is None else Fate.OPEN for h in handles}
        for _ in Deadline(min(_MARKERS_S, max(1.0, self._deadline.left))).tries():
            todo = [h for h in handles if fates[h.transactional_id] is Fate.OPEN]
            if not todo:
                break
            marks: dict[str, dict[int, Watermarks]] = {}
            fates |= {h.transactional_id: self._fate(h, marks) for h in todo}
        return fates

    def _fate(self, handle: PreparedTransaction, seen: dict[str, dict[int, Watermarks]]) -> Fate:
        """``seen`` are the watermarks of this round, by topic, which it adds to."""
        place = handle.place
        assert place is not None
        try:
            if place.topic not in seen:
                seen[place.topic] = self.watermarks(place.topic)
            marks = seen[place.topic].get(place.partition)
            if marks is None or not marks.low <= place.offset < marks.high:
                return Fate.UNKNOWN
            if marks.last_stable > place.offset:
                return read_fate(self._fetch(place, place.offset, _READ_COMMITTED, _SOME_BYTES), handle)
            here = (place.topic, place.partition)
            if any(
                (h.producer_id, h.start_offset) == (handle.producer_id, place.offset) for h in self._open_on([here])
            ):
                return Fate.OPEN
            return read_marker(self._batches(place), handle)  # somebody else holds the partition back
        except UnknownTopic:
            return Fate.UNKNOWN
        except ExactlyOnceError as e:
            if e.restart_heals:
                raise
            return Fate.UNKNOWN

    def _batches(self, place: Place) -> Iterator[Any]:
        """The batches of records from ``place`` on, markers included, to the end of the partition."""
        offset = place.offset
        while not self._deadline.over:
            fetched = self._fetch(place, offset, _READ_UNCOMMITTED, _MANY_BYTES)
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

    def _fetch(self, place: Place, offset: int, isolation: int, some_bytes: int) -> Any:
        """The leader's answer for the partition of ``place`` from ``offset`` on, as a reader gets it."""
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
                fetch_offset=offset,
                last_fetched_epoch=-1,
                log_start_offset=-1,
                partition_max_bytes=some_bytes,
            )
            request = FetchRequest(
                max_wait_ms=0,
                min_bytes=1,
                max_bytes=some_bytes,
                isolation_level=isolation,
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


def read_beginnings(
    described: Iterable[Description],
    answers: Mapping[Partition, Mapping[tuple[int, int], int]],
    each: int,
    unasked: str = "",
) -> Beginnings:
    """What ``answers`` say: for each partition that was asked, (producer id, epoch) of its open transactions -> offset.

    ``each`` is how many partitions of a transaction were asked at most.
    """
    places: dict[str, Place] = {}
    missing: dict[str, Partition] = {}
    for d in described:
        mine = (d.producer_id, d.producer_epoch)
        for where in d.partitions[:each]:
            if where not in answers:
                continue
            if mine not in answers[where]:
                missing[d.transactional_id] = where
            elif d.transactional_id not in places:
                places[d.transactional_id] = Place(*where, answers[where][mine])
    return Beginnings(places, missing, unasked)


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
        if batch is not None and _begins(batch, handle):
            return Fate.COMMITTED
    return Fate.UNKNOWN


def read_marker(batches: Iterable[Any], handle: PreparedTransaction) -> Fate:
    """What the end marker of ``handle`` among ``batches`` says, which begin at its first record.

    It is the first marker of the producer behind that record: a transaction has an initialisation of its own, and the
    next one of the same producer begins behind the end of this one.
    """
    found = iter(batches)
    first = next(found, None)
    if first is None or not _begins(first, handle):
        return Fate.UNKNOWN
    for batch in found:
        if batch.is_control_batch and batch.producer_id == handle.producer_id:
            marker: Any = next(batch)
            return Fate.COMMITTED if marker.commit else Fate.ABORTED if marker.abort else Fate.UNKNOWN
    return Fate.OPEN


def _begins(batch: Any, handle: PreparedTransaction) -> bool:
    """Whether the transaction of ``handle`` begins with ``batch``."""
    place = handle.place
    if place is None or batch.magic != 2 or not batch.is_transactional or batch.is_control_batch:
        return False
    mine = (handle.producer_id, handle.epoch, place.offset)
    return bool((batch.producer_id, batch.producer_epoch, batch.base_offset) == mine)


def with_places(handles: Sequence[PreparedTransaction], places: Mapping[str, Place]) -> tuple[PreparedTransaction, ...]:
    """The handles with what is known of where their records begin."""
    return tuple(h.at(places.get(h.transactional_id)) for h in handles)
