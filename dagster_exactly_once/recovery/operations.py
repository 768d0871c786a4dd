"""Any operation as a job: it examines, writes the audit trail, ends a dry run, and takes the operation's steps."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import dagster as dg

from dagster_exactly_once.declare.config import config_of, parameters_from, sink_of, with_streams
from dagster_exactly_once.names import MEMORY
from dagster_exactly_once.recovery.owners import owner_answers, refuse_when_busy, runs_at_work
from dagster_exactly_once.recovery.work import Audit, SinkRegistry
from dagster_exactly_once.resources.transactions import TransactionAdmin
from dagster_exactly_once.runs.failures import classified
from dagster_exactly_once.runs.operator import alive_of, operator_of
from dagster_exactly_once.runs.process import tag_run
from dagster_exactly_once.runs.tags import TAG_CAUSE
from dagster_exactly_once.tables import as_metadata
from exactly_once.inspection.findings import Owner
from exactly_once.operation.model import (
    Operation,
    OperationContext,
    OperationJob,
    OperationOutcome,
    OperationStep,
    parameters_of,
)
from exactly_once.operation.rules import Refused, check_owner

#: Completes the parameters by what Dagster knows: by a resource, or by a declaration.
Fill = Callable[[dg.OpExecutionContext, SinkRegistry, Any], Any]


@dataclass(frozen=True)
class Passed:
    """The work of a run: its parameters, its audit trail, and the outcome of the step before."""

    parameters: Any
    audit: Audit
    outcome: OperationOutcome


def operation_job(
    operation: Operation[Any],
    registry: SinkRegistry,
    *,
    resources: Sequence[str] = (),
    fill: Fill = lambda context, registry, parameters: parameters,
    after: Callable[[SinkRegistry], dg.OpDefinition] | None = None,
) -> dg.JobDefinition:
    """Make the job of an operation, for the streams of the code location.

    Parameters
    ----------
    resources : sequence of str
        The resources that ``fill`` takes.
    after : callable, optional
        Makes a further op, which takes the last step's :class:`Passed`.
    """
    shown = operation.job
    assert shown is not None
    first = _first(operation, shown, registry, resources, fill)
    last = after(registry) if after is not None else None
    steps = [_step(operation, step, registry, step is operation.steps[-1]) for step in operation.steps]

    @dg.job(
        name=shown.name,
        executor_def=dg.in_process_executor,
        tags={"dagster/max_retries": "0"},
        description=shown.text,
    )
    def job() -> None:
        _, passed = first()
        for step in steps:
            passed = step(passed)
        if last is not None:
            last(passed)

    return job


def _first(
    operation: Operation[Any], shown: OperationJob, registry: SinkRegistry, resources: Sequence[str], fill: Fill
) -> dg.OpDefinition:
    config_class = with_streams(config_of(operation.parameters), registry.sink_ids())
    outputs = {
        shown.examined: dg.Out(dict, io_manager_key=MEMORY, description="The state that the examination found."),
        shown.passed: dg.Out(
            Passed, io_manager_key=MEMORY, is_required=False, description="The work to do; no output on a dry run."
        ),
    }

    @dg.op(
        name=shown.first,
        out=outputs,
        required_resource_keys={"transactions", *resources},
        description=shown.first_text,
    )
    def first(
        context: dg.OpExecutionContext,
        config: config_class,  # type: ignore[valid-type]
    ) -> Iterator[dg.Output[Any]]:
        given: Any = config
        with classified():
            sink_id = sink_of(given)
            # a run that takes no sink: neither a start nor a recovery need wait for it
            tag_run(context.instance, context.run_id, sink_id if operation.takes_sink else None)
            p = fill(context, registry, parameters_from(operation.parameters, given, sink_id))
            if operation.takes_sink and not given.dry_run:
                owner_answers(context, context.resources.transactions, sink_id, p.take_over, p.force)
            found = operation.examine(_context(context, registry, p), p)
        reason = given.reason or context.run.tags.get(TAG_CAUSE, "") or "no reason was given"
        audit = Audit(registry.asset(sink_id), shown.stage, shown.prefix, who(context.run), reason)
        metadata = as_metadata({"sentence": found.sentence, **found.facts})
        audit.began(
            context, "dry run" if given.dry_run else "began", found.sentence, as_metadata(found.audit) or metadata
        )
        yield dg.Output(dict(found.document), shown.examined, metadata=metadata)
        if given.dry_run:
            return
        with classified():
            _raise(operation, found.failure or found.refusal)
        if found.to_do:
            yield dg.Output(Passed(p, audit, found), shown.passed)

    return first


def _step(operation: Operation[Any], step: OperationStep[Any], registry: SinkRegistry, last: bool) -> dg.OpDefinition:
    @dg.op(
        name=step.name,
        out=dg.Out(Passed, io_manager_key=MEMORY),
        required_resource_keys={"transactions"},
        description=step.text,
    )
    def act(context: dg.OpExecutionContext, passed: Passed) -> dg.Output[Passed]:
        p = passed.parameters
        with classified():
            try:
                outcome = step.act(_context(context, registry, p, passed.audit), p, passed.outcome)
            except Refused as refused:
                _raise(operation, refused)
                raise
        metadata = as_metadata({"sentence": outcome.sentence, **outcome.facts})
        if last:
            passed.audit.ended(context, outcome.sentence, as_metadata(outcome.audit) or metadata)
            with classified():
                _raise(operation, outcome.failure)
        elif outcome.sentence:
            context.log.info(outcome.sentence)
        return dg.Output(replace(passed, outcome=outcome), metadata=metadata)

    return act


def _raise(operation: Operation[Any], error: Exception | None) -> None:
    """Raise an error, if there is one; a refusal says which field of the launchpad takes its phrase."""
    if isinstance(error, Refused):
        fields = [how.form for one, how in parameters_of(operation.parameters) if one.name == "force"]
        raise error.in_form(fields[0]) if fields else error
    if error is not None:
        raise error


def _context(
    context: dg.OpExecutionContext, registry: SinkRegistry, p: Any, audit: Audit | None = None
) -> OperationContext:
    """Make what an operation knows of this instance; ``audit``: of a step, which may fence a driver."""
    transactions: TransactionAdmin = context.resources.transactions

    def may_fence(sink_id: str, owner: Owner | None) -> None:
        if audit is not None and not getattr(p, "take_over", True):
            refuse_when_busy(context, sink_id)  # a stream may have been launched since the examination
            check_owner(sink_id, owner)

    return OperationContext(
        transactions.connection(),
        operator=operator_of(context.instance, context.run_id),
        by=f"{audit.by}, run {context.run_id} of {context.job_name}: {audit.reason}" if audit else "",
        alive_of=alive_of(context.instance),
        others=registry.others(p.sink_id) if audit else (),
        topics=registry.topics(p.sink_id),
        budget_s=transactions.budget_s,
        work_budget_s=transactions.recovery_budget_s,
        may_be_unused=True,
        may_fence=may_fence,
        busy=lambda sink_id: bool(runs_at_work(context, sink_id)),
        warn=context.log.warning,
    )


def who(run: dg.DagsterRun) -> str:
    """Return the person or sensor that launched a run."""
    sensor = run.tags.get("dagster/sensor_name")
    if sensor and run.parent_run_id is None:
        return f"sensor {sensor}"
    return f"{run.tags['user']}" if "user" in run.tags else "a person"
