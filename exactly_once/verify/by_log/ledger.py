"""The contents of the output, transaction by transaction: a fold over the batches of every partition.

Of a sink's own transactions, the records are decoded for their digest; of other writers', only counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from exactly_once.digest import RowDigest
from exactly_once.kafka.admin import Partition
from exactly_once.participants.kafka.digest_scope import SCOPES, add_read, batches_in, is_computable
from exactly_once.protocol.batch_headers import Header
from exactly_once.txn.scan import LogBatch

#: Producer id and epoch.
Writer = tuple[int, int]


@dataclass(slots=True)
class Span:
    """The records of one transaction in one partition, in the order of the log.

    Attributes
    ----------
    first, last : int
        Offsets of its first and last record.
    records, hidden : int
        How many there are, and how many of them a read_committed reader does not get.
    digests : dict of str to RowDigest
        By scope; empty for a writer whose contents do not matter.
    named : set
        The headers by which its records name their batch
        (:func:`~exactly_once.participants.kafka.digest_scope.batches_in`).
    committed : bool or None
        By its end marker; None: it has none yet.
    end, marked_ms : int
        The offset of that marker, and when the leader wrote it; -1 without one.
    dated_by_broker : bool
        The timestamps are not those that the writer sent.
    matters : bool
        False for another application's; the ledger keeps of those only what was aborted or is open.
    """

    where: Partition
    writer: Writer
    first: int
    last: int = -1
    records: int = 0
    hidden: int = 0
    timestamp_ms: int = -1
    digests: dict[str, RowDigest] = field(default_factory=dict)
    named: set[tuple[Header, ...]] = field(default_factory=set)
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


#: The scopes in which a writer's digest is to be computed; None: its contents do not matter.
ScopesOf = Callable[[Writer], tuple[str, ...] | None]


@dataclass
class Ledger:
    """The transactions in some partitions, each from an offset on."""

    spans: dict[Writer, list[Span]] = field(default_factory=dict)
    others: int = 0
    """Records of other writers that readers get."""
    read: int = 0
    _open: dict[tuple[Partition, int], Span] = field(default_factory=dict)

    def add(self, batch: LogBatch, scopes_of: ScopesOf) -> None:
        """Take the next batch of its partition."""
        self.read += batch.count if batch.marker is None else 0
        if batch.marker is not None:
            self._end(batch)
        elif batch.transactional:
            self._grow(batch, scopes_of)
        else:
            self.others += batch.count

    def of(self, writer: Writer) -> list[Span]:
        """Return the spans of one transaction, in any partition."""
        return self.spans.get(writer, [])

    def _grow(self, batch: LogBatch, scopes_of: ScopesOf) -> None:
        writer = batch.producer_id, batch.epoch
        span = self._open.get((batch.where, batch.producer_id))
        if span is None or span.writer != writer:
            scopes = scopes_of(writer)
            digests = {scope: RowDigest() for scope in scopes or () if is_computable(scope)}
            span = Span(batch.where, writer, batch.base_offset, digests=digests, matters=scopes is not None)
            self._open[batch.where, batch.producer_id] = span
            self.spans.setdefault(writer, []).append(span)
        span.last = batch.last_offset
        span.records += batch.count
        span.hidden += batch.count if batch.hidden else 0
        span.timestamp_ms = max(span.timestamp_ms, batch.timestamp_ms)
        span.dated_by_broker |= batch.dated_by_broker
        if span.digests:
            records = list(batch.records())
            for scope, digest in span.digests.items():
                add_read(digest, scope, *batch.where, records)
            span.named |= batches_in(span.digests, batch.topic, records)

    def _end(self, batch: LogBatch) -> None:
        span = self._open.pop((batch.where, batch.producer_id), None)
        if span is not None:
            span.committed, span.end, span.marked_ms = batch.marker, batch.base_offset, batch.timestamp_ms
            if span.committed and not span.matters:
                self.others += span.records
                self.spans[span.writer].remove(span)
                if not self.spans[span.writer]:
                    del self.spans[span.writer]


def digest_of(spans: Iterable[Span], scope: str) -> str:
    """Return the digest of all records of these spans together."""
    whole = RowDigest()
    for span in spans:
        whole.join(span.digests[scope])
    return whole.text


def scopes_to_try(scopes: Mapping[Writer, str], ours: frozenset[int]) -> ScopesOf:
    """Say which digests to compute.

    Parameters
    ----------
    scopes : mapping
        Of decided transactions: producer id and epoch -> the scope in the handle, "" when it does not say.
    ours : set of int
        The producer ids of the sink: what they wrote undecided is compared with what is decided.
    """
    known = tuple(sorted({scope for scope in scopes.values() if scope}))

    def scopes_of(writer: Writer) -> tuple[str, ...] | None:
        if writer in scopes:
            return (scopes[writer],) if scopes[writer] else SCOPES
        return (known or SCOPES) if writer[0] in ours else None

    return scopes_of
