"""Count the records that the streams of a sink have committed: each decision carries the sum on. Pure.

The log keeps the last decisions alone, so that a sum over these is no total. The driver adds each batch to the sum of
the decision before it, in the same record that decides the batch: a restart, a recovery or a batch that is drained
neither adds to the sum nor loses any of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from exactly_once.protocol.records import Count, Decision

#: Topics that a sum counts by name, which is more than a stream declares. Names from data have no end, and a decision
#: must not grow with them.
MOST_TOPICS = 100

#: The name under which all further topics are counted, and records of which no task said to which topic they went.
OTHER = ""


def counted(decisions: Iterable[Decision]) -> Count | None:
    """Return what the newest of ``decisions``, which are in the order of the log, brings the sum to; None without one
    of a stream.

    A decision of an earlier version has no sum. Those in a row before the newest one are added up, as far back as the
    log has them, and ``since_ms`` says so.
    """
    row: list[Decision] = []
    known: Count | None = None
    for decision in reversed([d for d in decisions if not d.write_id]):
        if row and not _follows(row[-1], decision):
            break
        if decision.counted is not None:
            known = decision.counted
            break
        row.append(decision)
    if known is None and not row:
        return None
    found = known or Count({}, row[-1].decided_ms)
    for decision in reversed(row):
        found = Count(_sum(found.records, _by_topic(decision)), found.since_ms)
    return found


def _follows(later: Decision, earlier: Decision) -> bool:
    """Return whether no batch is missing between the two."""
    next_batch = (earlier.query_id, earlier.batch_id + 1) == (later.query_id, later.batch_id)
    return next_batch or (later.batch_id == 0 and later.query_id != earlier.query_id)


def _by_topic(decision: Decision) -> dict[str, int]:
    found: Counter[str] = Counter()
    for handle in decision.transactions:
        for (topic, _), written in handle.written.items():
            found[topic] += written.records
    if found.total() == decision.records:
        return dict(found)
    return {decision.topics[0] if len(decision.topics) == 1 else OTHER: decision.records}


def _sum(before: Mapping[str, int], batch: Mapping[str, int]) -> dict[str, int]:
    found = Counter(before)
    for topic in sorted(batch):
        named = topic in found or len(found.keys() - {OTHER}) < MOST_TOPICS
        found[topic if named else OTHER] += batch[topic]
    return {topic: count for topic, count in found.items() if count}
