"""Recovery of a sink: inspect it, commit what is decided, abort what is not, and verify."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from exactly_once.commitlog.commit_log import read_log
from exactly_once.coordinator import recover as engine
from exactly_once.coordinator.recover import RecoveryReport
from exactly_once.errors import ExactlyOnceError, Fenced
from exactly_once.inspection.findings import Inspection
from exactly_once.inspection.sink import owner_of
from exactly_once.inspection.words import never_claimed, owner_sentence, plural
from exactly_once.protocol.loss import lost_parts
from exactly_once.protocol.part_state import PartState
from exactly_once.protocol.records import Decision
from exactly_once.tools.diagnosis import Diagnosis, SinkFacts, diagnose
from exactly_once.tools.diagnosis.facts import Standing
from exactly_once.tools.operation import tables
from exactly_once.tools.operation.model import (
    Operation,
    OperationContext,
    OperationJob,
    OperationOutcome,
    OperationStep,
    ResultTable,
    dry_run_parameter,
    fence_parameter,
    parameter,
    reason_parameter,
    sink_parameter,
    take_over_parameter,
)

#: Time for a driver that failed, or was fenced, to end its JVM; it needs seconds.
LEAVING_S = 15.0

#: The table of undecided parts that a recovery rolled back.
_NO_PARTS = ResultTable(("output", "part"))

_AT_REST = "Nothing of the sink is open any more. The next start of the stream takes the sink back."


class NotAtRest(ExactlyOnceError):
    """The recovery finished, but the sink is not at rest."""

    code = "EO-NOT-AT-REST"
    restart_heals = True
    default_safe = "Decided batches will be committed, and nothing else is visible to a read_committed reader"


@dataclass(frozen=True, kw_only=True)
class RecoveryParameters:
    """The parameters of a recovery: which sink it works on."""

    sink_id: str = sink_parameter("The stream whose sink to recover.", "sink")
    take_over: bool = take_over_parameter(
        "Also recover when a run of the stream is alive: that run is fenced (EO-FENCED), nothing is lost."
    )
    force: str = fence_parameter()
    dry_run: bool = dry_run_parameter(
        "Only inspect: show what a recovery would find, change nothing.",
        "--dry-run",
        flag_text="only show what a recovery would do",
    )
    reason: str = reason_parameter("; a sensor writes here what it saw")
    restart: bool = parameter(
        False,
        "Start the stream again: the sensor exactly_once_liveness does so when this run has succeeded.",
        form="restart",
    )


@dataclass(frozen=True)
class _Recovering:
    """A recovery under way. ``superseded``: a newer owner claimed the sink meanwhile, and continues the work."""

    before: Inspection
    report: RecoveryReport
    superseded: bool = False

    def outcome(self, sentence: str, **facts: Any) -> OperationOutcome:
        return OperationOutcome(self.report.sink_id, sentence, facts, value=self)


def _examine(context: OperationContext, p: RecoveryParameters) -> OperationOutcome:
    inspection = context.inspect(p.sink_id, readers=True)
    if inspection.owner is None and inspection.quiet and not context.may_be_unused:
        raise never_claimed(p.sink_id)
    numbers, shown = counts(inspection), tables.inspected(inspection)
    diagnoses = diagnose(SinkFacts(inspection))
    sentence = _sentence(inspection, diagnoses)
    lost = {d.name: n for d in inspection.decided if (n := d.count(PartState.LOST))}
    return OperationOutcome(
        p.sink_id,
        sentence,
        {**numbers, "owner": owner_sentence(inspection), **shown},
        document={
            "would_complete": [d.name for d in inspection.decided if d.name not in lost and not d.count("unknown")],
            "lost_parts": lost,
            "would_abort": [t.transactional_id for t in inspection.open if t.verdict == "undecided"],
            **inspection.as_json(),
            "diagnoses": [d.as_json() for d in diagnoses],
        },
        diagnoses=diagnoses,
        remedy="" if inspection.open or inspection.decided else "The recovery would only claim the sink.",
        refusal=context.refusal(p.sink_id, inspection.owner, p.force),
        audit={
            "recovery_found": " ".join([sentence, *(d.text for d in diagnoses)]),
            **_nonzero("before", numbers),
            **shown,
        },
        value=inspection,
    )


def _complete(context: OperationContext, p: RecoveryParameters, examined: OperationOutcome) -> OperationOutcome:
    log = read_log(context.connection, p.sink_id, context.budget_s)
    context.admit(p.sink_id, owner_of(log, context.alive_of), p.force)  # a driver may have started since
    claim = engine.claim_sink(context.connection, p.sink_id, context.work_budget_s, context.operator)
    work = _Recovering(examined.value, RecoveryReport(p.sink_id, claim))
    if claim is None:
        if not context.may_be_unused:
            raise never_claimed(p.sink_id)
        return work.outcome(f"Sink {p.sink_id} was never used: nothing to do.", completed=tables.completed([]))
    try:
        found = engine.complete_decided(
            context.connection, p.sink_id, claim.token, context.work_budget_s, context.others
        )
    except Fenced:
        return _superseded(work)
    except ExactlyOnceError:
        _sweep_anyway(context, work)
        raise
    for loss in found.losses:
        context.warn(str(lost_parts(p.sink_id, loss.decision, loss.handles)))
    done, lost = found.completed, [loss.decision for loss in found.losses]
    sentence = f"Completed {_batches(done)}." if done else "" if lost else "Nothing decided was open."
    work = replace(work, report=replace(work.report, completed=done, to_rewrite=lost))
    return work.outcome(sentence, claim=claim.token, completed_batches=len(done), completed=tables.completed(done))


def _sweep(context: OperationContext, p: RecoveryParameters, before: OperationOutcome) -> OperationOutcome:
    work: _Recovering = before.value
    if work.report.claim is None or work.superseded:
        return work.outcome("", aborted=_NO_PARTS)
    end = time.monotonic() + (LEAVING_S if p.take_over or p.force else 0.0)
    try:
        work = _swept(context, work)
        # a driver that was fenced a moment ago opens transactions for its last batch until it meets the fence
        while time.monotonic() < end and (
            context.busy(p.sink_id) or engine.verify(context.connection, p.sink_id, context.budget_s).left_open
        ):
            time.sleep(1.0)
            work = _swept(context, work)
    except Fenced:
        return _superseded(work)
    aborted = _aborted(work)
    n = plural(len(aborted), "undecided transaction")
    return work.outcome(
        f"Aborted {n}." if aborted else "Nothing undecided was left.",
        aborted_transactions=len(aborted),
        aborted=replace(_NO_PARTS, rows=aborted),
    )


def _verify(context: OperationContext, p: RecoveryParameters, before: OperationOutcome) -> OperationOutcome:
    work: _Recovering = before.value
    verification = engine.verify(context.connection, p.sink_id, context.budget_s)
    after = context.inspect(p.sink_id)
    report = replace(work.report, left_open=verification.left_open, blocked=verification.blocked)
    awaited = {_batch(d) for d in report.to_rewrite}
    at_rest = not (verification.left_open or any(_batch(d) not in awaited for d in verification.open_decisions))
    sentence = f"{report.sentence}{' A newer owner took the sink and continues.' if work.superseded else ''}"
    wrong = left(context, report, after)
    return OperationOutcome(
        p.sink_id,
        sentence,
        {"at_rest": at_rest, "left_open": tables.described(verification.left_open), **tables.inspected(after)},
        document={
            **report.as_metadata(),
            "clean": report.clean,
            "forced": p.force or None,
            "diagnoses": [d.as_json() for d in wrong],
        },
        remedy="" if wrong else _AT_REST,
        diagnoses=wrong,
        ok=at_rest and report.clean and not (report.to_rewrite or work.superseded),
        failure=None if at_rest or work.superseded else _not_at_rest(report),
        audit={
            "recovery_sentence": sentence,
            "recovery_claim": report.claim.token if report.claim else 0,
            "recovery_completed_batches": len(report.completed),
            "recovery_aborted_transactions": len(_aborted(work)),
            "recovery_at_rest": at_rest,
            **_nonzero("before", counts(work.before)),
            **_nonzero("after", counts(after)),
        },
        value=report,
    )


RECOVER = Operation(
    RecoveryParameters,
    _examine,
    (
        OperationStep(
            "complete",
            "Claims the sink, which fences a live driver, and commits decided batches not yet proven committed.",
            _complete,
        ),
        OperationStep(
            "sweep",
            "Aborts the undecided transactions of earlier owners: the stream writes their rows again.",
            _sweep,
        ),
        OperationStep(
            "verify",
            "Verifies that the sink has nothing open and no reader waits for it, and writes the audit trail.",
            _verify,
        ),
    ),
    verb="recover",
    does="commit decided batches, abort undecided transactions, and verify",
    takes_sink=True,
    job=OperationJob(
        "exactly_once_recovery",
        "Recovers a sink: inspects it, commits decided batches, aborts undecided transactions, verifies that no "
        "reader waits, and requests a restart of the stream if one is wanted. Checks again before each step; "
        "safe to run twice, even at the same time. Leaves a live stream alone, unless take_over is set. A dry "
        "run unless dry_run is switched off; a sensor switches it off.",
        first="inspect",
        first_text="Lists what is decided, prepared, undecided or lost, by which owner, since when, and which readers "
        "it blocks. Refuses to continue while a live process works on the sink, unless take_over is set; a dry run "
        "ends here.",
        examined="inspected",
    ),
)


def counts(found: Inspection) -> dict[str, int]:
    return {
        "open": len(found.open),
        "undecided": sum(t.verdict == "undecided" for t in found.open),
        "decided_not_proven": len(found.decided),
        "lost_parts": sum(d.count(PartState.LOST) for d in found.decided),
        "blocked_partitions": len(found.blocked),
        "waiting_offsets": sum(b.waiting for b in found.blocked),
    }


def left(context: OperationContext, report: RecoveryReport, after: Inspection | None = None) -> tuple[Diagnosis, ...]:
    """Return what is wrong with a sink after its recovery; without its inspection in ``after``, inspect it now."""
    if report.clean and not report.to_rewrite:
        return ()
    found = replace(after or context.inspect(report.sink_id), owner=None)
    standing = tuple(Standing(b) for b in found.blocked if (b.topic, b.partition) in report.blocked)
    return diagnose(SinkFacts(found, standing=standing))


def _superseded(work: _Recovering) -> OperationOutcome:
    sentence = "A newer owner claimed the sink after this recovery, and continues with what is left."
    return replace(work, superseded=True).outcome(sentence, superseded=True)


def _sweep_anyway(context: OperationContext, work: _Recovering) -> None:
    """Abort undecided transactions although a batch cannot be completed: readers wait for these too."""
    try:
        aborted = plural(len(_aborted(_swept(context, work))), "undecided transaction")
        context.warn(f"A batch could not be completed. Aborted {aborted}.")
    except ExactlyOnceError as error:
        context.warn(f"Could not abort the undecided transactions either: {error}")


def _swept(context: OperationContext, work: _Recovering) -> _Recovering:
    """Roll back what is undecided, and add it to the report."""
    assert work.report.claim is not None
    sink_id, token = work.report.sink_id, work.report.claim.token
    more = engine.sweep_undecided(context.connection, sink_id, token, context.work_budget_s, context.others)
    before = work.report.rolled_back
    both = {name: [*before.get(name, []), *more.get(name, [])] for name in (before | more)}
    return replace(work, report=replace(work.report, rolled_back=both))


def _aborted(work: _Recovering) -> list[tuple[str, str]]:
    """Return participant and name of every part that was rolled back."""
    return [(participant, name) for participant, names in work.report.rolled_back.items() for name in names]


def _nonzero(when: str, numbers: Mapping[str, int]) -> dict[str, int]:
    """Return the counts that say something, by name, for the audit trail."""
    return {f"{when}_{name}": count for name, count in numbers.items() if count}


def _batch(d: Decision) -> str:
    return d.write_id or str(d.batch_id)


def _batches(decisions: Sequence[Decision]) -> str:
    return f"batch{'es' if len(decisions) > 1 else ''} {', '.join(_batch(d) for d in decisions)}"


def _sentence(found: Inspection, wrong: Sequence[Diagnosis]) -> str:
    if found.owner is None:
        return f"Sink {found.sink_id} was never used."
    codes = ", ".join(dict.fromkeys(d.code for d in wrong))
    state = f"is not at rest ({codes})" if codes else "has nothing open" if found.quiet else "has work under way"
    return f"Sink {found.sink_id} {state}. Owner: {owner_sentence(found)}"


def _not_at_rest(report: RecoveryReport) -> NotAtRest:
    ids = ", ".join(d.transactional_id for d in report.left_open) or "decided batches"
    return NotAtRest(
        f"sink {report.sink_id} still has open transactions after the recovery: {ids}",
        "A task of the old driver is probably still running; launch the job exactly_once_recovery again",
    )
