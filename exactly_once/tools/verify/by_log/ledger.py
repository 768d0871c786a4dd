"""The contents of the output, transaction by transaction: a fold over the batches of every partition.

Of a sink's own transactions, the records are decoded for their digest; of other writers' transactions as long as they
may be copies of a decided part; of all else, only counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from exactly_once.digest import RowDigest
from exactly_once.errors import BrokerRefused
from exactly_once.kafka.admin import Partition, Watermarks
from exactly_once.participants.kafka.digest_scope import (
    SCOPES,
    add_read,
    add_shorter,
    batches_in,
    has_headers,
    is_computable,
    with_added,
)
from exactly_once.protocol.batch_headers import Header
from exactly_once.protocol.records import Decision
from exactly_once.tools.verify.report import (
    NOT_JUDGED,
    NOT_PROVEN,
    OTHER_BATCHES,
    OTHERS,
    UNCOMPARED,
    UNDECIDED,
    UNENDED,
    WRONG,
    Answer,
    Balance,
    TopicBalance,
)
from exactly_once.txn.scan import LogBatch

#: Producer id and epoch.
Writer = tuple[int, int]

#: Other writers' records that are decoded however little the sink has written: a second's work.
_FEW = 100_000

#: Other writers' transactions in one partition that are remembered for their digests: 50 MB.
_MOST_STRANGERS = 100_000


@dataclass(slots=True)
class Span:
    """The records of one transaction in one partition, in the order of the log.

    ``hidden`` of the ``records`` a read_committed reader does not get. ``digests`` are by scope, empty for a writer
    whose contents do not matter; ``named`` has the headers by which the records name their batch
    (:func:`~exactly_once.participants.kafka.digest_scope.batches_in`). ``shorter`` are digests by scope for records to
    which an agent has added headers, made of the records that were read ``again`` (None: nobody asked). ``committed``
    is by the end marker, None without one; ``end`` and ``marked_ms`` are its offset and when the leader wrote it, -1
    without one.
    ``dated_by_broker``: the timestamps are not those that the writer sent. ``matters`` is False for another
    application's: the ledger keeps of those only what was aborted or is open.
    """

    where: Partition
    writer: Writer
    first: int
    last: int = -1
    records: int = 0
    hidden: int = 0
    digests: dict[str, RowDigest] = field(default_factory=dict)
    named: set[tuple[Header, ...]] = field(default_factory=set)
    shorter: dict[str, list[RowDigest | None]] = field(default_factory=dict)
    again: int | None = None
    committed: bool | None = None
    end: int = -1
    marked_ms: int = -1
    dated_by_broker: bool = False
    matters: bool = True

    @property
    def visible(self) -> int:
        """The number of records that a read_committed reader gets."""
        return self.records - self.hidden

    @property
    def place(self) -> str:
        """``topic-partition@first..last``."""
        return f"{self.where[0]}-{self.where[1]}@{self.first}..{self.last}"


@dataclass(slots=True)
class Stretch:
    """The part of a partition that was read: from its ``first`` record to the one before ``next``, with the end
    ``markers`` in it, and ``gaps``, the offsets under which compaction has left nothing.
    """

    first: int
    next: int
    markers: int = 0
    gaps: int = 0

    def take(self, batch: LogBatch) -> None:
        self.first = min(self.first, batch.base_offset)  # the first batch may begin before the offset that was asked
        self.gaps += max(0, batch.base_offset - self.next) + batch.last_offset + 1 - batch.base_offset - batch.count
        self.next = batch.last_offset + 1
        self.markers += batch.count if batch.marker is not None else 0


@dataclass(frozen=True)
class Copies:
    """The transactions of other writers that are compared with decided parts: in the ``scopes`` of those, up to as many
    records as the largest (``longest``). At most ``records`` are decoded for it, so that a topic in which others write
    much does not take much longer.
    """

    scopes: tuple[str, ...] = ()
    longest: int = 0
    records: int = 0


@dataclass
class Ledger:
    """The transactions in some partitions, each from an offset on.

    ``scopes`` has the scope in the handle of each decided transaction, "" when it does not say; ``ours`` are the
    producer ids of the sink: what they wrote undecided is compared with what is decided. ``strangers`` are committed
    transactions of other writers with a digest; ``others`` and ``uncompared`` count, by topic, the other records of
    other writers that readers get: those that are no copy of a decided part as a transaction, and those of transactions
    that were too many to compare.
    """

    scopes: Mapping[Writer, str] = field(default_factory=dict)
    ours: frozenset[int] = frozenset()
    copies: Copies = field(default_factory=Copies)
    spans: dict[Writer, list[Span]] = field(default_factory=dict)
    strangers: dict[Writer, list[Span]] = field(default_factory=dict)
    others: Counter[str] = field(default_factory=Counter)
    uncompared: Counter[str] = field(default_factory=Counter)
    stretches: dict[Partition, Stretch] = field(default_factory=dict)
    read: int = 0
    _open: dict[tuple[Partition, int], Span] = field(default_factory=dict)
    _decoded: int = 0
    _kept: int = 0

    @classmethod
    def of_sink(cls, decisions: Sequence[Decision], ours: Iterable[int]) -> Ledger:
        """Return an empty ledger of a sink with these producer ids, for the parts of ``decisions``."""
        scopes = {(h.producer_id, h.epoch): h.form for d in decisions for h in d.transactions}
        return cls(scopes, frozenset(ours), copies_of(decisions))

    @cached_property
    def _in_use(self) -> tuple[str, ...]:
        return tuple(sorted({scope for scope in self.scopes.values() if scope})) or SCOPES

    def scopes_of(self, writer: Writer) -> tuple[str, ...] | None:
        """Return the scopes in which a writer's digest is computed; None for a writer of another sink."""
        if writer in self.scopes:
            return (self.scopes[writer],) if self.scopes[writer] else SCOPES
        return self._in_use if writer[0] in self.ours else None

    def begin(self, where: Partition, start: int) -> None:
        """Say from which offset on a partition is read."""
        self.stretches[where] = Stretch(start, start)

    def add(self, batch: LogBatch) -> None:
        """Take the next batch of its partition."""
        self.stretches.setdefault(batch.where, Stretch(batch.base_offset, batch.base_offset)).take(batch)
        self.read += batch.count if batch.marker is None else 0
        if batch.marker is not None:
            self._end(batch)
        elif batch.transactional:
            self._grow(batch)
        else:
            self.others[batch.topic] += batch.count

    def of(self, writer: Writer) -> list[Span]:
        """Return the spans of one transaction, in any partition."""
        return self.spans.get(writer, [])

    def add_again(self, batch: LogBatch) -> None:
        """Take a batch of records again, for the digests without what an agent added to them, where they are asked."""
        for span in self.of((batch.producer_id, batch.epoch)):
            here = span.where == batch.where and span.first <= batch.base_offset <= span.last
            if here and batch.marker is None and span.again is not None:
                span.again += batch.count
                records = list(batch.records())
                for scope in filter(has_headers, span.digests):
                    add_shorter(span.shorter.setdefault(scope, with_added(scope)), scope, *batch.where, records)

    def _grow(self, batch: LogBatch) -> None:
        writer = batch.producer_id, batch.epoch
        span = self._open.get((batch.where, batch.producer_id))
        if span is None or span.writer != writer:
            scopes = self.scopes_of(writer)
            has_room = self._decoded < self.copies.records and self._kept < _MOST_STRANGERS
            wanted = self.copies.scopes if scopes is None and has_room else scopes or ()
            digests = {scope: RowDigest() for scope in wanted if is_computable(scope)}
            span = Span(batch.where, writer, batch.base_offset, digests=digests, matters=scopes is not None)
            self._open[batch.where, batch.producer_id] = span
            self.spans.setdefault(writer, []).append(span)
        span.last = batch.last_offset
        span.records += batch.count
        span.hidden += batch.count if batch.hidden else 0
        span.dated_by_broker |= batch.dated_by_broker
        if span.digests:
            self._digest(span, batch)

    def _digest(self, span: Span, batch: LogBatch) -> None:
        if not span.matters:
            self._decoded += batch.count
        try:
            records = list(batch.records()) if span.matters or span.records <= self.copies.longest else []
        except BrokerRefused:  # a codec that is not here, and that nothing of the sink's own needs
            if span.matters:
                raise
            records = []
        if not records:  # it is no copy of a decided part, or cannot be compared
            span.digests.clear()
        for scope, digest in span.digests.items():
            read = RowDigest()
            add_read(read, scope, *batch.where, records)
            digest.join(read)
        span.named |= batches_in(span.digests, batch.topic, records)

    def _end(self, batch: LogBatch) -> None:
        span = self._open.pop((batch.where, batch.producer_id), None)
        if span is not None:
            span.committed, span.end, span.marked_ms = batch.marker, batch.base_offset, batch.timestamp_ms
            if span.committed and not span.matters:
                self._set_aside(span)

    def _set_aside(self, span: Span) -> None:
        self.spans[span.writer].remove(span)
        if not self.spans[span.writer]:
            del self.spans[span.writer]
        if span.digests:
            self.strangers.setdefault(span.writer, []).append(span)
            self._kept += 1
        elif not self.copies.scopes or span.records > self.copies.longest:
            self.others[span.where[0]] += span.records
        else:
            self.uncompared[span.where[0]] += span.records


def digest_of(spans: Iterable[Span], scope: str) -> str:
    """Return the digest of all records of these spans together."""
    whole = RowDigest()
    for span in spans:
        whole.join(span.digests[scope])
    return whole.text


def shorter_digests(spans: Sequence[Span], scope: str) -> set[str]:
    """Return the digests that all records of these spans together may have without what an agent added to them."""
    found = set[str]()
    for digests in zip(*(span.shorter.get(scope, []) for span in spans), strict=False):
        whole = RowDigest()
        if None not in digests:
            for digest in filter(None, digests):
                whole.join(digest)
            found.add(whole.text)
    return found


def copies_of(decisions: Iterable[Decision]) -> Copies:
    """Say which transactions of other writers may be copies of the decided parts."""
    handles = [h for d in decisions for h in d.transactions if h.digest]
    scopes = {scope for h in handles for scope in ([h.form] if h.form else SCOPES) if is_computable(scope)}
    longest = max((h.records for h in handles), default=0)
    return Copies(tuple(sorted(scopes)), longest, max(_FEW, sum(h.records for h in handles)))


def name_of(transactional_id: str, writer: Writer) -> str:
    """Name a transaction for people."""
    return f"{transactional_id} (producer {writer[0]}, epoch {writer[1]})"


#: Answers by the partition and first offset of the span of records that each is about.
Answers = dict[tuple[Partition, int], Answer]


def give(answers: Answers, spans: Iterable[Span], answer: Answer) -> None:
    """Give an answer on the records of ``spans``; what is wrong stays wrong."""
    for s in spans:
        before = answers.get((s.where, s.first))
        if before is None or before.kind != WRONG:
            answers[s.where, s.first] = answer


def balance_of(ledger: Ledger, marks: Mapping[Partition, Watermarks], answers: Answers) -> Balance:
    """Return the balance of what was read, up to the ends of every partition by its leader. A span without an answer is
    not judged, or belongs to nobody's decision yet.
    """
    topics: dict[str, TopicBalance] = {}
    for (topic, partition), ends in marks.items():
        one = topics.setdefault(topic, TopicBalance())
        one.offsets += ends.high - ends.low
        read = ledger.stretches.get((topic, partition))
        if read is None:
            one.unread += ends.high - ends.low
            continue
        one.unread += read.first - ends.low
        one.markers += read.markers
        one.compacted += read.gaps + ends.high - read.next
    for spans in (*ledger.spans.values(), *ledger.strangers.values()):
        for s in spans:
            one = topics.setdefault(s.where[0], TopicBalance())
            if s.committed is False:
                one.aborted += s.records
            else:
                done = s.committed is not None
                others = Answer(NOT_JUDGED, OTHERS if done else UNENDED)
                own = Answer(NOT_JUDGED, OTHER_BATCHES) if done else Answer(NOT_PROVEN, UNDECIDED)
                one.count(answers.get((s.where, s.first)) or (own if s.matters else others), s.records)
    for why, numbers in ((OTHERS, ledger.others), (UNCOMPARED, ledger.uncompared)):
        for topic, records in numbers.items():
            topics.setdefault(topic, TopicBalance()).not_judged[why] += records
    return Balance(topics)
