"""The scope of a part's digest: it must be possible to compute it again from the records that a reader gets.

The digest is over the rows as the query made them. A record shows its partition and its timestamp whether its row chose
them or not, so the handle names the scope of its digest, which says which. Java tasks compute the same
(``tests/data/digests.json``).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Sequence
from typing import Any

from exactly_once.digest import RowDigest
from exactly_once.protocol import batch_headers, dead_letters

Headers = Sequence[tuple[str, bytes | None]] | None

#: A row's partition when the partitioner chooses, and its timestamp when that is the time of sending.
CHOOSE, NOW = -1, None

#: Scope of keys and values alone.
PLAIN = "plain"

#: Scope of the topic and the place, too; and, with these words behind it, of the partition, of the timestamp.
ROW, PARTITION, TIMESTAMP = "row", "+partition", "+timestamp"

#: Word behind that: each record but for the dead letters has the headers of its batch, which the digest leaves out.
BATCH = "+batch"

#: Word behind all of that, with the topic: some of the rows are dead letters, which say themselves what their rows
#: chose.
DEAD = "+dead:"

#: Scope of the same in older versions, whose places were text: kept decisions have it.
TOPIC = "topic"

#: Scope of a part in which some rows chose their partition (or timestamp) and others did not: a reader cannot tell
#: which.
MIXED = "mixed"

#: Most headers of an agent on each record that are told from those of rows: W3C's, B3's and a vendor's together.
MOST_ADDED = 8

_COMPUTABLE = re.compile(
    rf"({PLAIN}|({ROW}|{TOPIC})({re.escape(PARTITION)})?({re.escape(TIMESTAMP)})?)"
    rf"({re.escape(BATCH)})?({re.escape(DEAD)}.+)?"
)

#: The scopes to try for a handle that does not say: its version is older still.
SCOPES = (PLAIN, TOPIC, TOPIC + PARTITION, TOPIC + TIMESTAMP, TOPIC + PARTITION + TIMESTAMP)


def is_computable(scope: str) -> bool:
    """Return whether a digest of this scope can be computed from what a reader gets: not of :data:`MIXED`, nor of one
    that only a newer version knows.
    """
    return _COMPUTABLE.fullmatch(scope) is not None


def place_of(partition: int, headers: Headers, timestamp_ms: int | None) -> bytes:
    """Return what a row chose besides its topic, key and value.

    Big-endian, a length before each text, -1 for a null value.
    """
    place = struct.pack(">iq", partition, timestamp_ms or 0)
    for name, value in headers or ():
        key = name.encode()
        place += struct.pack(">i", len(key)) + key + struct.pack(">i", -1 if value is None else len(value))
        place += value or b""
    return place


def add_read(digest: RowDigest, scope: str, topic: str, partition: int, records: Iterable[Any]) -> None:
    """Add records as kafka-python reads them (``key``, ``value``, ``headers``, ``timestamp``) to the digest, as their
    rows were.
    """
    scope, _, dead = scope.partition(DEAD)
    batched, scope = scope.endswith(BATCH), scope.removesuffix(BATCH)
    if scope == PLAIN:
        pairs = [(r.key, r.value) for r in records]
        digest.add_pairs([key for key, _ in pairs], [value for _, value in pairs])
        return
    if topic == dead:
        for r in records:
            digest.add(*_row_of(r))
        return
    name = topic.encode()
    for r in records:
        headers = batch_headers.own_headers(r.headers)[0] if batched else r.headers
        digest.add(name, r.key, r.value, _place(scope, partition, headers, r.timestamp))


def has_headers(scope: str) -> bool:
    """Return whether a digest of this scope covers headers."""
    return scope.partition(DEAD)[0].removesuffix(BATCH) != PLAIN


def with_added(scope: str) -> list[RowDigest | None]:
    """Return the digests for :func:`add_shorter`, of a scope that has headers."""
    return [RowDigest() for _ in range(1 if BATCH in scope.partition(DEAD)[0] else MOST_ADDED + 1)]


def add_shorter(
    digests: list[RowDigest | None], scope: str, topic: str, partition: int, records: Sequence[Any]
) -> None:
    """Add records to digests for the case that an interceptor, or an agent in the producer's JVM, has added headers
    behind those of the rows. The first is of records whose rows have no headers, or whose headers end with the pair of
    their batch; the n-th of records to each of which n headers were added: None if one has fewer.
    """
    scope, _, dead = scope.partition(DEAD)
    batched, scope = scope.endswith(BATCH), scope.removesuffix(BATCH)
    name = topic.encode()
    for added, digest in enumerate(digests):
        if digest is None:
            continue
        for r in records:
            if topic == dead:
                digest.add(*_row_of(r))
            elif len(r.headers or ()) < added:
                digests[added] = None
                break
            else:
                headers = batch_headers.row_headers(r.headers)[0] if batched else r.headers[:-added] if added else ()
                digest.add(name, r.key, r.value, _place(scope, partition, headers, r.timestamp))


def _place(scope: str, partition: int, headers: Headers, timestamp_ms: int) -> bytes:
    chosen, ms = partition if PARTITION in scope else CHOOSE, timestamp_ms if TIMESTAMP in scope else NOW
    if scope.startswith(TOPIC):
        return repr((chosen, headers or None, ms or 0)).encode()
    return place_of(chosen, headers, ms)


def batches_in(scopes: Iterable[str], topic: str, records: Iterable[Any]) -> set[tuple[batch_headers.Header, ...]]:
    """Return the pairs of headers by which these records of one transaction name their batch, () for a record without
    them; none where no scope says that they are there.
    """
    if not any(BATCH in scope.partition(DEAD)[0] and scope.partition(DEAD)[2] != topic for scope in scopes):
        return set()
    return {batch_headers.row_headers(r.headers)[1] for r in records}


def _row_of(letter: Any) -> tuple[bytes, bytes | None, bytes | None, bytes]:
    """Return what the digest covers of the row that became the dead letter."""
    headers, said = dead_letters.own_headers(letter.headers)
    partition, timestamp_ms = said.get("output.partition"), said.get("output.timestamp")
    place = place_of(int(partition or CHOOSE), headers, int(timestamp_ms) if timestamp_ms else NOW)
    return said.get("output.topic") or b"", letter.key, letter.value, place
