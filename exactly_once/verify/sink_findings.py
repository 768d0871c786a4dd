"""The verdicts on the state of the sink: open transactions, waiting readers, ids, published offsets, checkpoint.
Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from exactly_once.checkpoint import Checkpoint
from exactly_once.inspection.findings import BlockedPartition, Inspection, OpenTransaction, batch_name
from exactly_once.inspection.words import plural
from exactly_once.kafka.groups import Published
from exactly_once.protocol.checkpoint_text import kafka_offsets, source_lines
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.names import PROBES, SLOTS, VARIANTS, PartId, commit_log_id, namespace
from exactly_once.protocol.planning import forgotten_by
from exactly_once.protocol.records import WRITE, Decision
from exactly_once.protocol.too_long import limit_ms
from exactly_once.txn.coordinators import Listing
from exactly_once.txn.leaders import Hanging
from exactly_once.verify.anomalies import MOST_PLACES, Anomaly, Finding
from exactly_once.verify.by_log.ledger import Ledger

#: A sweep ends within its budget of a minute after its claim.
SWEEP_MS = 60_000

#: Topic -> partition -> offset.
Offsets = Mapping[str, Mapping[int, int]]


def under_way(found: Inspection, policy_s: float) -> dict[int, OpenTransaction]:
    """Return, by producer id, the undecided transactions that a driver may be about to decide: its process is not known
    to be gone, and they are younger than ``policy_s`` seconds, or than a batch may become by the sink's own rule.
    """
    if not found.owner or found.owner.works is False:
        return {}
    young = (t for t in found.open if t.age_s < max(policy_s, limit_ms(int(t.timeout_s * 1000)) / 1000))
    return {t.producer_id: t for t in young if t.verdict == "undecided"}


def lingering(found: Inspection, policy_s: float) -> Iterator[Finding]:
    """Undecided transactions that are not :func:`under_way` any more."""
    alive = found.owner.works if found.owner else False
    healthy = under_way(found, policy_s)
    for t in found.open:
        if t.verdict != "undecided" or t.producer_id in healthy:
            continue
        owner = f"{found.owner.claim.process} is gone" if found.owner and alive is False else "nothing has ended it"
        yield Finding(
            Anomaly.LINGERING,
            f"{t.transactional_id} has been {t.state} for {t.age_s:.0f} s, is not decided, and {owner}",
            transaction=f"{t.transactional_id} (producer {t.producer_id}, epoch {t.producer_epoch})",
            places=tuple(f"{topic}-{p}" for topic, p in t.partitions)[:MOST_PLACES],
        )


def hanging(sink_id: str, found: Iterable[Hanging], held: int) -> Iterator[Finding]:
    """Transactions beyond any coordinator's reach; ``held`` completed parts of the sink are behind them."""
    behind = f"; readers do not get {plural(held, 'decided part')} because of what hangs" if held else ""
    for h in found:
        own = (h.transactional_id or "").startswith(namespace(sink_id))
        first = f"a start of the stream, or exactly-once recover {sink_id}; if it stays, " if own else ""
        yield Finding(
            Anomaly.HANGING,
            f"{h.name} is open at its partition's leader, but no coordinator will ever end it{behind}. What ends it: "
            f"{first}exactly-once transactions abort --hanging {h.name} (which refuses what is decided, and names the "
            "command that commits it)",
            transaction=f"{h.transactional_id or 'unknown id'} (producer {h.producer_id}, epoch {h.producer_epoch})",
            places=(f"{h.topic}-{h.partition}@{h.start_offset}",),
            records=h.records,
        )


def stalled(
    blocked: Iterable[BlockedPartition],
    earlier: Mapping[tuple[str, int], int],
    explained: Collection[tuple[tuple[str, int], int]] = (),
) -> Iterator[Finding]:
    """Partitions whose last stable offset has not moved.

    Parameters
    ----------
    blocked : iterable of BlockedPartition
        Where readers wait now.
    earlier : mapping
        By partition where readers waited at the reading before, the last stable offset of that time.
    explained : collection of ((str, int), int)
        Partition and first offset of transactions that may hold readers back: those of a batch under way, and those
        that hang, which are a finding of their own.
    """
    for b in blocked:
        if ((b.topic, b.partition), b.last_stable) in explained:
            continue
        if earlier.get((b.topic, b.partition)) == b.last_stable:
            yield Finding(
                Anomaly.STALLED_LAST_STABLE_OFFSET,
                f"readers of {b.topic}-{b.partition} are held back at offset {b.last_stable}, "
                f"{plural(b.waiting, 'offset')} before its end, by {b.held_by}",
                places=(f"{b.topic}-{b.partition}@{b.last_stable}",),
                records=b.waiting,
            )


def leaked(sink_id: str, listed: Iterable[Listing]) -> Iterator[Finding]:
    """Transactional ids in the sink's namespace that its scheme of names does not make."""
    strange = sorted(t.transactional_id for t in listed if not _in_scheme(sink_id, t.transactional_id))
    if strange:
        yield Finding(
            Anomaly.ID_LEAK,
            f"{plural(len(strange), 'transactional id')} of {namespace(sink_id)} outside of its {SLOTS} slots and "
            f"{VARIANTS + PROBES} variants, such as {strange[0]!r}: their number is not bounded",
            transaction=", ".join(strange[:3]),
        )


def _in_scheme(sink_id: str, transactional_id: str) -> bool:
    if transactional_id == commit_log_id(sink_id):
        return True
    part = PartId.parse(transactional_id)
    return part is not None and part.slot < SLOTS and int(part.attempt.partition(".")[2]) < VARIANTS + PROBES


def foreign_aborts(
    sink_id: str, ledger: Ledger, ids: Mapping[int, str], claims_ms: Sequence[int], other_claims_ms: Mapping[str, int]
) -> Iterator[Finding]:
    """Transactions of ids that only *begin like* this sink's, aborted while this sink swept.

    Parameters
    ----------
    ids : mapping
        Producer id -> transactional id, of all that wrote to the outputs and that a coordinator knows.
    claims_ms : sequence of int
        When this sink claimed, by the brokers' clock.
    other_claims_ms : mapping
        Sink id -> when that sink last claimed: it has aborted its own transactions then.
    """
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
            yield Finding(
                Anomaly.FOREIGN_ABORT,
                f"the transaction of {name} was aborted within a minute of a claim of sink {sink_id!r}, to which it "
                "does not belong",
                transaction=f"{name} (producer {producer_id}, epoch {epoch})",
                places=tuple(s.place for s in swept)[:MOST_PLACES],
                records=sum(s.records for s in swept),
            )


def input_of(decision: Decision) -> Offsets:
    """Return where the batch's input ends, by topic and partition; empty when the decision does not keep it."""
    return kafka_offsets(source_lines(decision.offsets))


def skewed(decisions: Iterable[Decision], published: Published, sizes: Mapping[str, int]) -> list[Finding]:
    """Offsets in the sink's consumer group that are not those of its last decision, or that are not there.

    An offset that is not there counts only when the group's others are of that very decision, which committed all of
    them at once. Without them the brokers have refused the offsets of a decision, or have let them expire.

    Parameters
    ----------
    decisions : iterable of Decision
        The last one, and those that were written while the group was read, oldest first: it may stand at any of them.
    sizes : mapping
        The number of partitions of each input topic that exists and may be described. Brokers forget the offsets of a
        topic that is deleted, and do not show those of one that may not be described.
    """
    found: list[Finding] = []
    for decision in decisions:
        found = list(_beside(decision, published, sizes))
        if not found:
            break
    return found


def _beside(decision: Decision, published: Published, sizes: Mapping[str, int]) -> Iterator[Finding]:
    batch = batch_name(decision.query_id, decision.batch_id)
    its_own = published.batches.get(decision.query_id) == decision.batch_id
    for topic, partitions in input_of(decision).items():
        for partition, wanted in sorted(partitions.items()):
            offset = published.offsets.get(topic, {}).get(partition)
            if offset == wanted or (offset is None and not (its_own and partition < sizes.get(topic, 0))):
                continue
            where = f"{topic}-{partition}"
            stands = f"is at {where}@{offset}" if offset is not None else f"has no offset of {where}"
            yield Finding(
                Anomaly.OFFSET_SKEW,
                f"the consumer group of sink offsets {stands}, but the last decision ({batch}) is at {wanted}",
                batch=batch,
                places=(f"{where}@{offset if offset is not None else wanted}",),
            )


def checkpoint_ahead(checkpoint: Checkpoint, log: LogState) -> Iterator[Finding]:
    """Find a batch that Spark counts as committed, and that is not decided."""
    if checkpoint.query_id is None or checkpoint.last_commit is None:
        return
    bound = log.owner.query_id if log.owner else None
    if bound and bound != checkpoint.query_id and log.last_decision(bound):  # :func:`rewound` tells
        return
    last = log.last_decision(checkpoint.query_id)
    decided = last.batch_id if last is not None else -1
    if checkpoint.last_commit > decided:
        yield Finding(
            Anomaly.CHECKPOINT_AHEAD,
            f"Spark's commits/{checkpoint.last_commit} exists in {checkpoint.location}, but the last decided batch "
            f"of query {checkpoint.query_id} is {decided if last is not None else 'none'}",
            batch=f"batch {checkpoint.last_commit}",
        )


def rewound(checkpoint: Checkpoint, offsets_digest: str, log: LogState) -> Iterator[Finding]:
    """Find a checkpoint that the next start refuses: it is of another query, or behind the last completed batch, or has
    other offsets than were decided.

    A start runs the newest batch in ``offsets/`` again unless ``commits/`` has it. One decided batch is drained so.

    Parameters
    ----------
    offsets_digest : str
        That of ``offsets/N`` of the last decided batch; "" when there is no such file.
    log : LogState
        Read before the checkpoint.
    """
    bound = log.owner.query_id if log.owner else None
    last = log.last_decision(bound) if bound else None
    if bound is None or last is None or bound.startswith(WRITE) or checkpoint.torn:
        return
    following = 0 if checkpoint.last_offsets is None else checkpoint.last_offsets + (checkpoint.in_flight is None)
    if checkpoint.query_id != bound:
        theirs = f"query {checkpoint.query_id}" if checkpoint.query_id else "no query"
        why = f"it is of {theirs}, and the sink belongs to query {bound}"
    elif following < last.batch_id:
        why = f"a start would run batch {following}, and batch {last.batch_id} is decided"
    elif offsets_digest != last.offsets_digest:
        has = "other offsets than were decided" if offsets_digest else "none"
        why = f"batch {last.batch_id} is decided, and offsets/{last.batch_id} has {has}"
    else:
        return
    yield Finding(
        Anomaly.CHECKPOINT_REWOUND,
        f"the next start refuses the checkpoint {checkpoint.location} (EO-REWOUND): {why}",
        batch=f"batch {last.batch_id}",
    )


def forgotten(log: LogState, published: Published) -> Iterator[Finding]:
    """Find decisions of which only the sink's consumer group still knows; ``log`` was read after it."""
    bound = log.owner.query_id if log.owner else None
    for query_id, batch_id in published.batches.items():
        known = bound == query_id or (bound is None and not log.decisions)  # else another query has taken the sink over
        if known and forgotten_by(batch_id, log.last_decision(query_id)):
            yield Finding(
                Anomaly.LOST_DECISION,
                f"the sink's consumer group has the offsets of batch {batch_id} of query {query_id}, committed "
                "with its decision, and the commit log holds no such decision",
                batch=f"batch {batch_id}",
            )


def undecided_commits(names: Sequence[str], records: int, places: Sequence[str]) -> Iterator[Finding]:
    """Find what a sink committed of which its commit log holds no decision at all.

    Parameters
    ----------
    names : sequence of str
        Its transactional ids whose last transaction was committed, as their coordinators say.
    records, places
        What the outputs hold of it.
    """
    if names:
        yield Finding(
            Anomaly.LOST_DECISION,
            f"the commit log holds no decision, and transactions of {plural(len(names), 'transactional id')} of the "
            f"sink are committed, with {plural(records, 'record')} that readers get: the log was deleted, or its "
            "decisions were",
            transaction=", ".join(sorted(names)[:3]),
            places=tuple(places),
            records=records,
        )
