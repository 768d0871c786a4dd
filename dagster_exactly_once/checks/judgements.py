"""The verdicts of the checks. Pure: facts in, a verdict out, with every number in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import shorten
from typing import Any

from dagster_exactly_once.declare.rejected import Letters
from dagster_exactly_once.names import RECOVERY_JOB, REPAIR_JOB
from dagster_exactly_once.resources.checkpoints import StreamProgress
from dagster_exactly_once.runs.failures import Diagnosis
from exactly_once.inspection.words import are, plural
from exactly_once.txn.coordinators import Description
from exactly_once.verify import Anomaly, Finding, Report
from exactly_once.verify.by_origin.comparison import RETENTION, OriginResult
from exactly_once.verify.by_origin.tally import FOREIGN

Metadata = dict[str, Any]

#: The finding names this many places for each fault.
EXAMPLES = 5

#: Of a reason in the sentence of a check; the table has all of it.
LONGEST_REASON = 200

#: Why a record that is in no output that readers see is not called lost.
HELD_BACK = "input records whose outputs are in the log, where readers are held back from them"

#: The way out where open transactions hold readers back.
_RECOVER = f"If no run is working on the sink, launch the job {RECOVERY_JOB}"


@dataclass(frozen=True)
class CheckVerdict:
    """The outcome of a check.

    Attributes
    ----------
    grave : bool
        Whether a failure means that the guarantee is broken or work has stopped (ERROR), or that a person should look
        (WARN).
    said : str
        The sample and the finding, for a person.
    """

    passed: bool
    said: str
    grave: bool = False
    metadata: Metadata = field(default_factory=dict)


@dataclass(frozen=True)
class Writer:
    """The writer of the batch in flight.

    Attributes
    ----------
    works : bool or None
        Whether somebody does; None when the process is on another host, so that nobody here can tell.
    said : str
        The run or the driver; of one that no longer works, how it ended and what happens next.
    failed : bool
        Whether it ended although nobody had asked it to.
    """

    works: bool | None
    said: str
    failed: bool = False


def not_evaluated(why: Diagnosis, grave: bool) -> CheckVerdict:
    """Say why a check could not be evaluated: ``grave`` when the reason itself needs a person."""
    metadata = {"evaluated": False, "code": why.code, "way_out": why.way_out}
    return CheckVerdict(False, f"Not evaluated: {why.headline}", grave, metadata)


#: Kinds of faults in the comparison of input and outputs. A torn batch is none: its records are lost or unseen.
_FAULTS = {Anomaly.LOST: "lost", Anomaly.UNSEEN: "unseen", Anomaly.DUPLICATE: "duplicated", Anomaly.PHANTOM: "invented"}

#: Output records that do not say where they came from.
_UNPLACED = "unplaced"


def no_duplicates_and_no_loss(found: OriginResult | None) -> CheckVerdict:
    """Judge whether each input record of the window appears once across the outputs; None before the first batch."""
    if found is None or found.window is None:
        return CheckVerdict(True, "The stream has committed no batch yet: there is nothing to compare.")
    counts, examples = _faults(found.findings)
    unseen, unproven = counts.pop("unseen"), {why: n for why, n in found.unproven.items() if why != RETENTION}
    cut = found.window.cut or ("older input was deleted by retention" if RETENTION in found.unproven else "")
    sample = (
        f"{found.by_origin['input']:,} input records in {found.window.offsets:,} offsets (batches "
        f"{' to '.join(map(str, found.window.batches))}) against {found.read:,} output records read back from the end"
        f"{f'; the window was cut: {cut}' if cut else ''}"
    )
    metadata: Metadata = {
        "sampled": sample,
        "input_records_compared": found.by_origin["input"],
        "input_offsets": found.window.offsets,
        "output_records_read": found.read,
        **counts,
        **({"window_cut": cut} if cut else {}),
    }
    if any(counts.values()):
        named = ", ".join(f"{count:,} {kind}" for kind, count in counts.items() if count)
        said = f"NOT exactly once: {named}, for example {examples[0]}. Sampled: {sample}."
        return CheckVerdict(False, said, True, {**metadata, "examples": examples})
    if unseen:
        unproven[HELD_BACK] = unseen
    if unproven:
        named = "; ".join(f"{n:,} {why}" for why, n in unproven.items())
        said = f"No duplicate was found, but loss could not be ruled out: {named}. Sampled: {sample}."
        return CheckVerdict(False, said, False, {**metadata, "unproven": list(unproven)})
    said = f"Every input record appears exactly once across the outputs. Sampled: {sample}."
    return CheckVerdict(True, said, False, metadata)


def _faults(findings: Sequence[Finding]) -> tuple[dict[str, int], list[str]]:
    """Return the number of records of each kind of fault, and examples of them."""
    counts, examples = dict.fromkeys([*_FAULTS.values(), _UNPLACED], 0), []
    for finding in (f for f in findings if f.anomaly in _FAULTS):
        kind = _UNPLACED if finding.what.startswith(FOREIGN) else _FAULTS[finding.anomaly]
        counts[kind] += finding.records
        if finding.anomaly is not Anomaly.UNSEEN:
            examples += [f"{kind}: {place}" for place in finding.places[:EXAMPLES]]
    return counts, examples


def no_old_open_transaction(under_way: Sequence[Description], now_ms: int, policy_s: float) -> CheckVerdict:
    """Judge, by the coordinators, whether one of the sinks' transactions has been open for longer than ``policy_s``."""
    ages = {d.transactional_id: max(0.0, (now_ms - d.started_ms) / 1000) for d in under_way if d.started_ms >= 0}
    old = [d for d in under_way if ages.get(d.transactional_id, 0.0) > policy_s]
    metadata = {
        "open_transactions": len(under_way),
        "oldest_age_s": round(max(ages.values(), default=0.0), 1),
        "policy_s": policy_s,
        "old": [f"{d.transactional_id} ({d.state}, {ages[d.transactional_id]:.0f} s)" for d in old],
    }
    if not old:
        count = len(under_way)
        said = (
            f"{plural(count, 'transaction')} {are(count)} under way on the sinks, none for longer than {policy_s:g} s."
        )
        return CheckVerdict(True, said, False, metadata)
    oldest = max(old, key=lambda d: ages[d.transactional_id])
    blocked = ", ".join(f"{t}-{p}" for t, p in oldest.partitions) or "no partition yet"
    said = (
        f"{plural(len(old), 'transaction')} {are(len(old))} under way for longer than {policy_s:g} s. The oldest, "
        f"{oldest.transactional_id}, has been open for {ages[oldest.transactional_id]:.0f} s of its "
        f"{oldest.timeout_ms / 1000:.0f} s, and holds readers back on {blocked}. {_RECOVER}."
    )
    return CheckVerdict(False, said, True, metadata)


@dataclass(frozen=True)
class Block:
    """A partition with a last stable offset below its high watermark. ``since_ms`` is the time stamp of the record at
    the last stable offset, None when that could not be read.
    """

    topic: str
    partition: int
    last_stable: int
    high: int
    since_ms: int | None

    def age_s(self, now_ms: int) -> float | None:
        """Return for how many seconds it has held readers back."""
        return None if self.since_ms is None else max(0.0, (now_ms - self.since_ms) / 1000)


def last_stable_is_high_watermark(
    blocks: Sequence[Block], partitions: int, now_ms: int, policy_s: float
) -> CheckVerdict:
    """Judge whether readers reach the end of every output partition, except for a batch younger than ``policy_s``."""
    old = [b for b in blocks if (age := b.age_s(now_ms)) is None or age > policy_s]
    shown = [
        f"{b.topic}-{b.partition}: {b.last_stable} of {b.high}"
        + ("" if (age := b.age_s(now_ms)) is None else f" for {age:.0f} s")
        for b in blocks
    ]
    metadata = {"partitions": partitions, "blocked_now": shown, "blocked_too_long": len(old), "policy_s": policy_s}
    if old:
        said = (
            f"Open transactions have held read_committed readers back for more than {policy_s:g} s on {len(old)} of "
            f"{plural(partitions, 'partition')} ({'; '.join(shown)}). {_RECOVER}."
        )
        return CheckVerdict(False, said, True, metadata)
    if blocks:
        said = (
            f"Open transactions hold readers back on {len(blocks)} of {plural(partitions, 'partition')}, none for more "
            f"than {policy_s:g} s."
        )
    else:
        said = f"Readers reach the end of all {partitions} partitions."
    return CheckVerdict(True, said, False, metadata)


def checkpoint_equals_commit_log(
    progress: StreamProgress, writer: Writer, now_ms: int, policy_s: float
) -> CheckVerdict:
    """Judge whether the checkpoint and the commit log agree; a young batch may be between the two, while somebody works
    on it or a person has ended the stream.
    """
    # a point in time is not a figure to plot; the sentence says how long ago it was
    metadata = {name: value for name, value in progress.as_metadata().items() if name != "batch_started_ms"}
    if progress.state in ("checkpoint lost", "foreign", "torn"):
        said = {
            "checkpoint lost": "The commit log holds decisions that the checkpoint does not know: the checkpoint was "
            "deleted, restored or rewound. The sink refuses to start; see EO-REWOUND in docs/errors.md",
            "foreign": "The sink and the checkpoint belong to different queries. The sink refuses to start; see "
            "EO-SINK-OWNED",
            "torn": f"The checkpoint has torn files, and the sink refuses to start (EO-CHECKPOINT): "
            f"{', '.join(progress.torn)}. Launch the job {REPAIR_JOB}, first as a dry run",
        }[progress.state]
        return CheckVerdict(False, f"{said}.", True, metadata)
    started = progress.batch_started_ms
    age = None if started is None else (now_ms - started) / 1000
    batch = progress.last_planned
    old = age is not None and age > policy_s
    if progress.state in ("in doubt", "in flight") and (old or writer.failed):
        since = f" It began {age:.0f} s ago." if age is not None else ""
        return CheckVerdict(False, f"{_between(progress, writer)}{since}", False, metadata)
    if progress.open_decisions and (age is None or age > policy_s):
        named = ", ".join(map(str, progress.open_decisions))
        said = (
            f"The commit log does not say that these decided batches are committed: {named}. The next start of the "
            f"stream commits them, and so does the job {RECOVERY_JOB}: launch one of the two."
        )
        return CheckVerdict(False, said, True, metadata)
    settled = {
        "unused": "Neither the checkpoint nor the commit log has a batch yet",
        "settled": f"The checkpoint and the commit log both end with batch {batch}",
    }
    if progress.state in settled:
        return CheckVerdict(True, f"{settled[progress.state]}.", False, metadata)
    return CheckVerdict(True, _between(progress, writer), False, metadata)


def _between(progress: StreamProgress, writer: Writer) -> str:
    """Say who works on the batch between checkpoint and commit log; else how that ended, and what happens next."""
    batch = f"Batch {progress.last_planned}"
    decided = progress.state == "in doubt"
    if writer.works:
        return (
            f"{batch} is {'decided and about to be marked by Spark' if decided else 'being written'} by {writer.said}."
        )
    stands = (
        "is decided, and Spark has not marked it" if decided else "is planned and not decided: nothing of it is visible"
    )
    if writer.works is None:
        return f"{batch} {stands}. This instance cannot tell whether {writer.said} still works on it."
    then = "The next start writes nothing of it again" if decided else "The next start writes it"
    return f"{batch} {stands}. No run is working on it: {writer.said}. {then}."


@dataclass(frozen=True)
class Rejections:
    """The records that a stream has rejected since the last evaluation, or its dead letters.

    ``count`` is the number of records; where they are too many to read (``exact`` is False), of their offsets, which
    transaction markers have too. ``reasons`` counts those that were read, ``ends`` is where the next look begins.
    """

    count: int
    exact: bool
    reasons: Counter[str]
    ends: Mapping[str, int]
    first: bool


def too_many_rejected(found: Rejections, declared: Letters) -> CheckVerdict:
    """Judge by the number of records whether a stream has rejected too many, or made too many dead letters."""
    metadata: Metadata = {declared.metadata: found.count}
    since, noun = "so far" if found.first else "since the last evaluation", declared.noun
    if not found.count:
        return CheckVerdict(True, f"The stream has {declared.did} no {noun} {since}.", False, metadata)
    counted = plural(found.count, noun) if found.exact else f"about {found.count:,} offsets' worth of {noun}s"
    said = f"The stream has {declared.did} {counted} {since}"
    if found.reasons:
        reason, most = found.reasons.most_common(1)[0]
        said += f"; most often ({most:,}): {shorten(reason, LONGEST_REASON, placeholder='…')}"
    grave = declared.error_above is not None and found.count > declared.error_above
    passed = not grave and (declared.warn_above is None or found.count <= declared.warn_above)
    return CheckVerdict(passed, f"{said}.", grave, metadata)


@dataclass(frozen=True)
class Waiting:
    """The notes of an earlier evaluation of the freshness: the stream's position, and since when input waits."""

    position: int
    since_ms: int


def verified(report: Report) -> CheckVerdict:
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
        return CheckVerdict(True, "The stream has decided no batch yet: there is nothing to prove.", False, metadata)
    which = f"{report.first_batch} to {report.last_batch}"
    if not report.clean:
        counts = ", ".join(f"{count:,} {name}" for name, count in report.counts.items())
        said = f"NOT exactly once: {counts}. First: {report.findings[0].what}. Checked {which}."
        return CheckVerdict(False, said, True, metadata)
    if not report.parts and unproven:
        said = f"No anomaly was found, but not one of the {unproven:,} parts of {which} could be proven"
        said += f": {removed:,} of their records are not in the output any more." if removed else "."
        return CheckVerdict(False, said, False, metadata)
    said = f"No anomaly: {report.batches:,} batches ({which}) are proven"
    said += f", {report.records:,} records in {report.parts:,} parts as decided"
    if report.by_origin:
        said += f"; {report.by_origin['input']:,} input records each have their output"
    others = balance.not_judged.total()
    said += f"; {unproven:,} other parts could not be proven" if unproven else ""
    said += f"; {others:,} records of others, or of older batches, were not judged." if others else "."
    return CheckVerdict(True, said, False, metadata)


def freshness(
    position: int | None,
    waiting: int,
    last_commit_ms: int | None,
    earlier: Waiting | None,
    now_ms: int,
    limit_s: float,
) -> CheckVerdict:
    """Judge whether input has waited for longer than ``limit_s`` without a commit. Without input, everything is fresh.

    ``position`` is the sum of the committed offsets; None before the first batch. The arrival of the waiting input is
    unknown, since its time stamps are event times. So the wait counts from the first evaluation that saw input waiting
    at this position, or from the last commit if that is later.
    """
    if position is None:
        return CheckVerdict(True, "The stream has committed no batch yet: nothing can be stale.")
    metadata: Metadata = {"position": position, "waiting_offsets": waiting, "limit_s": limit_s}
    if waiting == 0:
        return CheckVerdict(True, "All input is committed; an idle stream is fresh.", False, metadata)
    since = earlier.since_ms if earlier is not None and earlier.position == position else now_ms
    since = max(since, last_commit_ms or 0)
    waited_s = max(0.0, (now_ms - since) / 1000)
    metadata |= {"waiting_since_ms": since, "waited_s": round(waited_s, 1)}
    if waited_s > limit_s:
        said = (
            f"{waiting:,} offsets of input are waiting, and nothing has been committed for at least {waited_s:.0f} "
            "s. Start the stream, or read the log of its run."
        )
        return CheckVerdict(False, said, False, metadata)
    said = f"{waiting:,} offsets of input have been waiting for {waited_s:.0f} s so far."
    return CheckVerdict(True, said, False, metadata)


def waiting_of(metadata: Mapping[str, Any]) -> Waiting | None:
    """Return the notes in an earlier evaluation's metadata; None when no input was waiting then."""
    if metadata.get("waiting_since_ms") is None:
        return None
    return Waiting(int(metadata["position"]), int(metadata["waiting_since_ms"]))
