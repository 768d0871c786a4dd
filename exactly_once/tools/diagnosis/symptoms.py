"""The symptoms of a sink: for each the facts that show it, its sentence and its remedy. Pure.

A symptom is one function, which yields what the facts show of it. A sentence has no age, which would differ from screen
to screen, but the time at which the symptom began.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from exactly_once.checkpoint import Checkpoint, repair_command
from exactly_once.inspection.findings import OpenTransaction, PendingDecision
from exactly_once.inspection.processes import Frozen, State, describe_frozen, end_command
from exactly_once.inspection.progress import compare
from exactly_once.inspection.words import are, duration, plural, some, upper, utc
from exactly_once.protocol.names import PROBES, SLOTS, VARIANTS, namespace
from exactly_once.protocol.part_state import PartState
from exactly_once.protocol.records import WRITE
from exactly_once.protocol.too_long import limit_ms
from exactly_once.tools.diagnosis.facts import UNCLAIMED, UNCLAIMED_REMEDY, ForeignAbort, SinkFacts
from exactly_once.tools.diagnosis.model import Severity
from exactly_once.tools.diagnosis.registry import Sign, symptom
from exactly_once.tools.diagnosis.thresholds import Thresholds

#: Names in a sentence; the evidence has all of them.
NAMED = 3


def too_old(t: OpenTransaction, at_work: bool | None, limits: Thresholds) -> bool:
    """Return whether an open transaction is older than any batch may become: at once where nobody works on the sink,
    else beyond ``stale_after_s`` and the sink's own limit for a batch, or beyond its timeout.
    """
    if at_work is False or 0 < t.timeout_s < t.age_s:
        return True
    return t.age_s > max(limits.stale_after_s, limit_ms(int(t.timeout_s * 1000)) / 1000)


def under_way(facts: SinkFacts, limits: Thresholds) -> dict[int, OpenTransaction]:
    """Return, by producer id, the undecided transactions that a driver may be about to decide."""
    open_now = (t for t in facts.sink.open if t.verdict == "undecided")
    return {t.producer_id: t for t in open_now if not too_old(t, facts.at_work, limits)}


# -- a decided batch ---------------------------------------------------------------------------------------------------


@symptom("HEALTH-IN-DOUBT", Severity.ERROR, threshold="completing_s", recovers=True)
def _in_doubt(f: SinkFacts, limits: Thresholds) -> Iterator[Sign]:
    """A decided batch is not proven committed, and nobody works on it."""
    if not f.sink.decided:
        return
    oldest = f.sink.decided[0].decided_ms
    age_s = (f.sink.checked_ms - oldest) / 1000
    if f.at_work is False or age_s > (limits.stale_after_s if f.at_work else limits.completing_s):
        names = [d.name for d in f.sink.decided]
        one = len(names) == 1
        yield Sign(
            f"{upper(_some(names))} {are(len(names))} decided, but not proven committed"
            f"{', and nobody works on the sink' if f.at_work is False else ''}: readers may see only a part. "
            f"{'It was' if one else 'The oldest was'} decided at {_at(oldest)}",
            _recover(f),
            {"batches": [d.batch_id for d in f.sink.decided], "names": names, "at_work": f.at_work},
            oldest / 1000,
        )


@symptom("HEALTH-LOST-PARTS", Severity.ERROR)
def _lost_parts(f: SinkFacts, limits: Thresholds) -> Iterator[Sign]:
    """Parts of a decided batch were aborted, or their topic was made again."""
    for pending, count in _counted(f, PartState.LOST):
        lost = f"but {plural(count, 'part')} of it {are(count)} lost: readers miss their records"
        yield _of_batch(pending, lost, "Start the stream, which writes these parts again", count)


@symptom("HEALTH-UNKNOWN-PARTS", Severity.WARN, recovers=True)
def _unknown_parts(f: SinkFacts, limits: Thresholds) -> Iterator[Sign]:
    """No coordinator knows what became of parts of a decided batch."""
    for pending, count in _counted(f, "unknown"):
        unknown = f"but no coordinator knows what became of {plural(count, 'part')} of it"
        look = f"{_recover(f)}. Either looks for {'it' if count == 1 else 'them'} in the output"
        yield _of_batch(pending, unknown, look, count)


@symptom("HEALTH-OUTPUT-WAITS", Severity.ERROR)
def _output_waits(f: SinkFacts, limits: Thresholds) -> Iterator[Sign]:
    """Another output may not have committed a decided batch, and nobody works on it."""
    for pending in f.sink.decided:
        if not pending.unasked or pending.count(PartState.DECIDED) or f.at_work is not False:
            continue
        outputs = " and ".join(f"{plural(count, 'part')} in {name}" for name, count in pending.unasked.items())
        waits = f"but its other outputs may not have committed it yet: {outputs}"
        yield _of_batch(pending, waits, "Start the stream, which commits it there", dict(pending.unasked))


def _of_batch(pending: PendingDecision, sentence: str, remedy: str, parts: int | dict[str, int]) -> Sign:
    evidence = {"batch": pending.batch_id, "name": pending.name, "parts": parts}
    return Sign(f"{upper(pending.name)} is decided, {sentence}", remedy, evidence, pending.decided_ms / 1000)


def _counted(f: SinkFacts, state: str) -> Iterator[tuple[PendingDecision, int]]:
    for pending in f.sink.decided:
        if count := pending.count(state):
            yield pending, count


# -- processes ---------------------------------------------------------------------------------------------------------


@symptom("HEALTH-FROZEN", Severity.ERROR)
def _frozen(f: SinkFacts, limits: Thresholds) -> Iterator[Sign]:
    """A process of the driver is stopped by a signal, or stuck in the kernel."""
    owner = f.sink.owner
    at_rest = owner is not None and owner.claim.purpose == "recovery" and f.sink.quiet  # and its process does no harm
    if f.frozen and not (at_rest and owner is not None and f.frozen == owner.frozen):
        yield Sign(
            f"The driver is alive but does nothing: {describe_frozen(f.frozen)}",
            f"{how_to_end(f.frozen)}. Then {_lower(_start_or_recover(f))}",
            {"pids": [p.process.pid for p in f.frozen], "states": [p.state.value for p in f.frozen]},
        )


# -- open transactions -------------------------------------------------------------------------------------------------


@symptom("HEALTH-STALE-TRANSACTIONS", Severity.ERROR, threshold="stale_after_s", recovers=True)
def _stale(f: SinkFacts, limits: Thresholds) -> Iterator[Sign]:
    """Undecided transactions are too old, or nobody works on the sink."""
    at_work = f.at_work
    old = [t for t in f.sink.open if t.verdict != "decided" and too_old(t, at_work, limits)]
    if not old:
        return
    worst = max(old, key=lambda t: t.age_s)
    began = round(f.sink.checked_ms - worst.age_s * 1000)
    which = f"{plural(len(old), 'undecided transaction')} of the sink {are(len(old))} open"
    why = ", and nobody works on the sink" if at_work is False else " for longer than a batch may take"
    slow = (
        "Read in the driver's log, and in Spark's UI, why its batch takes so long. If the driver hangs, end it; then "
        f"{_lower(_start_or_recover(f))}"
    )
    where = {_writer(t): [f"{topic}-{p}" for topic, p in t.partitions] for t in old}
    yield Sign(
        f"{which}{why}: readers wait. The oldest, {worst.transactional_id}, began at {_at(began)}, and the brokers "
        f"abort it after {duration(worst.timeout_s)}",
        _recover(f) if at_work is False else slow,
        {"transactions": where, "eldest": worst.transactional_id, "timeout_s": worst.timeout_s, "at_work": at_work},
        began / 1000,
    )


@symptom("HEALTH-HANGING", Severity.ERROR, needs="hanging", threshold="hanging_older_than_s", at_once=True)
def _hanging(f: SinkFacts, limits: Thresholds) -> Iterator[Sign]:
    """No coordinator will ever end a transaction of the sink."""
    if names := _named(f, "ours"):
        yield Sign(
            f"{plural(len(names), 'transaction')} of the sink {_hang(names)}: no coordinator will ever end "
            f"{'it' if len(names) == 1 else 'them'}, and readers wait",
            f"{_start_or_recover(f)}. If {'it' if len(names) == 1 else 'one'} stays, run exactly-once transactions "
            f"abort --hanging {names[0]}, which names the command that commits it where it is decided; in Dagster "
            "launch the job exactly_once_end_hanging, first as a dry run",
            _hanging_evidence(f, names),
            subject=names[0],
        )


@symptom("HEALTH-FOREIGN-HANGING", Severity.WARN, needs="hanging", threshold="hanging_older_than_s")
def _foreign_hanging(f: SinkFacts, limits: Thresholds) -> Iterator[Sign]:
    """A transaction of another application hangs on the sink's topics."""
    if names := _named(f, "foreign"):
        yield Sign(
            f"{plural(len(names), 'transaction')} of other applications {_hang(names)}, and readers of the sink's "
            "topics wait",
            "Ask the owners of these applications to end what hangs, with kafka-transactions.sh abort",
            _hanging_evidence(f, names),
            subject=names[0],
        )


@symptom("HEALTH-UNKNOWN-WRITER", Severity.WARN, needs="hanging", threshold="hanging_older_than_s")
def _unknown_writer(f: SinkFacts, limits: Thresholds) -> Iterator[Sign]:
    """An old transaction of an unknown writer holds readers back."""
    if names := _named(f, "unknown"):
        yield Sign(
            f"{plural(len(names), 'old transaction')} of unknown writers {'holds' if len(names) == 1 else 'hold'} "
            f"readers of the sink's topics back: {_some(names)}. Either what is open hangs, or this principal may not "
            "see its transactional id",
            "Grant DESCRIBE on all transactional ids, or ask who else writes to these topics. What hangs is ended with "
            f"exactly-once transactions abort --hanging {names[0]}, once its owner agrees",
            _hanging_evidence(f, names),
            subject=names[0],
        )


@symptom("HEALTH-FOREIGN-TRANSACTION", Severity.WARN, needs="hanging", threshold="stale_after_s")
def _foreign(f: SinkFacts, limits: Thresholds) -> Iterator[Sign]:
    """A transaction of another application holds readers back for too long."""
    if f.foreign:
        count = len(f.foreign)
        yield Sign(
            f"{plural(count, 'transaction')} of other applications {'holds' if count == 1 else 'hold'} readers of the "
            f"sink's topics back: {_some(f.foreign)}",
            "Their own clients end them, or the brokers after their timeouts; ask their owners if that takes too long",
            {"transactional_ids": list(f.foreign)},
            subject=f.foreign[0],
        )


@symptom("HEALTH-READERS-WAIT", Severity.ERROR, needs="standing", threshold="stale_after_s")
def _readers_wait(f: SinkFacts, limits: Thresholds) -> Iterator[Sign]:
    """The last stable offset of an output partition stands."""
    now = f.sink.checked_ms
    after_s = 0.0 if f.at_work is False else limits.stale_after_s
    standing = [s for s in f.standing if s.since_ms is None or (now - s.since_ms) / 1000 > after_s]
    if not standing:
        return
    where = {f"{b.topic}-{b.partition}@{b.last_stable}": b.waiting for b in (s.blocked for s in standing)}
    since = min((s.since_ms for s in standing if s.since_ms is not None), default=None)
    holders = " and ".join(dict.fromkeys(s.blocked.held_by for s in standing))
    ours = all(s.blocked.ours for s in standing)
    other = (
        "Run exactly-once transactions list --hanging, which names what hangs; a transaction of another application is "
        "ended by its own client or its timeout"
    )
    yield Sign(
        f"Readers of {plural(len(where), 'partition')} are held back by {holders}: {_some(where)}",
        _recover(f) if ours else other,
        {"places": where, "ours": ours},
        since / 1000 if since is not None else None,
        subject=next(iter(where)).rpartition("@")[0],
    )


def _named(f: SinkFacts, owner: str) -> list[str]:
    return [h.name for h in f.hanging if h.owner == owner]


def _hanging_evidence(f: SinkFacts, names: Sequence[str]) -> dict[str, Any]:
    found = [h for h in f.hanging if h.name in names]
    return {"transactions": {f"{h.transactional_id or 'unknown id'} on {h.name}": [h.name] for h in found}}


# -- the checkpoint ----------------------------------------------------------------------------------------------------


def _put_back(f: SinkFacts, c: Checkpoint) -> str:
    """Return the way back from a checkpoint that the next start refuses."""
    return (
        "Put back the newest whole copy of the checkpoint. Without one, see what the commit log can rebuild: "
        f"{repair_command(c.location, f.sink.sink_id)}. What it refuses, the message of the refused start has a way for"
    )


@symptom("HEALTH-CHECKPOINT-TORN", Severity.ERROR, needs="checkpoint", at_once=True)
def _torn(f: SinkFacts, limits: Thresholds) -> Iterator[Sign]:
    """A file of the checkpoint is torn."""
    if f.checkpoint is not None and f.checkpoint.torn:
        faults = "; ".join(f"{name}: {fault}" for name, fault in f.checkpoint.torn.items())
        yield _of_checkpoint(
            f.checkpoint,
            f"has torn files, and the next start is refused (EO-CHECKPOINT): {faults}",
            f"Run {repair_command(f.checkpoint.location, f.sink.sink_id)}, in Dagster the job "
            "exactly_once_checkpoint_repair, first as a dry run",
        )


@symptom("HEALTH-CHECKPOINT-FOREIGN", Severity.ERROR, needs="checkpoint", at_once=True)
def _foreign_checkpoint(f: SinkFacts, limits: Thresholds) -> Iterator[Sign]:
    """The checkpoint is of another query than the sink."""
    if _compared(f) == "foreign" and f.checkpoint is not None and f.sink.log.owner is not None:
        yield _of_checkpoint(
            f.checkpoint,
            f"is of query {f.checkpoint.query_id}, and the sink belongs to query {f.sink.log.owner.query_id}: the next "
            "start is refused (EO-SINK-OWNED)",
            "Use the checkpoint of the sink's own query, or another sink.id for this one",
        )


@symptom("HEALTH-CHECKPOINT-LOST", Severity.ERROR, needs="checkpoint", at_once=True)
def _lost_checkpoint(f: SinkFacts, limits: Thresholds) -> Iterator[Sign]:
    """The checkpoint lacks decided batches."""
    c, owner = f.checkpoint, f.sink.log.owner
    if c is not None and owner is not None and _compared(f) == "checkpoint lost":
        last = f.sink.log.last_decision(owner.query_id or "")
        decided = f", and batch {last.batch_id} is decided" if last else f" of query {owner.query_id}"
        ends = f"it ends at batch {c.last_offsets}" if c.query_id else "there is none"
        refused = "EO-REWOUND" if c.query_id else "EO-SINK-OWNED"
        lost = f"was deleted, restored or rewound: {ends}{decided}. The next start is refused ({refused})"
        yield _of_checkpoint(c, lost, _put_back(f, c), last.batch_id if last else None)


@symptom("HEALTH-CHECKPOINT-REWOUND", Severity.ERROR, needs="verify", at_once=True)
def _rewound(f: SinkFacts, limits: Thresholds) -> Iterator[Sign]:
    """The checkpoint has other offsets than were decided."""
    if f.checkpoint is None or f.planned is None or f.sink.log.owner is None:
        return
    bound = f.sink.log.owner.query_id
    last = f.sink.log.last_decision(bound) if bound else None
    silent = _compared(f) in ("torn", "foreign", "checkpoint lost") or (bound or "").startswith(WRITE)
    if last is not None and not silent and f.planned != last.offsets_digest:
        batch = f"batch {last.batch_id}"
        has = f"has other offsets for {batch} than were decided" if f.planned else f"lacks the offsets of {batch}"
        rewound = f"{has}. The next start is refused (EO-REWOUND)"
        yield _of_checkpoint(f.checkpoint, rewound, _put_back(f, f.checkpoint), last.batch_id)


@symptom("HEALTH-CHECKPOINT-AHEAD", Severity.ERROR, needs="checkpoint", at_once=True)
def _ahead(f: SinkFacts, limits: Thresholds) -> Iterator[Sign]:
    """Spark counts a batch as committed that was never decided."""
    c = f.checkpoint
    if c is None or c.query_id is None or c.last_commit is None or f.after is None or _compared(f) == "foreign":
        return
    last = f.after.last_decision(c.query_id)
    if c.last_commit > (last.batch_id if last is not None else -1):
        decided = f"batch {last.batch_id}" if last is not None else "none"
        remedy = (
            "Stop the stream and compare its input with its output (exactly-once verify --origin) before it starts "
            "again: no start writes these batches again"
        )
        if f.after.owner is None:
            decided, remedy = f"{decided}: {UNCLAIMED}", UNCLAIMED_REMEDY
        yield _of_checkpoint(
            c,
            f"counts batch {c.last_commit} as committed, but the last decided batch of query {c.query_id} is {decided}",
            remedy,
            c.last_commit,
        )


def _of_checkpoint(c: Checkpoint, sentence: str, remedy: str, batch: int | None = None) -> Sign:
    evidence = {"last_planned": c.last_offsets, "last_committed": c.last_commit, "torn": list(c.torn)}
    name = "" if batch is None else f"batch {batch}"
    return Sign(f"The checkpoint {c.location} {sentence}", remedy, {"name": name, **evidence}, subject=c.location)


def _compared(f: SinkFacts) -> str:
    """Return the state of the checkpoint beside the commit log (:func:`~exactly_once.inspection.progress.compare`)."""
    if f.checkpoint is None or (f.sink.log.owner is not None and (f.sink.log.owner.query_id or "").startswith(WRITE)):
        return ""
    return compare(f.checkpoint, f.sink.log).state


# -- what only verify reads --------------------------------------------------------------------------------------------


@symptom("HEALTH-LOST-DECISION", Severity.ERROR, needs="verify", at_once=True)
def _lost_decision(f: SinkFacts, limits: Thresholds) -> Iterator[Sign]:
    """The commit log has lost the decision of a batch."""
    remedy = (
        "Do not start the stream: without the decision it may write the batch again. Find out who deleted records of "
        "the commit log, and see The commit log in docs/production.md"
    )
    for query_id, batch_id in f.forgotten.items():
        yield Sign(
            f"The sink's consumer group has the offsets of batch {batch_id} of query {query_id}, committed with its "
            "decision, and the commit log holds no such decision",
            remedy,
            {"name": f"batch {batch_id}", "query_id": query_id, "batch": batch_id},
        )
    if f.undecided is not None:
        yield Sign(
            f"The commit log holds no decision, and {plural(len(f.undecided.names), 'id')} of the sink committed "
            f"transactions with {plural(f.undecided.records, 'record')} that readers get: the log was deleted, or its "
            "decisions were",
            remedy,
            {
                "transactions": {", ".join(f.undecided.names[:NAMED]): list(f.undecided.places)},
                "records": f.undecided.records,
            },
        )


@symptom("HEALTH-FOREIGN-ABORT", Severity.ERROR, needs="verify")
def _foreign_abort(f: SinkFacts, limits: Thresholds) -> Iterator[Sign]:
    """A transaction of another application was aborted with this sink's own."""
    for a in f.foreign_aborts:
        yield Sign(
            f"The transaction of {a.transactional_id} was aborted within a minute of a claim of sink "
            f"{f.sink.sink_id!r}, to which it does not belong",
            "Report this with the brokers' version: the sink aborts its own ids alone. Its application writes the "
            f"{plural(a.records, 'record')} again if it retries",
            {
                "transactions": {_writer(a): list(a.places)},
                "records": a.records,
            },
            subject=a.transactional_id,
        )


@symptom("HEALTH-OFFSET-SKEW", Severity.WARN, needs="verify")
def _offset_skew(f: SinkFacts, limits: Thresholds) -> Iterator[Sign]:
    """The sink's consumer group is not at the last decision."""
    for s in f.skewed:
        where = f"{s.topic}-{s.partition}"
        stands = f"is at {where}@{s.offset}" if s.offset is not None else f"has no offset of {where}"
        yield Sign(
            f"The consumer group of sink offsets {stands}, but the last decision ({s.batch}) is at {s.decided}",
            "Find out who else commits offsets to this group, or deleted it; the next batch sets them right. Before, "
            "lag tools are wrong, and no start notices that the commit log has lost this decision",
            {"name": s.batch, "places": {f"{where}@{s.decided if s.offset is None else s.offset}": 0}},
            subject=where,
        )


@symptom("HEALTH-ID-LEAK", Severity.WARN, needs="verify")
def _id_leak(f: SinkFacts, limits: Thresholds) -> Iterator[Sign]:
    """The sink has transactional ids outside of its scheme."""
    if f.leaked:
        yield Sign(
            f"{plural(len(f.leaked), 'transactional id')} of {namespace(f.sink.sink_id)} {are(len(f.leaked))} outside "
            f"of its {SLOTS} slots and {VARIANTS + PROBES} variants, such as {f.leaked[0]!r}: no bound holds for them",
            "Find out which application uses the sink's prefix. The brokers forget an unused id after a week",
            {"transactions": {", ".join(f.leaked[:NAMED]): []}, "ids": len(f.leaked)},
            subject=f.leaked[0],
        )


# -- words -------------------------------------------------------------------------------------------------------------


def _start_or_recover(f: SinkFacts) -> str:
    return (
        f"Start the stream, or recover the sink: exactly-once recover {f.sink.sink_id}, in Dagster the job "
        "exactly_once_recovery"
    )


def _recover(f: SinkFacts) -> str:
    """Return the remedy that a recovery is; a frozen process first has to go, since it would be frozen still."""
    return f"{how_to_end(f.frozen)}. Then {_lower(_start_or_recover(f))}" if f.frozen else _start_or_recover(f)


def how_to_end(frozen: Sequence[Frozen]) -> str:
    """Return how a person ends frozen processes, without a full stop at its end.

    Dagster's Terminate waits for the run's process to take the message, and holds the lock that every start of a run in
    the code location needs. A process that is killed meanwhile never takes it, so it must first run again.
    """
    stopped = " ".join(str(p.process.pid) for p in frozen if p.state is State.STOPPED)
    first = f"resume the process with kill -CONT {stopped}" if stopped else "wait until the kernel releases the process"
    return (
        f"End the process with {end_command(frozen)}. In Dagster, do not press Terminate, which would wait for this "
        f"process and block every start in its code location; if somebody has, first {first}, and if that does not "
        "help, restart the server of the code location after the kill"
    )


def _writer(t: OpenTransaction | ForeignAbort) -> str:
    return f"{t.transactional_id} (producer {t.producer_id}, epoch {t.producer_epoch})"


def _at(ms: float) -> str:
    return f"{utc(ms)} UTC"


def _hang(names: Sequence[str]) -> str:
    return f"{'hangs' if len(names) == 1 else 'hang'} ({_some(names)})"


def _some(names: Iterable[str]) -> str:
    return some(list(names), NAMED)


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
