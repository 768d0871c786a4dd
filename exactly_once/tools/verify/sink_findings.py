"""The facts that only a verification reads (ids, published offsets, aborts of others), and the findings that the
diagnoses of a sink are. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from exactly_once.inspection.findings import BlockedPartition, title
from exactly_once.kafka.groups import Published
from exactly_once.protocol.checkpoint_text import kafka_offsets, source_lines
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.names import PROBES, SLOTS, VARIANTS, PartId, commit_log_id, namespace
from exactly_once.protocol.planning import forgotten_by
from exactly_once.protocol.records import Decision
from exactly_once.tools.diagnosis import Diagnosis
from exactly_once.tools.diagnosis.facts import ForeignAbort, OffsetSkew, Standing
from exactly_once.tools.verify.anomalies import MOST_PLACES, Anomaly, Finding
from exactly_once.tools.verify.by_log.ledger import Ledger
from exactly_once.txn.coordinators import Listing

#: Time from a claim to the end of its sweep, whose budget is a minute.
SWEEP_MS = 60_000

#: Diagnoses of the sink that are an anomaly; the others (a batch in doubt, a frozen driver) contradict nothing.
ANOMALIES = {
    "HEALTH-STALE-TRANSACTIONS": Anomaly.LINGERING,
    "HEALTH-HANGING": Anomaly.HANGING,
    "HEALTH-FOREIGN-HANGING": Anomaly.HANGING,
    "HEALTH-UNKNOWN-WRITER": Anomaly.HANGING,
    "HEALTH-READERS-WAIT": Anomaly.STALLED_LAST_STABLE_OFFSET,
    "HEALTH-ID-LEAK": Anomaly.ID_LEAK,
    "HEALTH-FOREIGN-ABORT": Anomaly.FOREIGN_ABORT,
    "HEALTH-OFFSET-SKEW": Anomaly.OFFSET_SKEW,
    "HEALTH-LOST-DECISION": Anomaly.LOST_DECISION,
    "HEALTH-CHECKPOINT-AHEAD": Anomaly.CHECKPOINT_AHEAD,
    "HEALTH-CHECKPOINT-LOST": Anomaly.CHECKPOINT_REWOUND,
    "HEALTH-CHECKPOINT-FOREIGN": Anomaly.CHECKPOINT_REWOUND,
    "HEALTH-CHECKPOINT-REWOUND": Anomaly.CHECKPOINT_REWOUND,
}


def findings(found: Iterable[Diagnosis]) -> Iterator[Finding]:
    """Yield the findings that diagnoses are: one for each transaction or partition in their evidence."""
    for d in found:
        if d.code not in ANOMALIES:
            continue
        each = [(name, places, 0) for name, places in d.evidence.get("transactions", {}).items()]
        each += [("", [place], waiting) for place, waiting in d.evidence.get("places", {}).items()]
        for transaction, places, records in each or [("", [], 0)]:
            yield Finding(
                ANOMALIES[d.code],
                d.sentence,
                batch=d.evidence.get("name", ""),
                transaction=transaction,
                places=tuple(places)[:MOST_PLACES],
                records=records or d.evidence.get("records", 0),
                diagnosis=d,
            )


def standing(
    blocked: Iterable[BlockedPartition],
    earlier: Mapping[tuple[str, int], int],
    explained: Collection[tuple[tuple[str, int], int]] = (),
) -> tuple[Standing, ...]:
    """Partitions whose last stable offset has not moved since the reading before (``earlier``). ``explained`` has
    partition and first offset of transactions that may hold readers back: those of a batch under way, and those that
    hang, which are a finding of their own.
    """
    at = {b: ((b.topic, b.partition), b.last_stable) for b in blocked}
    return tuple(Standing(b) for b, (w, last) in at.items() if earlier.get(w) == last and (w, last) not in explained)


def leaked(sink_id: str, listed: Iterable[Listing]) -> tuple[str, ...]:
    """Return the transactional ids in the sink's namespace that its scheme of names does not make."""
    return tuple(sorted(t.transactional_id for t in listed if not _in_scheme(sink_id, t.transactional_id)))


def _in_scheme(sink_id: str, transactional_id: str) -> bool:
    if transactional_id == commit_log_id(sink_id):
        return True
    part = PartId.parse(transactional_id)
    return part is not None and part.slot < SLOTS and int(part.attempt.partition(".")[2]) < VARIANTS + PROBES


def foreign_aborts(
    sink_id: str, ledger: Ledger, ids: Mapping[int, str], claims_ms: Sequence[int], other_claims_ms: Mapping[str, int]
) -> tuple[ForeignAbort, ...]:
    """Transactions of ids that only *begin like* this sink's, aborted while this sink swept.

    ``ids`` has the transactional id of each producer that wrote to the outputs and that a coordinator knows;
    ``claims_ms`` is when this sink claimed, by the brokers' clock; ``other_claims_ms`` is when another sink last
    claimed: then it aborted its own transactions.
    """
    aborts = []
    stem = namespace(sink_id).removesuffix(":")
    for (producer_id, epoch), spans in ledger.spans.items():
        name = ids.get(producer_id, "")
        if not name.startswith(stem) or name.startswith(namespace(sink_id)):
            continue
        part = PartId.parse(name)
        own_ms = other_claims_ms.get(part.sink_id, -SWEEP_MS) if part else -SWEEP_MS
        swept = [
            s
            for s in spans
            if s.committed is False
            and any(0 <= s.marked_ms - c <= SWEEP_MS for c in claims_ms)
            and not 0 <= s.marked_ms - own_ms <= SWEEP_MS
        ]
        if swept:
            places = tuple(s.place for s in swept)
            aborts.append(ForeignAbort(name, producer_id, epoch, places, sum(s.records for s in swept)))
    return tuple(aborts)


def skewed(decisions: Iterable[Decision], published: Published, sizes: Mapping[str, int]) -> list[OffsetSkew]:
    """Offsets in the sink's consumer group that are not those of its last decision, or that are not there.

    An offset that is not there counts only when the group's others are of that very decision, which committed all of
    them at once. Without them the brokers have refused the offsets of a decision, or have let them expire.

    ``decisions`` are the last one, and those that were written while the group was read, oldest first: it may stand at
    any of them. ``sizes`` has the number of partitions of each input topic that exists and may be described: brokers
    forget the offsets of a topic that is deleted, and do not show those of one that may not be described.
    """
    found: list[OffsetSkew] = []
    for decision in decisions:
        found = list(_beside(decision, published, sizes))
        if not found:
            break
    return found


def _beside(decision: Decision, published: Published, sizes: Mapping[str, int]) -> Iterator[OffsetSkew]:
    batch = title(decision)
    its_own = published.batches.get(decision.query_id) == decision.batch_id
    for topic, partitions in kafka_offsets(source_lines(decision.offsets)).items():
        for partition, wanted in sorted(partitions.items()):
            offset = published.offsets.get(topic, {}).get(partition)
            if offset == wanted or (offset is None and not (its_own and partition < sizes.get(topic, 0))):
                continue
            yield OffsetSkew(topic, partition, offset, wanted, batch)


def forgotten(log: LogState, published: Published) -> dict[str, int]:
    """Return, by query, the batch of which only the sink's consumer group still knows; ``log`` was read after it."""
    bound = log.owner.query_id if log.owner else None
    return {
        query_id: batch_id
        for query_id, batch_id in published.batches.items()
        # else another query has taken the sink over
        if (bound == query_id or (bound is None and not log.decisions))
        and forgotten_by(batch_id, log.last_decision(query_id))
    }
