"""The steps of a verification."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from exactly_once.checkpoint import Checkpoint, begins_of, read_checkpoint, read_text
from exactly_once.commitlog.commit_log import read_log
from exactly_once.deadline import Deadline, now_ms
from exactly_once.diagnosis import Diagnosis, SinkFacts, Thresholds, diagnose
from exactly_once.diagnosis.facts import HangingName, OffsetSkew, Undecided
from exactly_once.diagnosis.symptoms import under_way
from exactly_once.errors import CheckpointUnusable, ExactlyOnceError
from exactly_once.inspection.findings import BlockedPartition, batch_name
from exactly_once.inspection.hanging import attribute
from exactly_once.inspection.sink import inspect_sink
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.kafka.groups import published_offsets
from exactly_once.participant import Participant
from exactly_once.protocol.checkpoint_text import digest_of
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.names import PartId, check_sink_id, commit_log_id, namespace, offsets_group
from exactly_once.protocol.records import Decision
from exactly_once.protocol.topics import ANY_TOPIC
from exactly_once.txn.coordinators import ids_of, list_transactions
from exactly_once.txn.leaders import OLDER_THAN_S, Hanging, Trail, find_hanging, open_on, trail_of
from exactly_once.verify import sink_findings
from exactly_once.verify.anomalies import Anomaly, Finding
from exactly_once.verify.answers import Balance
from exactly_once.verify.by_log.accounts import balance_of
from exactly_once.verify.by_log.balance import judge_balance, judge_input, judge_log
from exactly_once.verify.by_log.judge import OutputState, Verdict, latest
from exactly_once.verify.by_log.ledger import scopes_to_try
from exactly_once.verify.by_log.orphans import from_the_first, judge_without_decisions
from exactly_once.verify.by_log.reading import extent, read_output
from exactly_once.verify.by_origin.against import AgainstResult, compare_versions
from exactly_once.verify.by_origin.comparison import OriginResult, Question, compare_origins
from exactly_once.verify.by_origin.versions import Version
from exactly_once.verify.expected import Expected, expected_input
from exactly_once.verify.outputs import judge_outputs, read_again, read_outputs
from exactly_once.verify.report import OnProgress, Report, limited
from exactly_once.verify.window import Positions, flat

#: Batches by the commit log, which keeps 64 of a stream.
BATCHES = 64

#: Why the checkpoint's batches are not proven: only a caller who names the outputs knows that no decision will.
NO_LOG = "batches of the checkpoint that are in no commit log"

#: Why a topic that no decision names is not searched.
SILENT = "topics that no decision names, where a leader does not answer whether the sink wrote to them"

#: Why a batch is not wholly proven, although its records are there.
UNMARKED = "batches that the log does not mark as completed, although their parts are visible"

#: Why nothing is said of the checkpoint.
TORN = "torn files of the checkpoint"

#: Why the balance is not complete.
UNEXPLAINED = "offsets that are in the output and that this report does not explain"

#: What a healthy stream may show for a moment is read again for so long.
SETTLE_S = 15.0

#: Between two readings.
_PAUSE_S = 2.0


def verify(
    connection: Connection,
    sink_id: str,
    *,
    checkpoint: str | None = None,
    batches: int = BATCHES,
    outputs: Sequence[Participant[Any]] = (),
    origin: Question | None = None,
    against: str = "",
    inputs: Sequence[str] = (),
    topics: Sequence[str] = (),
    last: int | None = None,
    settle_s: float = SETTLE_S,
    hanging_age_s: float = OLDER_THAN_S,
    budget_s: float = 60.0,
    on_progress: OnProgress = lambda progress: None,
) -> Report:
    """Compare output, commit log, checkpoint and brokers of a sink.

    Parameters
    ----------
    checkpoint : str, optional
        The location of the stream's checkpoint; without it, nothing is said about the checkpoint.
    batches : int
        The number of newest decisions to prove by the commit log.
    outputs : sequence of Participant
        The sink's outputs beside Kafka. Parts in outputs that are not given are unproven.
    origin : Question, optional
        What the output records say of their input: then the output is compared with the input too.
    against : str
        With ``origin``: an older sink that reads the same input, whose output is compared with this one's, too.
    inputs : sequence of str
        With ``origin``: only these input topics; without ``checkpoint``, from their beginning.
    topics : sequence of str
        Topics to read for transactions of the sink beside those that the decisions name and those where the leaders
        remember one of its producers. With ``origin``, they are the output topics, by default those that the decisions
        name; a sink without a commit log (``sink.guarantee=none`` or ``at_least_once``, another sink) is then proven by
        origin alone.
    last : int, optional
        With ``origin``: only the newest batches with at most so many offsets of input, and what the outputs have of
        them.
    settle_s : float
        For how long something that a healthy stream shows for a moment is read again before it is reported. Less
        than the two seconds between two readings: whatever the first one sees is reported.
    hanging_age_s : float
        The age from which an open transaction that no coordinator knows counts as hanging.
    budget_s : float
        For each question to the brokers; reading records takes as long as it takes.

    Raises BrokerUnreachable, NotAuthorized, UnknownTopic, CommitLogDamaged, CommitLogBlocked or CheckpointUnusable.
    """
    began = time.monotonic()
    alone = origin is not None and bool(topics)
    own = check_sink_id(sink_id)
    task = _Task(
        connection,
        own,
        checkpoint,
        outputs,
        topics=topics,
        alone=alone,
        hanging_age_s=hanging_age_s,
        budget_s=budget_s,
        on_progress=on_progress,
    )
    progress = task.progress()
    log = read_log(connection, sink_id, budget_s, whole=True)
    decisions, since_ms = _newest(log, batches)
    since_ms = 0 if from_the_first(decisions, log) else since_ms
    reading = _read(task, decisions, since_ms, {} if settle_s >= _PAUSE_S else None)
    first, settled = reading, Deadline(settle_s)  # from here on: a reading may take longer
    while any(f.anomaly.may_pass for f in reading.findings) or reading.waiting or reading.unmarked:
        if settled.left < _PAUSE_S:
            break
        time.sleep(_PAUSE_S)
        reading = _read(task, decisions, since_ms, first.waiting)
        reading = replace(reading, unmarked=reading.unmarked & first.unmarked)
    compared = OriginResult()
    if origin is not None and (log.decisions or progress.last_commit is not None):  # else there is no batch yet
        compared = _by_origin(task, origin, inputs, topics, last, settle_s)
    beside = AgainstResult("")
    if origin is not None and against:
        beside = _against(task, origin, against, inputs, last, settle_s)
    found = Counter(reading.verdict.unproven)
    found[UNMARKED] += len(reading.unmarked)
    found[UNEXPLAINED] += sum(abs(t.offsets - t.explained) for t in reading.balance.topics.values())
    unproven = {reason: n for reason, n in found.items() if n}
    findings, counts = limited([*reading.findings, *compared.findings, *beside.findings])
    return Report(
        sink_id,
        findings=findings,
        batches=reading.verdict.batches,
        parts=reading.verdict.parts,
        records=reading.verdict.records,
        unproven={**unproven, **compared.unproven, **beside.unproven},
        by_origin=compared.by_origin,
        first_batch=batch_name(decisions[0].query_id, decisions[0].batch_id) if decisions else "",
        last_batch=batch_name(decisions[-1].query_id, decisions[-1].batch_id) if decisions else "",
        read=reading.read + compared.read + beside.read,
        took_s=time.monotonic() - began,
        checked_ms=now_ms(),
        counts=counts,
        claimed=log.owner is not None,
        not_searched=reading.not_searched,
        window=str(compared.window or ""),
        against_sink=beside.sink_id,
        against=beside.counts,
        balance=reading.balance,
        removed={reason: n for reason, n in reading.verdict.removed.items() if n},
        diagnoses=reading.diagnoses,
    )


def _by_origin(
    task: _Task, origin: Question, inputs: Sequence[str], topics: Sequence[str], last: int | None, settle_s: float
) -> OriginResult:
    """Compare the output with the input: all of it, or the newest part."""

    def expected() -> Expected:
        return expected_input(task.connection, task.sink_id, task.checkpoint, inputs, task.budget_s, last)

    return compare_origins(
        task.connection,
        topics,
        origin,
        expected,
        settle_s=settle_s,
        budget_s=task.budget_s,
        on_progress=task.on_progress,
    )


def _against(
    task: _Task, origin: Question, old: str, inputs: Sequence[str], last: int | None, settle_s: float
) -> AgainstResult:
    """Compare the output with that of an older sink."""
    return compare_versions(
        task.connection,
        Version(old),
        Version(task.sink_id, tuple(task.topics), task.checkpoint),
        origin.origin,
        inputs=inputs,
        last=last,
        settle_s=settle_s,
        budget_s=task.budget_s,
        on_progress=task.on_progress,
    )


@dataclass(frozen=True)
class _Task:
    connection: Connection
    sink_id: str
    checkpoint: str | None
    outputs: Sequence[Participant[Any]]
    topics: Sequence[str]
    alone: bool
    """True when the origins can prove it without a commit log."""
    hanging_age_s: float
    budget_s: float
    on_progress: OnProgress

    def progress(self) -> Checkpoint:
        """Read the checkpoint, if there is one to read."""
        return read_checkpoint(self.checkpoint) if self.checkpoint is not None else Checkpoint("")

    def offsets_digest(self, progress: Checkpoint, log: LogState) -> str:
        """Return the digest of the checkpoint's ``offsets/N`` of the last decided batch; "" when it has none."""
        last = log.last_decision(progress.query_id) if progress.query_id else None
        if self.checkpoint is None or last is None:
            return ""
        try:
            return digest_of(read_text(self.checkpoint, f"offsets/{last.batch_id}"))
        except CheckpointUnusable:
            return ""

    def began(self, progress: Checkpoint) -> dict[str, Positions]:
        """Return where the checkpoint's query began to read Kafka, as far as the checkpoint says."""
        if self.checkpoint is not None and progress.query_id is not None:
            with suppress(CheckpointUnusable):
                if first := flat(begins_of(self.checkpoint, 0)):
                    return {progress.query_id: first}
        return {}


@dataclass(frozen=True)
class _Reading:
    """The findings of one read.

    ``waiting`` is the last stable offset by partition on which readers wait, as they did at the first read;
    ``unmarked`` are the batches that are there and lack their completed mark.
    """

    findings: list[Finding]
    verdict: Verdict = field(default_factory=Verdict)
    read: int = 0
    waiting: Mapping[tuple[str, int], int] = field(default_factory=dict)
    not_searched: int = 0
    balance: Balance = field(default_factory=Balance)
    unmarked: frozenset[tuple[str, int]] = frozenset()
    diagnoses: tuple[Diagnosis, ...] = ()


def _newest(log: LogState, count: int) -> tuple[list[Decision], int]:
    """Return the newest decisions, oldest first, and a time before the first record of them by the brokers' clock."""
    decisions = list(log.decisions)[-count:]
    times = [log.decided_ms.get((d.query_id, d.batch_id), d.decided_ms) for d in log.decisions]
    before = times[: len(times) - len(decisions)]
    began = [d.began_ms for d in decisions if d.began_ms]
    return decisions, before[-1] if before else min([*began, *times[-len(decisions) :]], default=0)


def _read(
    task: _Task, decisions: Sequence[Decision], since_ms: int, earlier: Mapping[tuple[str, int], int] | None
) -> _Reading:
    """Read the output, then the log again: whatever was visible in the output is decided in the log by then.

    ``earlier`` is where readers waited at the reading before; None: this reading is the only one, so each reader that
    waits counts as stalled.
    """
    with Admin(task.connection, task.budget_s) as admin:
        listed = list_transactions(admin, namespace(task.sink_id), ())
        soon = read_log(task.connection, task.sink_id, task.budget_s, whole=True)
        progress = task.progress()
        planned = task.offsets_digest(progress, soon)  # before Spark deletes the file: it keeps a hundred
        ids = {t.producer_id: t.transactional_id for t in listed}
        ids |= {h.producer_id: h.transactional_id for d in (*decisions, *soon.decisions) for h in d.transactions}
        known = soon.decisions or decisions
        committed = [t.transactional_id for t in listed if t.state == "CompleteCommit" and _is_part(t.transactional_id)]
        search = bool(known or committed)
        parts = [i for i, name in ids.items() if name != commit_log_id(task.sink_id)]  # it also writes the progress
        trail = _trail(task, admin.renew(task.budget_s), known, parts) if search else Trail()
        found = extent(admin.renew(task.budget_s), known, (*task.topics, *trail.found) if search else ())
        scopes = {(h.producer_id, h.epoch): h.form for d in decisions for h in d.transactions}
        scopes_of = scopes_to_try(scopes, frozenset(ids))
        ledger = read_output(admin, found, decisions, since_ms, scopes_of, task.budget_s, task.on_progress)
        seen = read_outputs(task.sink_id, decisions, task.outputs)
        hangs = _hanging(task, known)
        later = read_log(task.connection, task.sink_id, task.budget_s, whole=True)
        inspection = inspect_sink(task.connection, task.sink_id, task.budget_s)
        skewed, forgotten = _published(task, admin.renew(task.budget_s), later)
        others = ids_of(admin, ({writer[0] for writer in (*ledger.spans, *ledger.strangers)}) - set(ids))
        holders = _holders(admin, inspection.blocked)
    newest = latest(decisions, later)
    output = OutputState(found.removed, found.topic_ids, _held(hangs), _committed(progress, decisions))
    # a long reading may outlast the decisions of what was written when it began
    verdict = judge_log(newest, later, ledger, ids, output, (*decisions, *soon.decisions), others)
    undecided = None
    if not (decisions or soon.decisions or later.decisions):
        records, places = judge_without_decisions(ledger, ids, verdict)
        undecided = Undecided(tuple(sorted(committed)), records, tuple(places)) if committed else None
    judge_input(later.decisions, task.began(progress), verdict)
    verdict.unproven[SILENT] += len(trail.silent)
    seen = read_again(task.sink_id, later.decisions, task.outputs, seen)
    judge_outputs(latest(decisions, later), later, seen, verdict)
    waiting = {(b.topic, b.partition): b.last_stable for b in inspection.blocked}
    young = under_way(SinkFacts(inspection), Thresholds())
    explained = {(w, at) for w, at, who in holders if who in young}
    explained |= {((h.topic, h.partition), h.start_offset) for h in hangs}
    claims = [later.owner.claimed_ms] if later.owner else []
    alone = task.alone and later.owner is None and not later.decisions
    # before the first decision, a checkpoint that is not there contradicts nothing
    judged = task.checkpoint is not None and (bool(soon.decisions) or progress.query_id is not None)
    diagnoses = diagnose(
        SinkFacts(
            replace(inspection, log=soon),
            hanging=tuple(HangingName.of(attribute(h, {task.sink_id: later}), task.sink_id) for h in hangs),
            standing=tuple(
                sink_findings.standing(inspection.blocked, waiting if earlier is None else earlier, explained)
            ),
            checkpoint=progress if judged and not alone else None,
            planned=planned,
            after=later,
            leaked=sink_findings.leaked(task.sink_id, listed),
            foreign_aborts=tuple(
                sink_findings.foreign_aborts(task.sink_id, ledger, others, claims, _claims_of(task, others))
            ),
            skewed=skewed,
            forgotten=forgotten,
            undecided=undecided,
        )
    )
    found_of_sink = list(sink_findings.findings(diagnoses))
    verdict.findings += (f for f in found_of_sink if f.anomaly is not Anomaly.HANGING)
    verdict.findings[:0] = (f for f in found_of_sink if f.anomaly is Anomaly.HANGING)  # the cause comes first
    if alone and later.owner is None and not later.decisions:
        verdict.unproven[NO_LOG] += 0 if progress.last_commit is None else progress.last_commit + 1
    elif task.checkpoint is not None:
        verdict.unproven[TORN] += len(progress.torn)
        if not any(f.anomaly is Anomaly.CHECKPOINT_REWOUND for f in found_of_sink):
            judge_balance(progress, soon, verdict)
    stands = {where: at for where, at in waiting.items() if not earlier or earlier.get(where) == at}
    balance = balance_of(ledger, found.marks, verdict.answers)
    unmarked = frozenset(verdict.unmarked)
    return _Reading(verdict.findings, verdict, ledger.read, stands, len(trail.denied), balance, unmarked, diagnoses)


def _is_part(transactional_id: str) -> bool:
    """Return whether it is an id of a part's transaction, and not of the commit log's."""
    return PartId.parse(transactional_id) is not None


def _held(hangs: Iterable[Hanging]) -> dict[tuple[str, int], int]:
    """Return, by partition, where readers are held back by a hanging transaction."""
    found: dict[tuple[str, int], int] = {}
    for h in hangs:
        where = h.topic, h.partition
        found[where] = min(h.start_offset, found.get(where, h.start_offset))
    return found


def _holders(admin: Admin, blocked: Sequence[BlockedPartition]) -> list[tuple[tuple[str, int], int, int]]:
    """Return partition, first offset and producer id of each transaction that is open where readers wait."""
    where = [(b.topic, b.partition) for b in blocked]
    return [((h.topic, h.partition), h.start_offset, h.producer_id) for h in open_on(admin, where)] if where else []


def _trail(task: _Task, admin: Admin, decisions: Sequence[Decision], ids: Iterable[int]) -> Trail:
    """Look for topics that neither a decision nor the caller names, and in which a producer of the sink wrote; raise
    UnknownTopic when the caller names one that does not exist.
    """
    read = {topic for d in decisions for topic in d.topics} | {*admin.topic_partitions(task.topics)}
    others = [topic for topic in admin.topics() if topic not in read and ANY_TOPIC.refusal(topic) is None]
    return trail_of(admin, ids, others)


def _committed(progress: Checkpoint, decisions: Sequence[Decision]) -> frozenset[int]:
    """Return the decided batches that Spark has committed."""
    last = progress.last_commit if progress.last_commit is not None else -1
    return frozenset(d.batch_id for d in decisions if d.query_id == progress.query_id and d.batch_id <= last)


def _published(task: _Task, admin: Admin, log: LogState) -> tuple[tuple[OffsetSkew, ...], dict[str, int]]:
    """Return how the consumer group contradicts the log; nothing where it may not be read: it is for lag tools."""
    last = log.decisions[-1] if log.decisions else None
    topics = sorted(sink_findings.input_of(last)) if last is not None else []
    try:
        found = published_offsets(admin, offsets_group(task.sink_id))
    except ExactlyOnceError:
        return (), {}
    if not found.offsets and not found.batches:  # never published, not to be seen, or expired
        return (), {}
    sizes = admin.sizes(topics) if topics else {}
    skewed = last is not None and bool(found.offsets and sink_findings.skewed([last], found, sizes))
    if not skewed and not sink_findings.forgotten(log, found):
        return (), {}
    now = read_log(task.connection, task.sink_id, task.budget_s, whole=True)  # a stream decides meanwhile
    skews: list[OffsetSkew] = []
    if skewed and last is not None:
        known = [(d.query_id, d.batch_id) for d in now.decisions]
        key = last.query_id, last.batch_id
        skews = sink_findings.skewed(now.decisions[known.index(key) if key in known else 0 :], found, sizes)
    return tuple(skews), sink_findings.forgotten(now, found)


def _hanging(task: _Task, decisions: Sequence[Decision]) -> list[Hanging]:
    topics = sorted({topic for d in decisions for topic in d.topics})
    return find_hanging(task.connection, topics, task.hanging_age_s, task.budget_s) if topics else []


def _claims_of(task: _Task, others: Mapping[int, str]) -> dict[str, int]:
    """Return when the sinks of these transactional ids last claimed, of those whose names begin like this one's."""
    parts = {PartId.parse(name) for name in others.values() if name.startswith(namespace(task.sink_id)[:-1])}
    found: dict[str, int] = {}
    for sink_id in {p.sink_id for p in parts if p is not None} - {task.sink_id}:
        owner = read_log(task.connection, sink_id, task.budget_s).owner
        if owner is not None:
            found[sink_id] = owner.claimed_ms
    return found
