"""Reading the output for a range of decisions: from where, to where, and from further back if that was too late."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from exactly_once.errors import BrokerRefused, UnknownTopic
from exactly_once.kafka.admin import Admin, Partition, Watermarks
from exactly_once.protocol.records import Decision
from exactly_once.tools.verify.by_log.judge import OutputState, differing
from exactly_once.tools.verify.by_log.ledger import Ledger
from exactly_once.tools.verify.report import OnProgress, Progress
from exactly_once.txn.scan import LogBatch, batches

#: The ends of each partition.
Marks = dict[Partition, Watermarks]

#: Offsets by which the reading begins earlier when a part was not found whole; the next step is eight times as long.
_FIRST_STEP = 20_000
_STEPS_GROW = 8

#: The mark of a compacted topic, of which no offset is certainly whole.
EVERY_OFFSET = 1 << 62

#: Records between two reports of progress.
_TELL_EVERY = 50_000

#: Time before the first decision from which records are read: the clocks of two brokers may differ.
_EARLIER_MS = 60_000


def extent(admin: Admin, decisions: Sequence[Decision], also: Iterable[str] = ()) -> tuple[Marks, OutputState]:
    """Ask for the ends of every partition of the topics that ``decisions`` name, and of those in ``also``; topics that
    are gone have none.
    """
    topics = sorted({topic for d in decisions for topic in d.topics} | {*also})
    ids = dict(admin.topic_ids(topics))
    marks: Marks = {}
    removed: dict[Partition, int] = {}
    for topic in topics:
        admin.check_rights(topic, ("READ",))  # a topic that may not be seen must not look like one that is gone
        if topic not in admin.sizes([topic]):
            ids[topic] = ""
            continue
        here = admin.marks([topic])
        marks |= here
        compacted = "compact" in admin.topic_config(topic).get("cleanup.policy", "")
        for where, w in here.items():
            if compacted:
                removed[where] = EVERY_OFFSET
            elif w.low > 0:
                removed[where] = w.low
    return marks, OutputState(removed, ids)


def read_output(
    admin: Admin,
    marks: Marks,
    decisions: Sequence[Decision],
    since_ms: int,
    ours: Iterable[int],
    budget_s: float,
    on_progress: OnProgress,
) -> Ledger:
    """Read every transaction of ``decisions``, whole if it is there; ``ours`` are the producer ids of the sink.

    Begins at the records that are as old as ``since_ms`` (by the brokers' clock) and at the places that the decisions
    name; where a part is not found whole from there, further back, up to the beginning.
    """
    starts = _starts(admin.renew(budget_s), marks, decisions, since_ms)
    step = _FIRST_STEP
    while True:
        ledger = Ledger.of_sink(decisions, ours)
        _read(admin, marks, starts, ledger, on_progress)
        late = _incomplete(ledger, decisions)
        earlier = {
            where: max(marks[where].low, start - step)
            for where, start in starts.items()
            if where[0] in late and start > marks[where].low
        }
        if not earlier:
            return ledger
        starts |= earlier
        step *= _STEPS_GROW


def read_differing(admin: Admin, marks: Marks, decisions: Sequence[Decision], ledger: Ledger) -> None:
    """Read the parts again whose records have another digest than their handles, without the headers that an agent may
    have added to them. Reads nothing where all digests match, and never more than the first reading.
    """
    spans = differing(decisions, ledger)
    for where in sorted({s.where for s in spans}):
        here = [s for s in spans if s.where == where]
        end = max(s.last for s in here) + 1
        with suppress(BrokerRefused, UnknownTopic):  # removed since: the ledger counts what was read again
            for batch in batches(admin, where, min(s.first for s in here), end, end):
                ledger.add_again(_from(batch, marks[where].low))


def _starts(admin: Admin, marks: Marks, decisions: Iterable[Decision], since_ms: int) -> dict[Partition, int]:
    starts = {where: w.high for where, w in marks.items()}
    for topic in {topic for topic, _ in marks}:
        since = admin.offsets_since(topic, max(0, since_ms - _EARLIER_MS))
        for partition, offset in since.items():
            if offset is not None and (topic, partition) in starts:
                starts[topic, partition] = min(starts[topic, partition], offset)
    for d in decisions:
        for h in d.transactions:
            if h.place is not None and h.place[:2] in starts:
                where = h.place[:2]
                starts[where] = min(starts[where], h.place.offset)
    return {where: max(start, marks[where].low) for where, start in starts.items()}


def _read(admin: Admin, marks: Marks, starts: Mapping[Partition, int], ledger: Ledger, on_progress: OnProgress) -> None:
    whole, before, told = sum(marks[w].high - start for w, start in starts.items()), 0, 0
    for where, start in sorted(starts.items()):
        ends = marks[where]
        ledger.begin(where, start)
        for batch in batches(admin, where, start, ends.last_stable, ends.high):
            ledger.add(_from(batch, ends.low))
            if ledger.read - told >= _TELL_EVERY:
                told = ledger.read
                on_progress(Progress("output", before + batch.last_offset - start, whole))
        before += ends.high - start
    on_progress(Progress("output", whole, whole))


def _from(batch: LogBatch, low: int) -> LogBatch:
    """Return the batch without the records before the log start, which its leader keeps until it deletes the segment.

    No reader gets them.
    """
    if batch.base_offset >= low:
        return batch
    dense = batch.count == batch.last_offset + 1 - batch.base_offset
    kept = batch.last_offset + 1 - low if dense else sum(r.offset >= low for r in batch.records())
    return replace(batch, base_offset=low, count=kept)


def _incomplete(ledger: Ledger, decisions: Iterable[Decision]) -> set[str]:
    """Return the topics of batches with a part that was not found whole."""
    return {
        topic
        for d in decisions
        if any(sum(s.records for s in ledger.of((h.producer_id, h.epoch))) < h.records for h in d.transactions)
        for topic in d.topics
    }
