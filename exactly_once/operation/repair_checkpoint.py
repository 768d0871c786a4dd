"""The repair of a checkpoint with torn files, or with a batch that Spark should plan again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from exactly_once.commitlog.commit_log import read_log
from exactly_once.errors import CheckpointUnusable
from exactly_once.inspection.sink import owner_of
from exactly_once.operation import repair as engine
from exactly_once.operation.model import (
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
)
from exactly_once.operation.repair import Action, FileFinding, Repair
from exactly_once.operation.rules import Refused, phrase_of
from exactly_once.protocol.names import check_sink_id


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
    take_over: bool = parameter(
        False,
        "Also repair when a driver of the stream is alive, or may be: that driver is fenced (EO-FENCED).",
        form="take_over",
        rarely=True,
    )
    reason: str = reason_parameter()


def _examine(context: OperationContext, p: RepairParameters) -> OperationOutcome:
    sink_id, budget_s = check_sink_id(p.sink_id), context.budget_s
    found = engine.examine(context.connection, sink_id, p.checkpoint, p.plan_anew, budget_s, p.write_commit)
    refusal: Refused | None = None
    if found.to_do:
        owner = owner_of(read_log(context.connection, sink_id, budget_s), context.alive_of)
        refusal = _not_typed(p, consequence(found)) or context.refusal(sink_id, owner, p.force)
    outcome = _outcome(found, consequence(found) if p.plan_anew else "")
    return OperationOutcome(
        **{**outcome, "to_do": bool(found.to_do)}, refusal=refusal, failure=_unusable(found) if found.refused else None
    )


def _put_right(context: OperationContext, p: RepairParameters, before: OperationOutcome) -> OperationOutcome:
    owner = owner_of(read_log(context.connection, p.sink_id, context.budget_s), context.alive_of)
    if before.to_do:
        context.admit(p.sink_id, owner, p.force)
    done = engine.repair(
        context.connection,
        p.sink_id,
        p.checkpoint,
        plan_anew=p.plan_anew,
        write_commit=p.write_commit,
        force=phrase_of(p.sink_id, owner),
        by=context.by,
        budget_s=context.work_budget_s,
        operator=context.operator,
        alive_of=context.alive_of,
    )
    outcome = _outcome(done)
    if done.applied:
        outcome["facts"] |= {"claim": done.claim, "kept_in": f"{done.location}/{done.kept_in}"}
        outcome["remedy"] = "Start the stream: it takes the sink back and continues."
    outcome["document"] = {"dry_run": False, **done.as_json(), "refused": None, "force": None}
    return OperationOutcome(**outcome)


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
        stage="checkpoint_repair",
        prefix="repair",
    ),
)


def consequence(found: Repair) -> str:
    """Return the phrase that a person must type out before Spark plans a batch anew."""
    removed = (f.name for f in found.findings if f.action is Action.REMOVE)
    batch = next((n.rpartition("/")[2] for n in removed if n.startswith("offsets/") and not n.endswith(".crc")), "")
    return f"plan batch {batch} of {found.sink_id} anew" if batch else ""


def _not_typed(p: RepairParameters, wanted: str) -> Refused | None:
    """Refuse to forget a plan, where the front asks a person to type out what that means."""
    if p.consequence is None or not (p.plan_anew and wanted) or " ".join(p.consequence.split()) == wanted:
        return None
    return Refused(f"plan_anew makes Spark forget its plan: {wanted}", f"Set consequence to: {wanted}")


def _unusable(found: Repair) -> CheckpointUnusable:
    return CheckpointUnusable(
        f"the checkpoint {found.location} cannot be repaired: {'; '.join(_action(f) for f in found.refused)}",
        "Do what this message says of each file, then launch the job exactly_once_checkpoint_repair again",
        safe="Nothing was changed",
    )


def _outcome(found: Repair, typed: str = "") -> dict[str, Any]:
    """Return the fields of an outcome that examination and repair have in common."""
    rows = [(f.name or "the checkpoint", f.action.value, f.why, str(len(f.also))) for f in found.findings]
    facts: dict[str, Any] = {
        "checkpoint": found.location,
        "whole": found.whole,
        "findings": ResultTable(("file", "action", "why", "files_with_it"), rows),
    }
    if typed:
        facts["consequence"] = typed
    act = "Do what is said of each refused file, then run this command again." if found.refused else ""
    return {
        "subject": found.sink_id,
        "sentence": _sentence(found),
        "facts": facts,
        "document": found.as_json(),
        "remedy": act,
        "ok": found.whole,
    }


def _sentence(found: Repair) -> str:
    if not found.findings:
        return f"Checkpoint {found.location}: nothing is torn."
    done = "done" if found.applied else "refused" if found.refused else "to do" if found.to_do else "nothing to do"
    return f"Checkpoint {found.location}, {done}: {'; '.join(_action(f) for f in found.findings)}."


def _action(finding: FileFinding) -> str:
    return f"{finding.name or 'the whole checkpoint'}: {finding.action.value}, {finding.why}"
