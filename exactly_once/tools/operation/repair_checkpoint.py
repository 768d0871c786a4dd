"""The repair of a checkpoint with torn files, or with a batch that Spark should plan again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from exactly_once.commitlog.commit_log import CommitLog, read_log
from exactly_once.coordinator.recover import claim_sink
from exactly_once.deadline import Deadline
from exactly_once.errors import CheckpointUnusable, Fenced
from exactly_once.failpoints import reach
from exactly_once.inspection.sink import owner_of
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.names import check_sink_id
from exactly_once.tools.operation.model import (
    Operation,
    OperationContext,
    OperationJob,
    OperationOutcome,
    OperationStep,
    ResultTable,
    fence_parameter,
    parameter,
    reason_parameter,
    sink_parameter,
    take_over_parameter,
)
from exactly_once.tools.operation.repair.applying import Repair, Work
from exactly_once.tools.operation.repair.files import read_files
from exactly_once.tools.operation.repair.verdicts import Action, FileFinding, judge_files
from exactly_once.tools.operation.rules import Refused


@dataclass(frozen=True, kw_only=True)
class RepairParameters:
    """The parameters of ``exactly_once_checkpoint_repair``: which checkpoint it works on."""

    sink_id: str = sink_parameter(
        "The stream whose checkpoint to repair.", "--sink", metavar="S", flag_text="the sink of the stream"
    )
    checkpoint: str = parameter(
        "",
        "Checkpoint location; empty: the location for which the sink was last claimed.",
        "location",
        metavar="LOCATION",
        flag_text="a path, or a URI (file, hdfs, s3, gs, abfs)",
        form="checkpoint",
        rarely=True,
    )
    dry_run: bool = parameter(
        True,
        "Only show what is torn and how to repair it; change nothing.",
        "--apply",
        flag_text="make the changes, and keep a copy of every changed file",
        form="dry_run",
    )
    plan_anew: bool = parameter(
        False,
        "Also make Spark plan the batch in flight again, for use when a batch takes too long (EO-TOO-LONG). Lower "
        "max_offsets_per_trigger for the next start. Refused if the batch is decided.",
        "--plan-anew",
        flag_text="also make Spark plan the batch in flight again, unless it is decided; for use after EO-TOO-LONG",
        form="plan_anew",
        rarely=True,
    )
    write_commit: bool = parameter(
        False,
        "Also write commits/N of a committed batch in flight, whose input is gone (SPARK-INPUT-LOST).",
        "--write-commit",
        form="write_commit",
        rarely=True,
    )
    consequence: str | None = parameter(
        None,
        "For plan_anew without dry_run: its consequence, typed out exactly as the dry run prints it.",
        form="consequence",
        form_default="",
        rarely=True,
    )
    force: str = fence_parameter()
    take_over: bool = take_over_parameter(
        "Also repair when a driver of the stream is alive, or may be: that driver is fenced (EO-FENCED)."
    )
    reason: str = reason_parameter()


def _examine(context: OperationContext, p: RepairParameters) -> OperationOutcome:
    log = read_log(context.connection, check_sink_id(p.sink_id), context.budget_s)
    repair = _judged(log, p)
    refusal: Refused | None = None
    if repair.to_do:
        owner = owner_of(log, context.alive_of)
        refusal = _not_typed(p, consequence(repair)) or context.refusal(p.sink_id, owner, p.force)
    outcome = _outcome(repair, consequence(repair) if p.plan_anew else "")
    return replace(outcome, to_do=bool(repair.to_do), refusal=refusal, failure=_unusable(repair))


def _put_right(context: OperationContext, p: RepairParameters, before: OperationOutcome) -> OperationOutcome:
    """Judge again, by the log up to the claim and the files as they are then; repair all of it, or nothing.

    Raises Fenced when another process claims the sink meanwhile: the next repair makes the rest.
    """
    deadline = Deadline(context.work_budget_s)
    log = read_log(context.connection, p.sink_id, context.budget_s)
    if not (repair := _judged(log, p)).to_do:
        return _done(repair)
    context.admit(p.sink_id, owner_of(log, context.alive_of), p.force)
    claim = claim_sink(context.connection, p.sink_id, deadline.left, context.operator)
    assert claim is not None  # a log that can judge a checkpoint has an owner
    commit_log = CommitLog(context.connection, p.sink_id)
    try:
        if not (repair := _judged(commit_log.own(claim.token, deadline), p)).to_do:
            return _done(repair)
        work = Work(repair, claim.token, context.by, claim.operator)
        work.keep()
        reach("repair-kept")
        for finding in work.findings:
            _check_owned(commit_log.read(Deadline(max(1.0, deadline.left))), p.sink_id, claim.token)
            work.change(finding)
            reach("repair-changed")
        work.record(done=True)
    finally:
        commit_log.close()
    return _done(replace(repair, applied=True, claim=claim.token, kept_in=work.folder))


REPAIR = Operation(
    RepairParameters,
    _examine,
    (
        OperationStep(
            "put_right",
            "Claims the sink, examines the checkpoint again, keeps a copy of each changed file below "
            "<checkpoint>/_repairs, and makes the repair. The next start of the stream takes the sink back and "
            "continues.",
            _put_right,
        ),
    ),
    verb="checkpoint repair",
    does="show how to repair torn files, by the commit log",
    takes_sink=True,
    job=OperationJob(
        "exactly_once_checkpoint_repair",
        "Repairs a checkpoint with torn files (after a full disk or a power failure), as far as the commit log "
        "allows; with plan_anew, also makes Spark plan a batch again that takes too long. A dry run unless dry_run "
        "is switched off; repairs everything or nothing; keeps a copy of every changed file. Safe to run twice.",
        first="examine",
        first_text="Finds what is torn in the checkpoint, and what the commit log allows to do about it. Refuses to "
        "continue while a live process works on the sink, unless take_over is set; a dry run ends here.",
        passed="torn",
    ),
)


def consequence(repair: Repair) -> str:
    """Return the phrase that a person must type out before Spark plans a batch anew."""
    removed = (f.name for f in repair.findings if f.action is Action.REMOVE)
    batch = next((n.rpartition("/")[2] for n in removed if n.startswith("offsets/") and not n.endswith(".crc")), "")
    return f"plan batch {batch} of {repair.sink_id} anew" if batch else ""


def _not_typed(p: RepairParameters, wanted: str) -> Refused | None:
    """Refuse to forget a plan, where the front asks a person to type out what that means."""
    if p.consequence is None or not (p.plan_anew and wanted) or " ".join(p.consequence.split()) == wanted:
        return None
    return Refused(f"plan_anew makes Spark forget its plan: {wanted}", f"Set consequence to: {wanted}")


def _unusable(repair: Repair) -> CheckpointUnusable | None:
    if not repair.refused:
        return None
    return CheckpointUnusable(
        f"the checkpoint {repair.location} cannot be repaired: {'; '.join(_action(f) for f in repair.refused)}",
        "Do what this message says of each file, then launch the job exactly_once_checkpoint_repair again",
        safe="Nothing was changed",
    )


def _judged(log: LogState, p: RepairParameters) -> Repair:
    judged = judge_files(read_files(p.checkpoint), log, p.sink_id, p.plan_anew, p.write_commit)
    return Repair(p.sink_id, p.checkpoint, judged)


def _check_owned(log: LogState, sink_id: str, token: int) -> None:
    if log.owner is None or log.owner.token != token:
        who = log.owner.title if log.owner else "another process"
        raise Fenced(
            f"{who} has taken sink {sink_id!r} while its checkpoint was being repaired",
            "Stop the stream and run the repair again: the changes already made are kept",
            safe="The copies are kept, and each change made is safe on its own",
        )


def _outcome(repair: Repair, typed: str = "") -> OperationOutcome:
    """Return what examination and repair have in common."""
    rows = [(f.name or "the checkpoint", f.action.value, f.why, str(len(f.also))) for f in repair.findings]
    facts: dict[str, Any] = {
        "checkpoint": repair.location,
        "whole": repair.whole,
        "findings": ResultTable(("file", "action", "why", "files_with_it"), rows),
        **({"consequence": typed} if typed else {}),
    }
    act = "Do what is said of each refused file, then run this command again." if repair.refused else ""
    return OperationOutcome(
        repair.sink_id, _sentence(repair), facts, repair.as_json(), remedy=act, ok=repair.whole, value=repair
    )


def _done(repair: Repair) -> OperationOutcome:
    outcome = _outcome(repair)
    outcome = replace(outcome, document={"dry_run": False, **outcome.document, "refused": None, "force": None})
    if not repair.applied:
        return outcome
    made = {"claim": repair.claim, "kept_in": f"{repair.location}/{repair.kept_in}"}
    then = "Start the stream: it takes the sink back and continues."
    return replace(outcome, facts={**outcome.facts, **made}, remedy=then)


def _sentence(repair: Repair) -> str:
    if not repair.findings:
        return f"Checkpoint {repair.location}: nothing is torn."
    done = "done" if repair.applied else "refused" if repair.refused else "to do" if repair.to_do else "nothing to do"
    return f"Checkpoint {repair.location}, {done}: {'; '.join(_action(f) for f in repair.findings)}."


def _action(finding: FileFinding) -> str:
    return f"{finding.name or 'the whole checkpoint'}: {finding.action.value}, {finding.why}"
