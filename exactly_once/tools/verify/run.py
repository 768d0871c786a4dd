"""The steps of a verification."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from exactly_once.checkpoint import Checkpoint, begins_of, read_checkpoint, read_text
from exactly_once.commitlog.commit_log import read_log
from exactly_once.deadline import Deadline, now_ms
from exactly_once.errors import CheckpointUnusable, ExactlyOnceError, InvalidOption
from exactly_once.inspection.findings import decided_at, title
from exactly_once.inspection.hanging import attribute
from exactly_once.inspection.sink import inspect_sink
from exactly_once.kafka.admin import Admin, Partition
from exactly_once.kafka.connection import Connection
from exactly_once.kafka.groups import published_offsets
from exactly_once.participant import Participant
from exactly_once.protocol.checkpoint_text import digest_of
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.names import PartId, check_sink_id, commit_log_id, namespace, offsets_group
from exactly_once.protocol.records import Decision
from exactly_once.protocol.topics import ANY_TOPIC
from exactly_once.tools.diagnosis import Diagnosis, SinkFacts, Thresholds, diagnose
from exactly_once.tools.diagnosis.facts import HangingName, OffsetSkew, Undecided
from exactly_once.tools.diagnosis.symptoms import under_way
from exactly_once.tools.verify import sink_findings
from exactly_once.tools.verify.anomalies import Anomaly
from exactly_once.tools.verify.by_log.balance import judge_balance, judge_input, judge_log
from exactly_once.tools.verify.by_log.judge import Verdict, latest
from exactly_once.tools.verify.by_log.ledger import balance_of
from exactly_once.tools.verify.by_log.orphans import from_the_first, judge_without_decisions
from exactly_once.tools.verify.by_log.reading import extent, read_differing, read_output
from exactly_once.tools.verify.by_origin.against import Version, compare_versions
from exactly_once.tools.verify.by_origin.comparison import ReadsElsewhere, compare_origins
from exactly_once.tools.verify.by_origin.ledger import ComparisonResult
from exactly_once.tools.verify.expected import Positions, expected_input, flat, input_of
from exactly_once.tools.verify.outputs import judge_outputs, read_again, read_outputs
from exactly_once.tools.verify.parameters import VerifyParameters
from exactly_once.tools.verify.report import OnProgress, Report, limited
from exactly_once.txn.coordinators import ids_of, list_transactions
from exactly_once.txn.leaders import Trail, find_hanging, open_on, trail_of

#: Reasons why something is not proven. NO_LOG is known only to a caller who names the outputs.
NO_LOG = "batches of the checkpoint that are in no commit log"
SILENT = "topics that no decision names, where a leader does not answer whether the sink wrote to them"
UNMARKED = "batches that the log does not mark as completed, although their parts are visible"
TORN = "torn files of the checkpoint"
UNEXPLAINED = "offsets that are in the output and that this report does not explain"

#: Pause between two readings.
_PAUSE_S = 2.0


def verify(
    connection: Connection,
    parameters: VerifyParameters,
    outputs: Sequence[Participant[Any]] = (),
    on_progress: OnProgress = lambda progress: None,
    elsewhere: ReadsElsewhere | None = None,
) -> Report:
    """Compare output, commit log, checkpoint and brokers of a sink.

    Parameters
    ----------
    outputs : sequence of Participant
        The sink's outputs beside Kafka. Parts in outputs that are not given are unproven.
    elsewhere : callable, optional
        Reads the records for the comparison by origin; by default, this process does, as it always does for
        ``against``.

    Raises BrokerUnreachable, NotAuthorized, UnknownTopic, CommitLogDamaged, CommitLogBlocked, CheckpointUnusable or
    InvalidOption.
    """
    began, p, question = time.monotonic(), parameters, parameters.question
    if elsewhere is not None and question is None:
        raise InvalidOption("Spark compares by origin, and no origin is given", "Add --origin, or leave Spark out")
    against = check_sink_id(p.against) if p.against else ""
    task = _Task(connection, check_sink_id(p.sink_id), p, outputs, on_progress)
    progress = task.progress()
    log = task.log()
    decisions, since_ms = _newest(log, p.batches)
    since_ms = 0 if from_the_first(decisions, log) else since_ms
    reading = _read(task, decisions, since_ms, {} if p.settle_s >= _PAUSE_S else None)
    first, settled = reading, Deadline(p.settle_s)  # it begins now: a reading may take longer
    while any(f.anomaly.may_pass for f in reading.report.findings) or reading.waiting or reading.unmarked:
        if settled.left < _PAUSE_S:
            break
        time.sleep(_PAUSE_S)
        reading = _read(task, decisions, since_ms, first.waiting)
        reading = replace(reading, unmarked=reading.unmarked & first.unmarked)
    compared = beside = ComparisonResult()
    how: Any = {"settle_s": p.settle_s, "budget_s": p.budget_s, "on_progress": on_progress}
    if question is not None and (log.decisions or progress.last_commit is not None):  # else there is no batch yet
        worked_off = partial(expected_input, connection, task.sink_id, p.checkpoint, p.inputs, p.budget_s, p.last)
        compared = compare_origins(connection, p.topics, question, worked_off, elsewhere=elsewhere, **how)
    if question is not None and against:
        old, new = Version(against), Version(task.sink_id, tuple(p.topics), p.checkpoint)
        beside = compare_versions(connection, old, new, question.origin, inputs=p.inputs, last=p.last, **how)
    report = reading.report
    unproven = Counter(report.unproven)
    unproven[UNMARKED] += len(reading.unmarked)
    unproven[UNEXPLAINED] += sum(abs(t.offsets - t.explained) for t in report.balance.topics.values())
    findings, counts = limited([*report.findings, *compared.findings, *beside.findings])
    return replace(
        report,
        findings=findings,
        counts=counts,
        unproven={**+unproven, **compared.unproven, **beside.unproven},
        by_origin=compared.counts,
        first_batch=title(decisions[0]) if decisions else "",
        last_batch=title(decisions[-1]) if decisions else "",
        read=report.read + compared.read + beside.read,
        took_s=time.monotonic() - began,
        checked_ms=now_ms(),
        claimed=log.owner is not None,
        window=str(compared.window or ""),
        against_sink=beside.sink_id,
        against=beside.counts,
    )


@dataclass(frozen=True)
class _Task:
    connection: Connection
    sink_id: str
    asked: VerifyParameters
    outputs: Sequence[Participant[Any]] = ()
    on_progress: OnProgress = lambda progress: None

    def log(self) -> LogState:
        return read_log(self.connection, self.sink_id, self.asked.budget_s, whole=True)

    def progress(self) -> Checkpoint:
        return read_checkpoint(self.asked.checkpoint) if self.asked.checkpoint is not None else Checkpoint("")

    def offsets_digest(self, progress: Checkpoint, log: LogState) -> str:
        """Return the digest of the checkpoint's ``offsets/N`` of the last decided batch; "" when it has none."""
        last = log.last_decision(progress.query_id) if progress.query_id else None
        if self.asked.checkpoint is None or last is None:
            return ""
        try:
            return digest_of(read_text(self.asked.checkpoint, f"offsets/{last.batch_id}"))
        except CheckpointUnusable:
            return ""

    def began(self, progress: Checkpoint) -> dict[str, Positions]:
        """Return where the checkpoint's query began to read Kafka, as far as the checkpoint says."""
        if self.asked.checkpoint is not None and progress.query_id is not None:
            with suppress(CheckpointUnusable):
                if first := flat(begins_of(self.asked.checkpoint, 0)):
                    return {progress.query_id: first}
        return {}


@dataclass(frozen=True)
class _Reading:
    """The result of one read.

    ``waiting`` is the last stable offset by partition on which readers wait, as they did at the first read;
    ``unmarked`` are the batches that are there and lack their completed mark.
    """

    report: Report
    waiting: Mapping[Partition, int] = field(default_factory=dict)
    unmarked: frozenset[tuple[str, int]] = frozenset()


def _newest(log: LogState, count: int) -> tuple[list[Decision], int]:
    """Return the newest decisions, oldest first, and a time before their first record, by the brokers' clock."""
    decisions = list(log.decisions)[-count:]
    times = [decided_at(d, log) for d in log.decisions]
    before = times[: len(times) - len(decisions)]
    began = [d.began_ms for d in decisions if d.began_ms]
    return decisions, before[-1] if before else min([*began, *times[-len(decisions) :]], default=0)


class _Fetched:
    """All that one reading asks for: the output, then the log again (``later``), so that whatever was visible in the
    output is decided in it. ``decisions`` are those that the output is read for, ``soon`` is the log before that.
    """

    def __init__(self, task: _Task, decisions: Sequence[Decision], since_ms: int):
        sink_id, asked, budget_s = task.sink_id, task.asked, task.asked.budget_s
        self.task, self.decisions = task, decisions
        with Admin(task.connection, budget_s) as admin:
            self.listed = list_transactions(admin, namespace(sink_id), ())
            self.soon = soon = task.log()
            self.progress = task.progress()
            self.planned = task.offsets_digest(self.progress, soon)  # before Spark deletes the file: it keeps a hundred
            self.ids = ids = {t.producer_id: t.transactional_id for t in self.listed}
            ids |= {h.producer_id: h.transactional_id for d in (*decisions, *soon.decisions) for h in d.transactions}
            in_log = soon.decisions or decisions
            names = (t.transactional_id for t in self.listed if t.state == "CompleteCommit")
            self.committed = sorted(name for name in names if PartId.parse(name))
            search = bool(in_log or self.committed)
            parts = [i for i, name in ids.items() if name != commit_log_id(sink_id)]  # it also writes the progress
            self.trail = _trail(task, admin.renew(budget_s), in_log, parts) if search else Trail()
            topics = (*asked.topics, *self.trail.found) if search else ()
            self.marks, output = extent(admin.renew(budget_s), in_log, topics)
            self.ledger = ledger = read_output(admin, self.marks, decisions, since_ms, ids, budget_s, task.on_progress)
            self._seen = read_outputs(sink_id, decisions, task.outputs)
            outputs = sorted({topic for d in in_log for topic in d.topics})
            self.hangs = find_hanging(task.connection, outputs, asked.hanging_age_s, budget_s) if outputs else []
            self.later = task.log()
            # a long reading may outlast the decisions of what was written when it began
            self.latest = latest(decisions, self.later)
            read_differing(admin.renew(budget_s), self.marks, self.latest, ledger)
            self.inspection = inspect_sink(task.connection, sink_id, budget_s)
            self.skewed, self.forgotten = _published(task, admin.renew(budget_s), self.later)
            self.others = ids_of(admin, {writer[0] for writer in (*ledger.spans, *ledger.strangers)} - set(ids))
            self.waiting = {(b.topic, b.partition): b.last_stable for b in self.inspection.blocked}
            self._holders = open_on(admin, list(self.waiting)) if self.waiting else []
        last_first = sorted(self.hangs, key=lambda h: h.start_offset, reverse=True)
        held = {(h.topic, h.partition): h.start_offset for h in last_first}
        self._output = replace(output, held=held, committed_by_spark=_committed(self.progress, decisions))

    @property
    def by_origin_alone(self) -> bool:
        """True when only the origins can prove the output: there is no commit log."""
        asked, later = self.task.asked, self.later
        return asked.origin is not None and bool(asked.topics) and later.owner is None and not later.decisions

    def verdict(self) -> tuple[Verdict, Undecided | None]:
        """Judge every output by the log; and what was committed where the log holds no decision."""
        task, later, also = self.task, self.later, (*self.decisions, *self.soon.decisions)
        verdict = judge_log(self.latest, later, self.ledger, self.ids, self._output, also, self.others)
        undecided = None
        if not (also or later.decisions):
            records, places = judge_without_decisions(self.ledger, self.ids, verdict)
            undecided = Undecided(tuple(self.committed), records, places) if self.committed else None
        judge_input(later.decisions, task.began(self.progress), verdict)
        verdict.unproven[SILENT] += len(self.trail.silent)
        seen = read_again(task.sink_id, later.decisions, task.outputs, self._seen)
        judge_outputs(self.latest, later, seen, verdict)
        return verdict, undecided

    def diagnoses(self, earlier: Mapping[Partition, int] | None, undecided: Undecided | None) -> tuple[Diagnosis, ...]:
        """Return what is wrong with the sink itself; ``earlier`` is as in :func:`_read`."""
        task, later, progress = self.task, self.later, self.progress
        young = under_way(SinkFacts(self.inspection), Thresholds())
        of_others = [*self.hangs, *(h for h in self._holders if h.producer_id in young)]
        explained = {((h.topic, h.partition), h.start_offset) for h in of_others}
        claims = [later.owner.claimed_ms] if later.owner else []
        others, its_claims = self.others, _claims_of(task, self.others)
        # before the first decision, a checkpoint that is not there contradicts nothing
        judged = task.asked.checkpoint is not None and (bool(self.soon.decisions) or progress.query_id is not None)
        facts = SinkFacts(
            replace(self.inspection, log=self.soon),
            hanging=tuple(HangingName.of(attribute(h, {task.sink_id: later}), task.sink_id) for h in self.hangs),
            standing=sink_findings.standing(
                self.inspection.blocked, self.waiting if earlier is None else earlier, explained
            ),
            checkpoint=progress if judged and not self.by_origin_alone else None,
            planned=self.planned,
            after=later,
            leaked=sink_findings.leaked(task.sink_id, self.listed),
            foreign_aborts=sink_findings.foreign_aborts(task.sink_id, self.ledger, others, claims, its_claims),
            skewed=self.skewed,
            forgotten=self.forgotten,
            undecided=undecided,
        )
        return diagnose(facts)


def _read(
    task: _Task, decisions: Sequence[Decision], since_ms: int, earlier: Mapping[Partition, int] | None
) -> _Reading:
    """Read all, and judge it.

    ``earlier`` is where readers waited at the reading before; None: this reading is the only one, so each reader that
    waits counts as stalled.
    """
    its = _Fetched(task, decisions, since_ms)
    verdict, undecided = its.verdict()
    diagnoses = its.diagnoses(earlier, undecided)
    of_sink = list(sink_findings.findings(diagnoses))
    causes = [f for f in of_sink if f.anomaly is Anomaly.HANGING]
    verdict.findings = [*causes, *verdict.findings, *(f for f in of_sink if f not in causes)]
    if its.by_origin_alone:
        last = its.progress.last_commit
        verdict.unproven[NO_LOG] += 0 if last is None else last + 1
    elif task.asked.checkpoint is not None:
        verdict.unproven[TORN] += len(its.progress.torn)
        if not any(f.anomaly is Anomaly.CHECKPOINT_REWOUND for f in of_sink):
            judge_balance(its.progress, its.soon, verdict)
    stands = {where: at for where, at in its.waiting.items() if not earlier or earlier.get(where) == at}
    report = Report(
        task.sink_id,
        tuple(verdict.findings),
        verdict.batches,
        verdict.parts,
        verdict.records,
        verdict.unproven,
        read=its.ledger.read,
        not_searched=len(its.trail.denied),
        balance=balance_of(its.ledger, its.marks, verdict.answers),
        removed=dict(+verdict.removed),
        diagnoses=diagnoses,
    )
    return _Reading(report, stands, frozenset(verdict.unmarked))


def _trail(task: _Task, admin: Admin, decisions: Sequence[Decision], ids: Iterable[int]) -> Trail:
    """Look for topics that neither a decision nor the caller names, and in which a producer of the sink wrote; raise
    UnknownTopic when the caller names one that does not exist.
    """
    read = {topic for d in decisions for topic in d.topics} | {*admin.topic_partitions(task.asked.topics)}
    others = [topic for topic in admin.topics() if topic not in read and ANY_TOPIC.refusal(topic) is None]
    return trail_of(admin, ids, others)


def _committed(progress: Checkpoint, decisions: Sequence[Decision]) -> frozenset[int]:
    """Return the decided batches that Spark has committed."""
    last = progress.last_commit if progress.last_commit is not None else -1
    return frozenset(d.batch_id for d in decisions if d.query_id == progress.query_id and d.batch_id <= last)


def _published(task: _Task, admin: Admin, log: LogState) -> tuple[tuple[OffsetSkew, ...], dict[str, int]]:
    """Return how the consumer group contradicts the log; nothing where it may not be read: it is for lag tools."""
    last = log.decisions[-1] if log.decisions else None
    topics = sorted({topic for topic, _ in input_of(last)}) if last is not None else []
    try:
        published = published_offsets(admin, offsets_group(task.sink_id), settled=True)
    except ExactlyOnceError:
        return (), {}
    if not published.offsets and not published.batches:  # never published, not to be seen, or expired
        return (), {}
    sizes = admin.sizes(topics) if topics else {}
    skewed = last is not None and bool(published.offsets and sink_findings.skewed([last], published, sizes))
    if not skewed and not sink_findings.forgotten(log, published):
        return (), {}
    now = task.log()  # a stream decides meanwhile
    skews: list[OffsetSkew] = []
    if skewed and last is not None:
        known = [(d.query_id, d.batch_id) for d in now.decisions]
        key = last.query_id, last.batch_id
        skews = sink_findings.skewed(now.decisions[known.index(key) if key in known else 0 :], published, sizes)
    return tuple(skews), sink_findings.forgotten(now, published)


def _claims_of(task: _Task, ids: Mapping[int, str]) -> dict[str, int]:
    """Return when the sinks of these transactional ids last claimed, of those whose names begin like this one's."""
    parts = {PartId.parse(name) for name in ids.values() if name.startswith(namespace(task.sink_id)[:-1])}
    others = {p.sink_id for p in parts if p is not None} - {task.sink_id}
    owners = {sink_id: read_log(task.connection, sink_id, task.asked.budget_s).owner for sink_id in others}
    return {sink_id: owner.claimed_ms for sink_id, owner in owners.items() if owner is not None}
