"""The verdicts of the checks. Pure: facts in, a verdict out, with every number in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from textwrap import shorten
from typing import Any

from dagster_exactly_once.declare.complete import in_ranges
from dagster_exactly_once.declare.rejected import SideTopic
from dagster_exactly_once.recovery.windows import Windows
from dagster_exactly_once.resources.checkpoints import StreamProgress
from dagster_exactly_once.runs.failures import Failure
from exactly_once.inspection.words import are, duration, plural
from exactly_once.tools.diagnosis import Diagnosis, Severity, SinkFacts, Thresholds, diagnose, health
from exactly_once.tools.diagnosis.registry import SYMPTOMS
from exactly_once.tools.verify import Anomaly, Finding, Report
from exactly_once.tools.verify.by_origin.comparison import RETENTION
from exactly_once.tools.verify.by_origin.ledger import ComparisonResult
from exactly_once.tools.verify.by_origin.tally import FOREIGN

Metadata = dict[str, Any]

#: The number of places that a finding names for each fault.
EXAMPLES = 5

#: The most characters of a reason in the sentence of a check; the table has all of it.
LONGEST_REASON = 200

#: The words for a record that is in no output that readers see, and yet is not lost.
HELD_BACK = "input records whose outputs are in the log, where readers are held back from them"

#: The codes of the checks' own findings; of a symptom or of an error, a check has that one's.
PASSED = "CHECK-PASSED"
NOT_EXACTLY_ONCE = "CHECK-NOT-EXACTLY-ONCE"
NOT_PROVEN = "CHECK-NOT-PROVEN"
REJECTED = "CHECK-REJECTED"
WINDOWS_OPEN = "EO-WARN-WINDOWS"

#: The prefix of the codes of what is wrong with a checkpoint.
_OF_CHECKPOINT = "HEALTH-CHECKPOINT-"


def verdict(code: str, severity: Severity, sentence: str, remedy: str = "", **evidence: Any) -> Diagnosis:
    """Make the verdict of a check; its subject is the asset that the check is on."""
    return Diagnosis(code, severity, "", sentence.rstrip("."), remedy, None, evidence)


def passed(sentence: str, **evidence: Any) -> Diagnosis:
    """Make the verdict of a check that passes."""
    return verdict(PASSED, Severity.OK, sentence, **evidence)


def not_evaluated(why: Failure, grave: bool) -> Diagnosis:
    """Say why a check could not be evaluated: ``grave`` when the reason itself needs a person."""
    severity = Severity.ERROR if grave else Severity.WARN
    remedy = "" if why.remedy.rstrip(". ") in why.sentence else why.remedy.rstrip(". ")
    return verdict(why.code, severity, f"Not evaluated: {why.headline}", remedy, evaluated=False, way_out=why.remedy)


#: Kinds of faults in the comparison of input and outputs. A torn batch is none: its records are lost or unseen.
_FAULTS = {Anomaly.LOST: "lost", Anomaly.UNSEEN: "unseen", Anomaly.DUPLICATE: "duplicated", Anomaly.PHANTOM: "invented"}

#: Output records that do not say where they came from.
_UNPLACED = "unplaced"


def no_duplicates_and_no_loss(comparison: ComparisonResult | None) -> Diagnosis:
    """Judge whether each input record of the window appears once across the outputs; None before the first batch."""
    window = comparison.window if comparison is not None else None
    if comparison is None or window is None:
        return passed("The stream has committed no batch yet: there is nothing to compare")
    counts, examples = _faults(comparison.findings)
    unseen, unproven = counts.pop("unseen"), {why: n for why, n in comparison.unproven.items() if why != RETENTION}
    cut = window.cut or ("older input was deleted by retention" if RETENTION in comparison.unproven else "")
    sample = (
        f"{comparison.counts['input']:,} input records in {window.offsets:,} offsets (batches "
        f"{' to '.join(map(str, window.batches))}) against {comparison.read:,} output records read back from the end"
        f"{f'; the window was cut: {cut}' if cut else ''}"
    )
    metadata: Metadata = {
        "sampled": sample,
        "input_records_compared": comparison.counts["input"],
        "input_offsets": window.offsets,
        "output_records_read": comparison.read,
        **counts,
        **({"window_cut": cut} if cut else {}),
    }
    if any(counts.values()):
        named = ", ".join(f"{count:,} {kind}" for kind, count in counts.items() if count)
        sentence = f"NOT exactly once: {named}, for example {examples[0]}. Sampled: {sample}"
        return verdict(NOT_EXACTLY_ONCE, Severity.ERROR, sentence, **metadata, examples=examples)
    if unseen:
        unproven[HELD_BACK] = unseen
    if unproven:
        named = "; ".join(f"{n:,} {why}" for why, n in unproven.items())
        sentence = f"No duplicate was found, but loss could not be ruled out: {named}. Sampled: {sample}"
        return verdict(NOT_PROVEN, Severity.WARN, sentence, **metadata, unproven=list(unproven))
    return passed(f"Every input record appears exactly once across the outputs. Sampled: {sample}", **metadata)


def _faults(findings: Sequence[Finding]) -> tuple[dict[str, int], list[str]]:
    """Return the number of records of each kind of fault, and examples of them."""
    counts, examples = dict.fromkeys([*_FAULTS.values(), _UNPLACED], 0), []
    for finding in (f for f in findings if f.anomaly in _FAULTS):
        kind = _UNPLACED if finding.what.startswith(FOREIGN) else _FAULTS[finding.anomaly]
        counts[kind] += finding.records
        if finding.anomaly is not Anomaly.UNSEEN:
            examples += [f"{kind}: {place}" for place in finding.places[:EXAMPLES]]
    return counts, examples


def no_old_open_transaction(found: Sequence[SinkFacts], limits: Thresholds) -> Diagnosis:
    """Judge whether a transaction is open for longer than any batch takes, or one that nobody works on."""
    open_now = [t for facts in found for t in facts.sink.open]
    evidence: Metadata = {
        "open_transactions": len(open_now),
        "oldest_age_s": round(max((t.age_s for t in open_now), default=0.0), 1),
        "policy_s": limits.stale_after_s,
    }
    wrong = [
        d
        for facts in found
        for d in diagnose(facts, limits)
        if d.code == "HEALTH-STALE-TRANSACTIONS" or (d.code == "HEALTH-IN-DOUBT" and facts.sink.open)
    ]
    if wrong:
        return replace(wrong[0], evidence={**evidence, **wrong[0].evidence})
    count = len(open_now)
    return passed(f"{plural(count, 'transaction')} {are(count)} open on the sinks, each of a batch at work", **evidence)


def last_stable_is_high_watermark(facts: SinkFacts, partitions: int, limits: Thresholds) -> Diagnosis:
    """Judge whether readers reach the end of every output partition, but for those that a young batch holds back."""
    blocked = [f"{s.blocked.topic}-{s.blocked.partition}: {s.blocked.last_stable}" for s in facts.standing]
    evidence: Metadata = {"partitions": partitions, "blocked_now": blocked, "policy_s": limits.stale_after_s}
    for found in SYMPTOMS["HEALTH-READERS-WAIT"].find(facts, limits):
        return replace(found, evidence={**evidence, **found.evidence})
    if blocked:
        held = f"Open transactions hold readers back on {len(blocked)} of {plural(partitions, 'partition')}"
        return passed(f"{held}, none for longer than {duration(limits.stale_after_s)}", **evidence)
    return passed(f"Readers reach the end of all {partitions} partitions", **evidence)


def checkpoint_equals_commit_log(
    facts: SinkFacts, progress: StreamProgress, unfinished: bool, limits: Thresholds
) -> Diagnosis:
    """Judge whether the checkpoint and the commit log agree; a young batch may be between the two.

    It is ``unfinished`` when it is older than the policy, or its run ended although nobody had asked it to.
    """
    # a point in time is not a figure to plot
    known = {name: value for name, value in progress.as_metadata().items() if name != "batch_started_ms"}
    evidence: Metadata = {**known, "progress": progress.state}
    for found in sorted(diagnose(facts, limits), key=lambda d: not d.code.startswith(_OF_CHECKPOINT)):
        if found.code.startswith((_OF_CHECKPOINT, "HEALTH-IN-DOUBT")):
            return replace(found, evidence={**found.evidence, **evidence})
    batch = progress.last_planned
    if progress.state in ("in doubt", "in flight"):
        if unfinished:
            found = health(facts, limits)
            return replace(found, severity=Severity.WARN, evidence={**found.evidence, **evidence})
        decided = "decided and not marked by Spark" if progress.state == "in doubt" else "planned and not decided"
        return passed(f"Batch {batch} is {decided}", **evidence)
    settled = f"The checkpoint and the commit log both end with batch {batch}"
    return passed("No batch is planned yet" if batch is None else settled, **evidence)


@dataclass(frozen=True)
class Rejections:
    """The records that a stream has rejected, or its dead letters, that wait for a person.

    ``count`` is the number of those that nobody has sent again or acknowledged, ``total`` of all that the topic holds;
    where they are too many to read (``exact`` is False), of their offsets, which transaction markers have too.
    ``reasons`` counts those that were read, ``acknowledged`` are offsets by partition.
    """

    count: int
    total: int
    exact: bool = True
    reasons: Counter[str] = field(default_factory=Counter)
    acknowledged: Mapping[str, int] = field(default_factory=dict)


def too_many_rejected(rejections: Rejections, declared: SideTopic, remedy: str = "") -> Diagnosis:
    """Judge by the number of those that wait whether a stream has rejected too many, or made too many dead letters."""
    metadata: Metadata = {declared.metadata: rejections.count, declared.metadata_total: rejections.total}
    noun, of = declared.noun, f", of {rejections.total:,} in the topic" if rejections.total != rejections.count else ""
    if not rejections.count:
        return passed(f"No {noun} waits to be sent again or acknowledged{of}", **metadata)
    counted = (
        plural(rejections.count, noun) if rejections.exact else f"about {rejections.count:,} offsets' worth of {noun}s"
    )
    waits = "waits" if rejections.count == 1 else "wait"
    sentence = f"{counted[0].upper()}{counted[1:]} {waits} to be sent again or acknowledged{of}"
    if rejections.reasons:
        reason, most = rejections.reasons.most_common(1)[0]
        sentence += f"; most often ({most:,}): {shorten(reason, LONGEST_REASON, placeholder='…')}"
    grave = declared.error_above is not None and rejections.count > declared.error_above
    if not grave and (declared.warn_above is None or rejections.count <= declared.warn_above):
        return passed(sentence, **metadata)
    return verdict(REJECTED, Severity.ERROR if grave else Severity.WARN, sentence, remedy, **metadata)


def verified(report: Report) -> Diagnosis:
    """Judge what ``verify`` says: no anomaly, and something was proven if there was anything to prove."""
    unproven, removed, balance = sum(report.unproven.values()), sum(report.removed.values()), report.balance.total
    metadata: Metadata = {
        "batches_proven": report.batches,
        "parts_proven": report.parts,
        "records_proven": report.records,
        "parts_unproven": unproven,
        "records_right": balance.right,
        "records_wrong": balance.wrong,
        "records_not_judged": balance.not_judged.total(),
        "records_not_proven": balance.not_proven.total(),
        "records_removed": removed,
        "topics_not_searched": report.not_searched,
        "first_batch": report.first_batch,
        "last_batch": report.last_batch,
        "output_records_read": report.read,
        "took_s": round(report.took_s, 1),
        **{f"{name.replace(' ', '_')}_by_origin": count for name, count in report.by_origin.items()},
        **{f"anomalies_{name.replace(' ', '_')}": count for name, count in report.counts.items()},
    }
    if report.nothing_yet and report.clean:
        return passed("The stream has decided no batch yet: there is nothing to prove", **metadata)
    which = f"{report.first_batch} to {report.last_batch}"
    if not report.clean:
        counts = ", ".join(f"{count:,} {name}" for name, count in report.counts.items())
        sentence = f"NOT exactly once: {counts}. First: {report.findings[0].what}. Checked {which}"
        return verdict(NOT_EXACTLY_ONCE, Severity.ERROR, sentence, **metadata)
    if not report.parts and unproven:
        sentence = f"No anomaly was found, but not one of {plural(unproven, 'part')} of {which} could be proven"
        sentence += f": {removed:,} of their records are not in the output any more" if removed else ""
        return verdict(NOT_PROVEN, Severity.WARN, sentence, **metadata)
    sentence = f"No anomaly: {plural(report.batches, 'batch')} ({which}) {are(report.batches)} proven"
    sentence += f", {plural(report.records, 'record')} in {plural(report.parts, 'part')} as decided"
    if report.by_origin:
        inputs = report.by_origin["input"]
        sentence += f"; {plural(inputs, 'input record')} {'has its' if inputs == 1 else 'each have their'} output"
    others = balance.not_judged.total()
    sentence += f"; {plural(unproven, 'other part')} could not be proven" if unproven else ""
    sentence += f"; not judged: {plural(others, 'record')} of others, or of older batches" if others else ""
    return passed(sentence, **metadata)


def freshness(
    facts: SinkFacts, position: int | None, last_commit_ms: int | None, earlier: Metadata, limit_s: float
) -> Diagnosis:
    """Judge whether input has waited for longer than ``limit_s`` without a commit. Without input, everything is fresh.

    ``position`` is the sum of the committed offsets; None before the first batch. The arrival of the waiting input is
    unknown, since its time stamps are event times. So the wait counts from the first evaluation that saw input waiting
    at this position, or from the last commit if that is later; ``earlier`` is the metadata of the last one.
    """
    if position is None or facts.stream is None:
        return passed("The stream has committed no batch yet: nothing can be stale")
    now_ms, waiting = facts.sink.checked_ms, facts.stream.lag
    metadata: Metadata = {"position": position, "waiting_offsets": waiting, "limit_s": limit_s}
    if waiting == 0:
        return passed("All input is committed; an idle stream is fresh", **metadata)
    noted = earlier.get("waiting_since_ms") if earlier.get("position") == position else None
    since = now_ms if noted is None else int(noted)
    since = max(since, last_commit_ms or 0)
    waited_s = max(0.0, (now_ms - since) / 1000)
    metadata |= {"waiting_since_ms": since, "waited_s": round(waited_s, 1)}
    if waited_s <= limit_s:
        return passed(f"{plural(waiting, 'offset')} of input waited for {duration(waited_s)} so far", **metadata)
    state = health(replace(facts, stream=replace(facts.stream, waited_s=waited_s)), Thresholds(stall_after_s=limit_s))
    return replace(state, severity=Severity.WARN, evidence={**state.evidence, **metadata})


def closed_up_to_now(windows: Windows, job: str) -> Diagnosis:
    """Judge whether windows stay open that no run comes back to; ``job`` closes them. Pure."""
    every = windows.declared.every
    if not windows.reported:
        return passed(f"No {every} is closed yet")
    oldest, missing = min(windows.reported), windows.left_open()
    if not missing:
        closed = f"Each {every} from {windows.noted or oldest} to {max(windows.reported)} is closed."
        unknown = f"Nobody noted where the events begin: if earlier, the job {job} closes what is missing."
        return passed(closed if windows.noted else f"{closed} {unknown}")
    certain = bool(windows.noted) or missing[-1] > oldest
    evidence = "" if certain else ", and by its time stamps the input has records from before the oldest closed one"
    sentence = (
        f"{plural(len(missing), every)} {are(len(missing))} open behind newer ones that are closed, and no run of the "
        f"stream comes back to them: {in_ranges(windows.declared, missing)}{evidence}"
    )
    remedy, severity = f"Run the job {job}, first as a dry run", Severity.ERROR if certain else Severity.WARN
    return verdict(WINDOWS_OPEN, severity, sentence, remedy, open_windows=len(missing), first_open=missing[0])
