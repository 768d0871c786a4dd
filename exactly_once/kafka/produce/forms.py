"""What a part's digest covers, so that it can be computed again from the records that a reader gets.

The digest is over the rows as the query made them. A record shows its partition and its timestamp whether its row chose
them or not, so the handle says which.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from exactly_once.digest import RowDigest
from exactly_once.kafka.produce.records import CHOOSE, NOW, Ints, Records, place_of

#: Keys and values alone.
PLAIN = "plain"

#: Also the topic and the headers; and, with these words behind it, the partition, the timestamp.
TOPIC, PARTITION, TIMESTAMP = "topic", "+partition", "+timestamp"

#: Some rows of the part chose their partition (or timestamp) and others did not: a reader cannot tell which.
MIXED = "mixed"

#: Every form that can be computed again: what to try for a handle that does not say.
FORMS = (PLAIN, TOPIC, TOPIC + PARTITION, TOPIC + TIMESTAMP, TOPIC + PARTITION + TIMESTAMP)


def form_of(rows: Records) -> str:
    """Return the form of the digest of these rows."""
    if rows.plain:
        return PLAIN
    partition, timestamp = _chose(rows.partitions, CHOOSE), _chose(rows.timestamps_ms, NOW)
    if partition is None or timestamp is None:
        return MIXED
    return f"{TOPIC}{PARTITION if partition else ''}{TIMESTAMP if timestamp else ''}"


def joined(one: str, other: str) -> str:
    """Return the form of a part with rows of both; "" stands for no rows."""
    return other if one in ("", other) else MIXED


def add_read(digest: RowDigest, form: str, topic: str, partition: int, records: Iterable[Any]) -> None:
    """Add records as kafka-python reads them (``key``, ``value``, ``headers``, ``timestamp``) to the digest, as their
    rows were.
    """
    if form == PLAIN:
        pairs = [(r.key, r.value) for r in records]
        digest.add_pairs([key for key, _ in pairs], [value for _, value in pairs])
        return
    name, chosen = topic.encode(), partition if PARTITION in form else CHOOSE
    for r in records:
        timestamp_ms = r.timestamp if TIMESTAMP in form else NOW
        digest.add(name, r.key, r.value, place_of(chosen, r.headers, timestamp_ms))


def _chose(column: Ints | None, default: int) -> bool | None:
    """Whether the rows chose; None when only some did."""
    if column is None:
        return False
    chose = column != default
    return bool(chose[0]) if len(chose) and (chose == chose[0]).all() else None if len(chose) else False
