"""Refusals to fence: a job leaves a run or a driver that works alone, unless a person takes over."""

from __future__ import annotations

import time

import dagster as dg

from dagster_exactly_once.names import RECOVERY_JOB, REPAIR_JOB
from dagster_exactly_once.resources.transactions import TransactionAdmin
from dagster_exactly_once.runs.location import location_of
from dagster_exactly_once.runs.operator import alive_of, frozen, is_ours
from dagster_exactly_once.runs.runs import Run, runs_on
from exactly_once.errors import ExactlyOnceError
from exactly_once.inspection.findings import Inspection, Owner
from exactly_once.inspection.sink import inspect_sink
from exactly_once.tools.diagnosis.stream_symptoms import held_by_another
from exactly_once.tools.operation import recover
from exactly_once.tools.operation.rules import check_owner, refusal_of


class SinkBusy(ExactlyOnceError):
    """A live process works on the sink."""

    code = "EO-SINK-BUSY"
    restart_heals = True
    default_safe = "Nothing was changed"


class SinkOperated(ExactlyOnceError):
    """Somebody else operates the driver that holds the sink."""

    code = "EO-SINK-OPERATED"
    default_safe = "Nothing was changed"


def consented(sink_id: str, owner: Owner, fence: str, field: str) -> None:
    """Raise SinkOperated unless a person typed out what fencing the owner does; ``field`` takes that phrase."""
    if refused := refusal_of(check_owner, sink_id, owner, fence or None):
        raise SinkOperated(
            f"HEALTH-OPERATED-BY-ANOTHER {sink_id}: {held_by_another(f'the {owner.claim.process}')}",
            f"Stop the {owner.claim.process} first. To fence it anyway, launch with {field} set to: {refused.phrase}",
        )


def refuse_when_busy(context: dg.OpExecutionContext, sink_id: str) -> None:
    """Stop while a run other than a recovery is alive. Two recoveries at once are safe: the later one continues."""
    for run in runs_at_work(context, sink_id):
        if run.frozen:
            why = frozen(f"run {run.run_id}", run.frozen, sink_id)
            holds = f"run {run.run_id} of {run.job} holds sink {sink_id}"
            raise SinkBusy(f"{holds}. {why.code}: {why.sentence}", why.remedy)
        raise SinkBusy(
            f"Run {run.run_id} of {run.job} (Python process {run.pid} on {run.host}) works on sink {sink_id}",
            f"Terminate run {run.name} of {run.job}, then launch the job {RECOVERY_JOB} again; or launch it with "
            "take_over, which stops that run with EO-FENCED",
        )


def runs_at_work(context: dg.OpExecutionContext, sink_id: str) -> list[Run]:
    """Return the runs on the sink, except recoveries and repairs, that may be alive."""
    harmless = (RECOVERY_JOB, REPAIR_JOB)
    runs = runs_on(context.instance, sink_id, location_of(context.run))
    return [r for r in runs if r.run_id != context.run_id and r.job not in harmless and r.alive is not False]


def owner_answers(
    context: dg.OpExecutionContext, transactions: TransactionAdmin, sink_id: str, take_over: bool, fence: str
) -> None:
    """Make sure that the sink may be claimed: its owner is gone, or a person takes it over.

    ``take_over`` alone fences a run of this code location; the driver of anybody else needs the typed consequence too.
    """
    if not take_over:
        refuse_when_busy(context, sink_id)
        owner_gone(context, transactions, sink_id)
        return
    owner, here = _inspected(context, transactions, sink_id).owner, location_of(context.run)
    if owner is not None and owner.works is not False and not is_ours(context.instance, owner.claim, here):
        consented(sink_id, owner, fence, "fence")


def owner_gone(context: dg.OpExecutionContext, transactions: TransactionAdmin, sink_id: str) -> None:
    """Wait until the sink's owner, a driver that is no Dagster run or is about to end, is gone."""
    end = time.monotonic() + recover.LEAVING_S
    while (owner := _inspected(context, transactions, sink_id).owner) is not None and owner.works:
        claim = owner.claim
        if owner.frozen:
            why = frozen(claim.process, owner.frozen, sink_id)
            holds = f"the {claim.process}, which is not a Dagster run in progress, owns sink {sink_id}"
            raise SinkBusy(f"{holds}. {why.code}: {why.sentence}", why.remedy)
        if time.monotonic() >= end:
            raise SinkBusy(
                f"the {claim.process}, which is alive but is no Dagster run in progress, owns sink {sink_id}",
                f"Stop the {claim.process}, then launch the job {RECOVERY_JOB} again; or launch it with take_over and "
                "fence, which stop that driver with EO-FENCED",
            )
        context.log.info(f"The owner of the sink, the {claim.process}, is still alive; waiting for it to end.")
        time.sleep(1.0)
    if owner is not None and owner.works is None:
        consented(sink_id, owner, "", "take_over, and with fence")


def _inspected(context: dg.OpExecutionContext, transactions: TransactionAdmin, sink_id: str) -> Inspection:
    alive = alive_of(context.instance)
    return inspect_sink(transactions.connection(), sink_id, transactions.budget_s, alive_of=alive)
