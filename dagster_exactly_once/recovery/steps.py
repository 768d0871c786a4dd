"""The steps of a recovery: inspect, complete, sweep, verify, restart. Each checks again before it acts."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import dagster as dg

from dagster_exactly_once.declare.config import RecoveryConfig
from dagster_exactly_once.names import MEMORY, RECOVERY_JOB, RECOVERY_OP, REPAIR_JOB
from dagster_exactly_once.recovery import tables
from dagster_exactly_once.recovery.audited import JobFinding, first_step, passed_on
from dagster_exactly_once.recovery.work import Audit, NotAtRest, SinkBusy, SinkRegistry, Work, consented, counts
from dagster_exactly_once.resources.transactions import TransactionAdmin
from dagster_exactly_once.runs.facts import frozen
from dagster_exactly_once.runs.failures import classified
from dagster_exactly_once.runs.history import read_history
from dagster_exactly_once.runs.operator import alive_of, is_ours, operator_of
from dagster_exactly_once.runs.process import RunProcess, runs_on, tag_run
from dagster_exactly_once.runs.tags import TAG_RESTART_OF
from exactly_once.coordinator import recover as engine
from exactly_once.errors import ExactlyOnceError, Fenced
from exactly_once.inspection.findings import Inspection
from exactly_once.inspection.sink import inspect_sink
from exactly_once.inspection.words import owner_sentence, plural
from exactly_once.protocol.loss import lost_parts

#: A driver that failed ends its JVM within seconds of the end of its run.
LEAVING_S = 15.0


def inspect_op(registry: SinkRegistry) -> dg.OpDefinition:
    """Make the first step."""

    def inspect(context: dg.OpExecutionContext, config: RecoveryConfig, sink_id: str) -> JobFinding:
        transactions = context.resources.transactions
        tag_run(context.instance, context.run_id, sink_id)
        found = inspected(context, transactions, sink_id, readers=True)
        if not config.dry_run:
            found = owner_answers(context, transactions, sink_id, found, config.take_over, config.fence)
        sentence, before, shown = _sentence(found), counts(found), tables.inspected(found)

        def task(audit: Audit) -> Work:
            stream, others = registry.stream(sink_id), registry.others(sink_id)
            return Work(sink_id, stream, audit, config.take_over, config.restart, before, others=others)

        metadata = {**before, "owner": owner_sentence(found), "sentence": sentence, **shown}
        trail = {"recovery_found": sentence, **_nonzero("before", before), **shown}
        return JobFinding(sentence, found.as_json(), metadata, task, trail)

    return first_step(
        registry,
        RecoveryConfig,
        inspect,
        op=RECOVERY_OP,
        trail=("recovery", "recovery"),
        found=("inspected", passed_on(dict, "The sink as it was found.")),
        task=("work", passed_on(Work, "The work to do; no output on a dry run.", required=False)),
        resources=("transactions",),
        description=(
            "Lists what is decided, prepared, undecided or lost, by which owner, since when, and which readers it "
            "blocks. Refuses to continue while a live process works on the sink, unless take_over is set; a dry run "
            "ends here."
        ),
    )


@dg.op(
    out=dg.Out(Work, io_manager_key=MEMORY),
    description="Claims the sink, which fences a live driver, and commits decided batches not yet proven committed.",
)
def complete(context: dg.OpExecutionContext, work: Work, transactions: TransactionAdmin) -> dg.Output[Work]:
    connection, budget_s = transactions.connection(), transactions.recovery_budget_s
    with classified():
        if not work.take_over:
            refuse_when_busy(context, work.sink_id)  # a stream may have been launched since the inspection
        operator = operator_of(context.instance, context.run_id)
        claim = engine.claim_sink(connection, work.sink_id, budget_s, operator)
        if claim is None:
            context.log.info(f"Sink {work.sink_id} was never used: nothing to do.")
            return dg.Output(work, metadata={"completed": tables.completed([])})
        try:
            found = engine.complete_decided(connection, work.sink_id, claim.token, budget_s, work.others)
        except Fenced:
            return _superseded(context, work, claim.token)
        except ExactlyOnceError:
            _sweep_anyway(context, transactions, work, claim.token)
            raise
    done = found.completed
    batches = tuple(d.write_id or str(d.batch_id) for d in done)
    for loss in found.losses:
        context.log.warning(str(lost_parts(work.sink_id, loss.decision, loss.handles)))
    awaited = tuple(x.decision.write_id or str(x.decision.batch_id) for x in found.losses)
    if not awaited:
        context.log.info(f"Completed {_batches(batches)}." if done else "Nothing decided was open.")
    return dg.Output(
        replace(work, token=claim.token, completed=batches, awaited=awaited),
        metadata={"claim": claim.token, "completed_batches": len(done), "completed": tables.completed(done)},
    )


@dg.op(
    out=dg.Out(Work, io_manager_key=MEMORY),
    description="Aborts the undecided transactions of earlier owners: the stream writes their rows again.",
)
def sweep(context: dg.OpExecutionContext, work: Work, transactions: TransactionAdmin) -> dg.Output[Work]:
    if work.token is None or work.superseded:
        return dg.Output(work, metadata={"aborted": tables.rolled_back([])})
    connection, budget_s = transactions.connection(), transactions.recovery_budget_s
    end = time.monotonic() + (LEAVING_S if work.take_over else 0.0)
    with classified():
        try:
            aborted = _swept(engine.sweep_undecided(connection, work.sink_id, work.token, budget_s, work.others))
            # a driver that was fenced a moment ago opens transactions for its last batch until it meets the fence
            while time.monotonic() < end and (
                _others(context, work.sink_id)
                or engine.verify(connection, work.sink_id, transactions.budget_s).left_open
            ):
                time.sleep(1.0)
                aborted += _swept(engine.sweep_undecided(connection, work.sink_id, work.token, budget_s, work.others))
        except Fenced:
            return _superseded(context, work, work.token)
    context.log.info(
        f"Aborted {plural(len(aborted), 'undecided transaction')}." if aborted else "Nothing undecided was left."
    )
    return dg.Output(
        replace(work, aborted=tuple(name for _, name in aborted)),
        metadata={"aborted_transactions": len(aborted), "aborted": tables.rolled_back(aborted)},
    )


@dg.op(
    out=dg.Out(Work, io_manager_key=MEMORY),
    description="Verifies that the sink has nothing open and no reader waits for it, and writes the audit trail.",
)
def verify(context: dg.OpExecutionContext, work: Work, transactions: TransactionAdmin) -> dg.Output[Work]:
    connection = transactions.connection()
    with classified():
        found = engine.verify(connection, work.sink_id, transactions.budget_s)
        after = inspected(context, transactions, work.sink_id)
    open_decisions = [d for d in found.open_decisions if (d.write_id or str(d.batch_id)) not in work.awaited]
    at_rest = not (found.left_open or open_decisions)
    said = [
        f"completed {_batches(work.completed)}" if work.completed else "there was no batch to complete",
        f"aborted {plural(len(work.aborted), 'undecided transaction')}",
    ]
    if work.awaited:
        said.append(f"the next start writes the lost parts of {_batches(work.awaited)} again")
    if work.superseded:
        said.append("a newer owner took the sink and continues")
    if found.blocked:
        said.append(f"readers wait on {', '.join(f'{t}-{p}' for t, p in found.blocked)}")
    if not (work.completed or work.aborted or work.awaited or work.superseded) and at_rest:
        said = ["there was nothing to recover: no decided batch and no undecided transaction was open", *said[2:]]
    sentence = f"Sink {work.sink_id}: {'; '.join(said)}."
    metadata: dict[str, Any] = {
        "at_rest": at_rest,
        "sentence": sentence,
        "left_open": tables.described(found.left_open),
        **tables.inspected(after),
    }
    work.audit.ended(
        context,
        sentence,
        {
            "recovery_sentence": sentence,
            "recovery_claim": work.token or 0,
            "recovery_completed_batches": len(work.completed),
            "recovery_aborted_transactions": len(work.aborted),
            "recovery_at_rest": at_rest,
            **_nonzero("before", work.before),
            **_nonzero("after", counts(after)),
        },
    )
    if not at_rest and not work.superseded:
        ids = ", ".join(d.transactional_id for d in found.left_open) or "decided batches"
        with classified():
            raise NotAtRest(
                f"sink {work.sink_id} still has open transactions after the recovery: {ids}",
                f"A task of the old driver is probably still running; launch the job {RECOVERY_JOB} again",
            )
    return dg.Output(work, metadata=metadata)


@dg.op(
    description=(
        "Records whether the stream should start again. It does not launch the stream: the sensor "
        "exactly_once_liveness does, by the restart policy, so that the request survives this process and a second "
        "recovery causes no second start."
    )
)
def restart(context: dg.OpExecutionContext, work: Work) -> None:
    stream = work.stream
    newest = read_history(context.instance, stream).stream if stream else None
    job = stream.job if stream else "the job that writes it"
    if not work.restart:
        sentence = f"No restart was requested. To start the stream, launch {job}."
    elif newest is None:
        sentence = f"Sink {work.sink_id} has no earlier run whose configuration a restart could use; launch {job}."
    else:
        run_id = context.run.tags.get(TAG_RESTART_OF, newest.run_id)
        context.instance.add_run_tags(context.run_id, {TAG_RESTART_OF: run_id})
        sentence = (
            f"The sensor exactly_once_liveness starts {job} again with the configuration of run {run_id[:8]}, within "
            "seconds or when the restart policy allows it. If that sensor is off, launch the job by hand."
        )
    context.log.info(sentence)
    context.add_output_metadata({"restart": work.restart, "sentence": sentence})


def refuse_when_busy(context: dg.OpExecutionContext, sink_id: str) -> None:
    """Stop while a run other than a recovery is alive. Two recoveries at once are safe: the later one continues."""
    for run in _others(context, sink_id):
        if run.frozen:
            why = frozen(f"run {run.run_id}", run.frozen, sink_id)
            holds = f"run {run.run_id} of {run.job} holds sink {sink_id}"
            raise SinkBusy(f"{holds}. {why.code}: {why.sentence}", why.remedy)
        raise SinkBusy(
            f"Run {run.run_id} of {run.job} (Python process {run.pid} on {run.host}) works on sink {sink_id}",
            f"Terminate run {run.run_id[:8]} of {run.job}, then launch the job {RECOVERY_JOB} again; or launch it with "
            "take_over, which stops that run with EO-FENCED",
        )


def _others(context: dg.OpExecutionContext, sink_id: str) -> list[RunProcess]:
    """Return the runs on the sink, except recoveries and repairs, that may be alive."""
    found = runs_on(context.instance, sink_id)
    harmless = (RECOVERY_JOB, REPAIR_JOB)
    return [r for r in found if r.run_id != context.run_id and r.job not in harmless and r.alive is not False]


def owner_gone(
    context: dg.OpExecutionContext, transactions: TransactionAdmin, sink_id: str, found: Inspection
) -> Inspection:
    """Wait until the sink's owner, a driver that is not a Dagster run or is about to end, is gone; return the sink."""
    end = time.monotonic() + LEAVING_S
    while found.owner is not None and found.owner.works:
        claim = found.owner.claim
        if found.owner.frozen:
            why = frozen(claim.process, found.owner.frozen, sink_id)
            holds = f"the {claim.process}, which is not a Dagster run in progress, owns sink {sink_id}"
            raise SinkBusy(f"{holds}. {why.code}: {why.sentence}", why.remedy)
        if time.monotonic() >= end:
            raise SinkBusy(
                f"the {claim.process}, which is alive but is not a Dagster run, owns sink {sink_id}",
                f"Stop the {claim.process}, then launch the job {RECOVERY_JOB} again; or launch it with take_over and "
                "fence, which stop that driver with EO-FENCED",
            )
        context.log.info(f"The owner of the sink, the {claim.process}, is still alive; waiting for it to end.")
        time.sleep(1.0)
        found = inspected(context, transactions, sink_id, readers=True)
    if found.owner is not None and found.owner.works is None:
        consented(sink_id, found.owner, "", "take_over, and with fence")
    return found


def owner_answers(
    context: dg.OpExecutionContext,
    transactions: TransactionAdmin,
    sink_id: str,
    found: Inspection,
    take_over: bool,
    fence: str,
) -> Inspection:
    """Make sure that the sink may be claimed: its owner is gone, or a person takes it over; return the sink as it is
    then.

    ``take_over`` alone fences a run of this instance; the driver of anybody else needs the typed consequence too.
    """
    if not take_over:
        refuse_when_busy(context, sink_id)
        return owner_gone(context, transactions, sink_id, found)
    owner = found.owner
    if owner is not None and owner.works is not False and not is_ours(context.instance, owner.claim):
        consented(sink_id, owner, fence, "fence")
    return found


def inspected(
    context: dg.OpExecutionContext, transactions: TransactionAdmin, sink_id: str, readers: bool = False
) -> Inspection:
    """Inspect a sink; runs of this instance live as long as their status says."""
    connection, alive = transactions.connection(), alive_of(context.instance)
    return inspect_sink(connection, sink_id, transactions.budget_s, readers=readers, alive_of=alive)


def _superseded(context: dg.OpExecutionContext, work: Work, token: int) -> dg.Output[Work]:
    context.log.info("A newer owner claimed the sink after this recovery, and continues with what is left.")
    return dg.Output(replace(work, token=token, superseded=True), metadata={"superseded": True})


def _sweep_anyway(context: dg.OpExecutionContext, transactions: TransactionAdmin, work: Work, token: int) -> None:
    """Abort undecided transactions although a batch cannot be completed: readers wait for these too."""
    try:
        budget_s = transactions.recovery_budget_s
        swept = engine.sweep_undecided(transactions.connection(), work.sink_id, token, budget_s, work.others)
        context.log.warning(
            f"A batch could not be completed. Aborted {plural(len(_swept(swept)), 'undecided transaction')}."
        )
    except ExactlyOnceError as error:
        context.log.warning(f"Could not abort the undecided transactions either: {error}")


def _swept(rolled_back: Mapping[str, Sequence[str]]) -> list[tuple[str, str]]:
    """Return participant and name of every part that was rolled back."""
    return [(participant, name) for participant, names in rolled_back.items() for name in names]


def _nonzero(when: str, found: Mapping[str, int]) -> dict[str, int]:
    """Return the counts that say something, by name, for the audit trail."""
    return {f"{when}_{name}": count for name, count in found.items() if count}


def _batches(names: Sequence[str]) -> str:
    return f"batch{'es' if len(names) > 1 else ''} {', '.join(names)}"


def _sentence(found: Inspection) -> str:
    if found.owner is None:
        return f"Sink {found.sink_id} was never used."
    if found.quiet:
        return f"Sink {found.sink_id} has nothing open. Owner: {owner_sentence(found)}"
    n = counts(found)
    return (
        f"Sink {found.sink_id}: {plural(n['open'], 'transaction')} open ({n['undecided']} undecided, the oldest "
        f"{found.oldest_s:.0f} s), {plural(n['decided_not_proven'], 'batch')} decided but not proven committed "
        f"({plural(n['lost_parts'], 'part')} lost), {plural(n['blocked_partitions'], 'partition')} blocked. "
        f"Owner: {owner_sentence(found)}"
    )
