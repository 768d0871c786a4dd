"""Read commit logs: all of the partition, up to where a reader may, or up to its very end; find the one with a query.

A read_committed reader stops at the last stable offset, so another application's open transaction hides every claim and
decision after it. After an init of the log's own producer nothing of ours is open: whoever goes on to write reads up
to the high watermark, or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from hashlib import blake2b
from typing import NamedTuple

from exactly_once.deadline import Deadline
from exactly_once.errors import (
    BrokerUnreachable,
    CommitLogBlocked,
    CommitLogDamaged,
    ExactlyOnceError,
    NotAuthorized,
)
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.errors import silent_log
from exactly_once.protocol.encoding import decode
from exactly_once.protocol.names import commit_log_topic, sink_of_log
from exactly_once.protocol.records import Decision, Entry, is_own_key, key_of
from exactly_once.protocol.untrusted import check_own
from exactly_once.txn.coordinators import ids_of
from exactly_once.txn.leaders import OLDER_THAN_S, open_on
from exactly_once.txn.scan import committed

#: Budget for asking who blocks the log, when the budget for waiting is spent.
_WHO_S = 5.0

#: Longest pause until a log that hides records is looked at again.
_PAUSE_S = 0.1

#: Characters of a record's key that an error shows. Those of batch writes have up to 415.
_KEY_SHOWN = 500

#: Characters of a foreign key, and of its value, that an error shows.
_FOREIGN_SHOWN = 100

#: Most foreign keys that may lack a tombstone: some 20 MB. A program that takes the log for its own topic writes
#: thousands within a second, and tombstones must be a way back from them.
_MANY_FOREIGN = 100_000

#: The only partition that a commit log uses, however many its topic has.
PARTITION = 0


class Reading(NamedTuple):
    """The records that were read, and the offset that the reader has reached."""

    entries: list[Entry]
    position: int


class _Row(NamedTuple):
    """A record of a commit log as it is there."""

    topic: str
    offset: int
    timestamp_ms: int
    key: bytes
    value: bytes | None
    headers: dict[str, bytes | None]


def read(admin: Admin, sink_id: str, deadline: Deadline, start: int | None = None, until: int | None = None) -> Reading:
    """Return the committed records of the sink's log, in order: of each key the last one.

    Parameters
    ----------
    start : int, optional
        Where to begin. Default: at the beginning.
    until : int, optional
        Wait until everything before this offset can be read. Default: read what can be read now.

    Raises
    ------
    NotAuthorized, BrokerUnreachable, CommitLogDamaged
    CommitLogBlocked
        When the deadline is over before ``until`` can be read.
    """
    topic, latest = commit_log_topic(sink_id), _Latest()
    position = admin.earliest([(topic, PARTITION)])[topic, PARTITION] if start is None else start
    for _ in deadline.tries(longest_pause_s=_PAUSE_S):
        for rows, reached in _answers(admin.renew(max(_PAUSE_S, deadline.left)), topic, position):
            for row in rows:
                latest.take(row)
            position = reached
        if until is None or position >= until:
            return Reading(latest.entries(sink_id), position)
    raise blocked(admin.renew(_WHO_S), topic, position)


def _answers(admin: Admin, topic: str, start: int) -> Iterator[tuple[Iterator[_Row], int]]:
    """Yield what readers see from ``start`` on, answer by answer, each with the offset that they have reached."""
    for batches, position in committed(admin, (topic, PARTITION), start):
        visible = (b for b in batches if b.marker is None and not b.hidden)
        records = (r for batch in visible for r in batch.records())
        yield (_Row(topic, r.offset, r.timestamp, r.key or b"", r.value, dict(r.headers)) for r in records), position


class _Latest:
    """The last record of each key, as in compaction: a tombstone settles the foreign record before it.

    A log that is not compacted, or that somebody floods, takes no more memory than its keys do.
    """

    def __init__(self) -> None:
        self._by_key: dict[bytes, _Row] = {}
        self._foreign: dict[bytes, str] = {}  # a digest of the key -> where it is

    def take(self, row: _Row) -> None:
        text = _text(row.key)
        if is_own_key(text):
            self._by_key.pop(row.key, None)
            if row.value is not None:
                self._by_key[row.key] = row
            return
        digest = blake2b(row.key, digest_size=16).digest()
        self._foreign.pop(digest, None)
        if row.value is not None:
            where = f"at offset {row.offset} under the key {text[:_FOREIGN_SHOWN]!r}"
            self._foreign[digest] = f"{row.value[:_FOREIGN_SHOWN]!r} {where}"
            if len(self._foreign) > _MANY_FOREIGN:
                raise self._foreign_error(row.topic)

    def entries(self, sink_id: str) -> list[Entry]:
        """Return the entries in the order of the log."""
        if self._foreign:
            raise self._foreign_error(commit_log_topic(sink_id))
        return [_entry(row, sink_id) for row in self._by_key.values()]

    def _foreign_error(self, topic: str) -> CommitLogDamaged:
        first = next(iter(self._foreign.values()))
        many = (
            f"{len(self._foreign):,} keys"
            if len(self._foreign) <= _MANY_FOREIGN
            else f"more than {_MANY_FOREIGN:,} keys"
        )
        then = ", and wait until the brokers have compacted the topic" if len(self._foreign) > _MANY_FOREIGN else ""
        return CommitLogDamaged(
            f"the commit log {topic} holds records under {many} that no sink uses, the first {first}",
            f"Stop the program that wrote these records: only the sink may write to {topic}. Then drop the records "
            f"with exactly-once log {sink_of_log(topic)} --drop-foreign{then}",
        )


def _entry(row: _Row, sink_id: str) -> Entry:
    """Return the record with its place.

    It must be what the sink writes under this key, and name the sink's own parts alone.
    """
    try:
        record = decode(row.value or b"", row.headers)
    except CommitLogDamaged as e:
        if "newer version" not in e.what:
            raise _damaged(row, sink_id, e.what) from None
        raise CommitLogDamaged(
            f"{e.what}: the record at offset {row.offset} of {row.topic}",
            f"{e.way_out}. If no newer version was ever in use, something other than the sink wrote the record: run "
            f"exactly-once log {sink_id} to see the writer and how to undo the record",
        ) from None
    try:
        check_own(record, sink_id)
    except ValueError as e:
        what = f"the commit log holds a record that no driver of this sink wrote ({e})"
        raise _damaged(row, sink_id, what) from None
    if _text(row.key) != key_of(record):
        what = f"the commit log holds a record that belongs under the key {key_of(record)!r}"
        raise _damaged(row, sink_id, what)
    return Entry(record, row.offset, row.timestamp_ms)


def _text(key: bytes) -> str:
    return key.decode(errors="replace")


def _damaged(row: _Row, sink_id: str, what: str) -> CommitLogDamaged:
    key = _text(row.key)[:_KEY_SHOWN]
    return CommitLogDamaged(
        f"{what}, at offset {row.offset} of {row.topic} under the key {key!r}",
        f"Stop the program that wrote this record: only the sink may write to {row.topic}. Then put the previous "
        f"record of this key in force again with exactly-once log {sink_id} --undo {row.offset}",
    )


def blocked(admin: Admin, topic: str, position: int) -> CommitLogBlocked:
    """Return the error of a log that cannot be read beyond ``position``, with the names of those who have to end."""
    found = sorted(open_on(admin, [(topic, PARTITION)]), key=lambda h: h.start_offset)
    ids = ids_of(admin, {h.producer_id for h in found}) if found else {}
    who = ", ".join(
        f"{f'of {ids[h.producer_id]!r} ' if h.producer_id in ids else ''}(producer {h.producer_id}, epoch "
        f"{h.producer_epoch}, first offset {h.start_offset})"
        for h in found
    )
    what = f"the open transaction {who}" if found else f"a transaction that began at or before offset {position}"
    begin = found[0].start_offset if found else position
    return CommitLogBlocked(
        f"the commit log {topic} cannot be read beyond offset {position}: {what} hides the records after it",
        "Stop the other writer, because only the sink may write to this topic: its transaction then ends, at its "
        f"timeout at the latest. If the transaction has been open for more than {OLDER_THAN_S / 60:g} minutes and no "
        f"coordinator knows it, end it with exactly-once transactions abort --hanging {topic}-{PARTITION}@{begin} "
        "(in Dagster: the job exactly_once_end_hanging). Then start the stream again. Do not use "
        "kafka-transactions.sh abort on a transaction that a coordinator knows: that ends the transaction on one "
        "partition only",
    )


def timed_out(topic: str, deadline: Deadline) -> BrokerUnreachable:
    """Return the error of a log whose brokers do not answer."""
    return silent_log(topic, f"the commit log {topic} did not answer within {round(deadline.seconds, 1):g} s")


#: Longest wait of a start that is refused for another reason anyway; a hundred logs take half a second.
SEARCH_BUDGET_S = 3.0


class Holder(NamedTuple):
    """The sink that has decided batches of a query, and the newest of them."""

    sink_id: str
    batch_id: int

    @property
    def title(self) -> str:
        """Name it, in words that follow the query."""
        return f"sink {self.sink_id} holds batch {self.batch_id} of this query"


def holder_of(admin: Admin, query_id: str, but: str) -> Holder | None:
    """Return the sink other than ``but`` that holds batches of ``query_id``; None when no log that can be read within
    :data:`SEARCH_BUDGET_S` does. Never raises: it only makes an error clearer.
    """
    holders: list[Holder] = []
    with suppress(ExactlyOnceError):
        sinks = {t: sink_of_log(t) for t in admin.renew(SEARCH_BUDGET_S).topics()}
        for log in (t for t, sink in sinks.items() if sink and sink != but and t == commit_log_topic(sink)):
            holders += _holders(admin, log, query_id)
    return max(holders, key=lambda h: h.batch_id, default=None)


def _holders(admin: Admin, topic: str, query_id: str) -> list[Holder]:
    """Return the decisions of the query in this log; none of a log that this principal may not read."""
    with suppress(NotAuthorized):
        start = admin.earliest([(topic, PARTITION)])[topic, PARTITION]
        rows = (row for some, _ in _answers(admin, topic, start) for row in some)
        return [Holder(sink_of_log(topic), b) for row in rows if (b := _decided(row, query_id)) is not None]
    return []


def _decided(row: _Row, query_id: str) -> int | None:
    """Return the batch of the query that this record decides."""
    if row.value is None or query_id.encode() not in row.value:
        return None
    try:
        record = decode(row.value, row.headers)
    except CommitLogDamaged:  # that log's own drivers report it
        return None
    return record.batch_id if isinstance(record, Decision) and record.query_id == query_id else None
