"""The job ``exactly_once_checkpoint_repair``: repairs torn files of a checkpoint as the commit log allows."""

from dataclasses import dataclass
from typing import Any

import dagster as dg

from dagster_exactly_once.declare.config import RepairConfig
from dagster_exactly_once.names import REPAIR_JOB, REPAIR_OP
from dagster_exactly_once.recovery.audited import JobFinding, first_step, passed_on
from dagster_exactly_once.recovery.steps import inspected, owner_answers, refuse_when_busy
from dagster_exactly_once.recovery.work import Audit, SinkRegistry
from dagster_exactly_once.resources.location import checkpoint_of
from dagster_exactly_once.resources.transactions import TransactionAdmin
from dagster_exactly_once.runs.failures import classified
from dagster_exactly_once.runs.operator import alive_of, operator_of
from dagster_exactly_once.runs.process import tag_run
from dagster_exactly_once.tables import table
from exactly_once.commitlog.commit_log import read_log
from exactly_once.errors import CheckpointUnusable
from exactly_once.inspection.sink import owner_of
from exactly_once.operation import repair as engine
from exactly_once.operation.repair import Action, Repair
from exactly_once.operation.rules import Refused, check_owner


@dataclass(frozen=True)
class Torn:
    """The task of a repair."""

    sink_id: str
    location: str
    plan_anew: bool
    write_commit: bool
    take_over: bool
    audit: Audit


def examine_op(registry: SinkRegistry) -> dg.OpDefinition:
    """Make the first step."""
    return first_step(
        registry,
        RepairConfig,
        _examine,
        op=REPAIR_OP,
        trail=("checkpoint_repair", "repair"),
        found=("examined", passed_on(dict, "The checkpoint as it was found.")),
        task=("torn", passed_on(Torn, "The repair to make; no output on a dry run.", required=False)),
        resources=("transactions", "kafka", "checkpoints"),
        description=(
            "Finds what is torn in the checkpoint, and what the commit log allows to do about it. Refuses to continue "
            "while a live process works on the sink, unless take_over is set; a dry run ends here."
        ),
    )


def _examine(context: dg.OpExecutionContext, config: RepairConfig, sink_id: str) -> JobFinding:
    tag_run(context.instance, context.run_id, sink_id)
    transactions: TransactionAdmin = context.resources.transactions
    connection, budget_s = transactions.connection(), transactions.budget_s
    if not config.dry_run:
        sink = inspected(context, transactions, sink_id)
        owner_answers(context, transactions, sink_id, sink, config.take_over, config.fence)
    kafka, checkpoints = context.resources.kafka, context.resources.checkpoints
    location = config.checkpoint or checkpoint_of(connection, sink_id, kafka, checkpoints)
    found = engine.examine(connection, sink_id, location, config.plan_anew, budget_s, config.write_commit)

    def task(audit: Audit) -> Torn | None:
        _check(found, config)
        if not found.to_do:
            return None
        return Torn(sink_id, location, config.plan_anew, config.write_commit, config.take_over, audit)

    return JobFinding(_sentence(found), found.as_json(), _metadata(found, config.plan_anew), task)


@dg.op(
    description=(
        "Claims the sink, examines the checkpoint again, keeps a copy of each changed file below "
        "<checkpoint>/_repairs, and makes the repair. The next start of the stream takes the sink back and continues."
    )
)
def put_right(context: dg.OpExecutionContext, torn: Torn, transactions: TransactionAdmin) -> None:
    connection = transactions.connection()
    with classified():
        if not torn.take_over:
            refuse_when_busy(context, torn.sink_id)  # a stream may have been launched since
        force = _phrase(context, transactions, torn)
        done = engine.repair(
            connection,
            torn.sink_id,
            torn.location,
            plan_anew=torn.plan_anew,
            write_commit=torn.write_commit,
            force=force,
            by=f"{torn.audit.by}, run {context.run_id} of {REPAIR_JOB}: {torn.audit.reason}",
            budget_s=transactions.recovery_budget_s,
            operator=operator_of(context.instance, context.run_id),
            alive_of=alive_of(context.instance),
        )
    metadata = {**_metadata(done), "claim": done.claim, "kept_in": f"{done.location}/{done.kept_in}"}
    torn.audit.ended(context, _sentence(done), metadata)
    context.add_output_metadata(metadata)


def repair_job(registry: SinkRegistry) -> dg.JobDefinition:
    """Make the job that repairs the checkpoint of any sink."""
    examine = examine_op(registry)

    @dg.job(
        name=REPAIR_JOB,
        executor_def=dg.in_process_executor,
        tags={"dagster/max_retries": "0"},
        description=(
            "Repairs a checkpoint with torn files (after a full disk or a power failure), as far as the commit log "
            "allows; with plan_anew, also makes Spark plan a batch again that takes too long. A dry run unless dry_run "
            "is switched off; repairs everything or nothing; keeps a copy of every changed file. Safe to run twice."
        ),
    )
    def checkpoint_repair() -> None:
        _, torn = examine()
        put_right(torn)

    return checkpoint_repair


def consequence(found: Repair) -> str:
    """Return the phrase that a person must type out before Spark plans a batch anew."""
    removed = (f.name for f in found.findings if f.action is Action.REMOVE)
    batch = next((n.rpartition("/")[2] for n in removed if n.startswith("offsets/") and not n.endswith(".crc")), "")
    return f"plan batch {batch} of {found.sink_id} anew" if batch else ""


def _check(found: Repair, config: RepairConfig) -> None:
    """Stop if a person must act first."""
    if found.refused:
        raise CheckpointUnusable(
            f"the checkpoint {found.location} cannot be repaired: {'; '.join(_said(f) for f in found.refused)}",
            f"Do what this message says of each file, then launch the job {REPAIR_JOB} again",
            safe="Nothing was changed",
        )
    wanted = consequence(found)
    if config.plan_anew and wanted and " ".join(config.consequence.split()) != wanted:
        raise Refused(f"plan_anew makes Spark forget its plan: {wanted}", f"Set consequence to: {wanted}")


def _phrase(context: dg.OpExecutionContext, transactions: TransactionAdmin, torn: Torn) -> str | None:
    """Return, with take_over, the phrase that overrules the refusal to fence a driver: a person consented before."""
    log = read_log(transactions.connection(), torn.sink_id, transactions.budget_s)
    owner = owner_of(log, alive_of(context.instance))
    try:
        check_owner(torn.sink_id, owner)
    except Refused as refused:
        return refused.phrase if torn.take_over else None
    return None


def _metadata(found: Repair, plan_anew: bool = False) -> dict[str, Any]:
    rows = [(f.name or "-", f.action.value, f.why, str(len(f.also))) for f in found.findings]
    metadata: dict[str, Any] = {
        "checkpoint": found.location,
        "whole": found.whole,
        "sentence": _sentence(found),
        "findings": table(("file", "action", "why", "files_with_it"), rows),
    }
    if plan_anew and consequence(found):
        metadata["consequence"] = consequence(found)
    return metadata


def _sentence(found: Repair) -> str:
    if not found.findings:
        return f"Checkpoint {found.location}: nothing is torn."
    done = "done" if found.applied else "refused" if found.refused else "to do" if found.to_do else "nothing to do"
    return f"Checkpoint {found.location}, {done}: {'; '.join(_said(f) for f in found.findings)}."


def _said(finding: engine.FileFinding) -> str:
    return f"{finding.name or 'the whole checkpoint'}: {finding.action.value}, {finding.why}"
