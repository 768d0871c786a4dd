"""Any operation as a job: it examines, writes the audit trail, ends a dry run, and takes the operation's steps."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import dagster as dg

from dagster_exactly_once.declare.config import config_of, parameters_from, sink_of, with_streams
from dagster_exactly_once.names import HANGING_JOB, MEMORY, RECOVERY_JOB, REPAIR_JOB, SUCCESSOR_JOB
from dagster_exactly_once.recovery.owners import owner_answers, refuse_when_busy, runs_at_work
from dagster_exactly_once.recovery.unfilled import unfilled_days
from dagster_exactly_once.resources.checkpoints import checkpoint_of
from dagster_exactly_once.resources.transactions import TransactionAdmin
from dagster_exactly_once.runs.failures import classified
from dagster_exactly_once.runs.history import read_history
from dagster_exactly_once.runs.location import location_of
from dagster_exactly_once.runs.operator import alive_of, operator_of
from dagster_exactly_once.runs.pieces import logged_every
from dagster_exactly_once.runs.process import tag_run
from dagster_exactly_once.runs.spec import StreamSpec
from dagster_exactly_once.runs.tags import NOT_RETRIED, TAG_CAUSE, TAG_RESTART_OF
from dagster_exactly_once.tables import as_metadata
from exactly_once.inspection.findings import Owner
from exactly_once.participant import Participant
from exactly_once.tools.operation.model import (
    STREAM,
    Operation,
    OperationContext,
    OperationJob,
    OperationOutcome,
    OperationStep,
    parameters_of,
)
from exactly_once.tools.operation.repair_checkpoint import RepairParameters
from exactly_once.tools.operation.rules import Refused, check_owner

#: The asset with the audit trail of sinks that this code location does not declare.
UNKNOWN_SINKS = "exactly_once_other_sinks"


@dataclass(frozen=True)
class SinkRegistry:
    """The sinks that the ``streams`` of a code location and their ``backfills`` (which nothing restarts) write through.

    By sink id, ``others`` make its outputs beside Kafka, and ``continued`` is the sink of an older version, whose place
    it takes.
    """

    streams: Sequence[StreamSpec]
    backfills: Sequence[StreamSpec] = ()
    others: Mapping[str, Callable[[], tuple[Participant[Any], ...]]] = field(default_factory=dict)
    continued: Mapping[str, str] = field(default_factory=dict)

    def spec(self, sink_id: str) -> StreamSpec | None:
        """Return the stream or backfill of a sink; None of one that this code location does not know."""
        return next((s for s in (*self.streams, *self.backfills) if s.sink_id == sink_id), None)


@dataclass(frozen=True)
class Audit:
    """The audit trail of one run of a job, on the asset of a sink's transactions.

    The entry ``job`` tells the stage of the run; those of who launched it, and why, begin with ``prefix``.
    """

    asset: str
    job: str
    prefix: str
    by: str
    reason: str

    def began(self, context: dg.OpExecutionContext, stage: str, said: str, metadata: Mapping[str, Any]) -> None:
        """Write what the first step found; ``stage`` is ``began`` or ``dry run``."""
        why = f": {self.reason}" if self.reason else ". The field reason takes why."
        context.log.info(f"{said} Launched by {self.by}{why}")
        context.log_event(dg.AssetObservation(self.asset, description=said, metadata=self._all(stage, metadata)))

    def ended(self, context: dg.OpExecutionContext, said: str, metadata: Mapping[str, Any]) -> None:
        """Write what the run did: as a materialization, which is easy to find among a stream's many observations."""
        context.log.info(said)
        context.log_event(dg.AssetMaterialization(self.asset, description=said, metadata=self._all("ended", metadata)))

    def _all(self, stage: str, more: Mapping[str, Any]) -> dict[str, Any]:
        reason = {f"{self.prefix}_reason": self.reason} if self.reason else {}
        return {self.job: stage, f"{self.prefix}_by": self.by, **reason, **more}


@dataclass(frozen=True)
class Passed:
    """The work of a run: its parameters, its audit trail, and the outcome of the step before."""

    parameters: Any
    audit: Audit
    outcome: OperationOutcome


@dataclass(frozen=True)
class JobExtras:
    """The parts of an operation's job that Dagster alone knows, with the ``resources`` of its first op.

    ``fill`` completes the parameters, by a resource or by a declaration. ``within`` makes the operation's context from
    the one that all operations have; its steps give signs of life themselves. ``after`` makes a last op, which takes
    :class:`Passed`. ``warns`` returns what else a person must know before the operation acts.
    """

    resources: Sequence[str] = ()
    tags: Mapping[str, str] = field(default_factory=lambda: NOT_RETRIED)
    fill: Callable[[dg.OpExecutionContext, SinkRegistry, Any], Any] = lambda context, registry, parameters: parameters
    within: Callable[[dg.OpExecutionContext, OperationContext], OperationContext] | None = None
    after: Callable[[SinkRegistry], dg.OpDefinition] | None = None
    warns: Callable[[dg.OpExecutionContext, Any], str] = lambda context, parameters: ""


def operation_job(
    operation: Operation[Any], registry: SinkRegistry, extras: JobExtras | None = None
) -> dg.JobDefinition:
    """Make the job of an operation, for the sinks of the registry; by default with the extras that its name has."""
    assert operation.job is not None
    shown = operation.job
    front = _Front(operation, shown, registry, extras or _EXTRAS.get(shown.name, JobExtras()))
    first = _first(front) if shown.passed else _only(front)
    steps = [_step(front, step) for step in operation.steps] if shown.passed else []
    if front.extras.after is not None:
        steps.append(front.extras.after(registry))

    @dg.job(
        name=shown.name,
        executor_def=dg.in_process_executor,
        tags=dict(front.extras.tags),
        description=shown.text,
    )
    def job() -> None:
        passed = first()
        if steps:
            _, passed = passed
        for step in steps:
            passed = step(passed)

    return job


@dataclass(frozen=True)
class _Front:
    """The work of the ops of an operation's job."""

    operation: Operation[Any]
    shown: OperationJob
    registry: SinkRegistry
    extras: JobExtras

    @property
    def resources(self) -> set[str]:
        """The resources of the first op."""
        return {"transactions", *self.extras.resources}

    def config(self) -> type[dg.Config]:
        """Return the configuration of the first op."""
        config = config_of(self.operation.parameters)
        if STREAM not in config.model_fields:
            return config
        return with_streams(config, {s.name: s.sink_id for s in (*self.registry.streams, *self.registry.backfills)})

    def examined(self, context: dg.OpExecutionContext, config: Any) -> tuple[Passed, dict[str, Any]]:
        """Examine, and begin the audit trail. Return the outcome, and its metadata."""
        operation, shown = self.operation, self.shown
        with classified(), logged_every(context.log.info, lambda: f"{shown.first} reads the sink"):
            sink_id = operation.preset.get("sink_id") or sink_of(config)
            # a run that takes no sink: neither a start nor a recovery need wait for it
            takes_sink = operation.takes_sink and not config.dry_run
            tag_run(context.instance, context.run_id, sink_id if takes_sink else None)
            p = self.extras.fill(context, self.registry, parameters_from(operation.parameters, config, sink_id))
            if takes_sink:
                owner_answers(context, context.resources.transactions, sink_id, p.take_over, p.force)
            outcome = operation.examine(self._context(context, p), p)
            warning = self.extras.warns(context, p)
        reason = config.reason or context.run.tags.get(TAG_CAUSE, "")
        spec, stage = self.registry.spec(sink_id), shown.name.removeprefix("exactly_once_")
        asset = spec.asset if spec else UNKNOWN_SINKS
        audit = Audit(asset, stage, stage.rpartition("_")[2], who(context.run), reason)
        sentence = f"{outcome.sentence}{warning}"
        if config.dry_run and outcome.to_do and outcome.refusal is None:
            sentence += f" To act, launch {shown.name} again with dry_run: false."
        metadata = as_metadata({**outcome.shown, "sentence": sentence})
        audit.began(context, "dry run" if config.dry_run else "began", sentence, as_metadata(outcome.audit) or metadata)
        return Passed(p, audit, outcome), metadata

    def goes_on(self, outcome: OperationOutcome, config: Any) -> bool:
        """Return whether the steps follow; raise the failure or refusal of the examination."""
        if config.dry_run:
            return False
        with _classified(self.operation):
            if error := outcome.failure or outcome.refusal:
                raise error
        return outcome.to_do

    def acted(
        self, context: dg.OpExecutionContext, step: OperationStep[Any], passed: Passed
    ) -> tuple[Passed, dict[str, Any]]:
        """Take a step; the last one ends the audit trail. Return the outcome, and its metadata."""
        p, operation = passed.parameters, self.operation
        alive = logged_every(context.log.info, lambda: f"{step.name} works on sink {p.sink_id}")
        with _classified(operation), alive if self.extras.within is None else nullcontext():
            outcome = step.act(self._context(context, p, passed.audit), p, passed.outcome)
        metadata = as_metadata(outcome.shown)
        if step is operation.steps[-1]:
            passed.audit.ended(context, outcome.sentence, as_metadata(outcome.audit) or metadata)
            with _classified(operation):
                if outcome.failure:
                    raise outcome.failure
        elif outcome.sentence:
            context.log.info(outcome.sentence)
        return replace(passed, outcome=outcome), metadata

    def _context(self, context: dg.OpExecutionContext, p: Any, audit: Audit | None = None) -> OperationContext:
        """Make what an operation knows of this instance; ``audit``: of a step, which may fence a driver."""
        transactions: TransactionAdmin = context.resources.transactions
        spec, others = self.registry.spec(p.sink_id), self.registry.others.get(p.sink_id)
        reason = f": {audit.reason}" if audit and audit.reason else ""

        def may_fence(sink_id: str, owner: Owner | None) -> None:
            if audit is not None and not getattr(p, "take_over", True):
                refuse_when_busy(context, sink_id)  # a stream may have been launched since the examination
                check_owner(sink_id, owner)

        made = OperationContext(
            transactions.connection(),
            operator=operator_of(context.instance, context.run_id),
            by=f"{audit.by}, run {context.run_id} of {context.job_name}{reason}" if audit else "",
            alive_of=alive_of(context.instance),
            others=others() if audit and others else (),
            topics=spec.outputs if spec else (),
            budget_s=transactions.budget_s,
            work_budget_s=transactions.recovery_budget_s,
            may_be_unused=True,
            may_fence=may_fence,
            busy=lambda sink_id: bool(runs_at_work(context, sink_id)),
            warn=context.log.warning,
        )
        return made if self.extras.within is None else self.extras.within(context, made)


def _first(front: _Front) -> dg.OpDefinition:
    shown, config_class = front.shown, front.config()
    outputs = {
        shown.examined: dg.Out(dict, io_manager_key=MEMORY, description="The state that the examination found."),
        shown.passed: dg.Out(
            Passed, io_manager_key=MEMORY, is_required=False, description="The work to do; no output on a dry run."
        ),
    }

    @dg.op(
        name=shown.first,
        out=outputs,
        required_resource_keys=front.resources,
        description=shown.first_text,
    )
    def first(
        context: dg.OpExecutionContext,
        config: config_class,  # type: ignore[valid-type]
    ) -> Iterator[dg.Output[Any]]:
        passed, metadata = front.examined(context, config)
        yield dg.Output(dict(passed.outcome.document), shown.examined, metadata=metadata)
        if front.goes_on(passed.outcome, config):
            yield dg.Output(passed, shown.passed)

    return first


def _only(front: _Front) -> dg.OpDefinition:
    """Make the op of a job that has one: somebody who runs it again from its failure begins with the examination."""
    shown, config_class = front.shown, front.config()

    @dg.op(
        name=shown.first,
        required_resource_keys=front.resources,
        description=shown.first_text,
    )
    def only(
        context: dg.OpExecutionContext,
        config: config_class,  # type: ignore[valid-type]
    ) -> None:
        passed, metadata = front.examined(context, config)
        for step in front.operation.steps if front.goes_on(passed.outcome, config) else ():
            passed, metadata = front.acted(context, step, passed)
        context.add_output_metadata(metadata)

    return only


def _step(front: _Front, step: OperationStep[Any]) -> dg.OpDefinition:
    @dg.op(
        name=step.name,
        out=dg.Out(Passed, io_manager_key=MEMORY),
        required_resource_keys={"transactions"},
        description=step.text,
    )
    def act(context: dg.OpExecutionContext, passed: Passed) -> dg.Output[Passed]:
        done, metadata = front.acted(context, step, passed)
        return dg.Output(done, metadata=metadata)

    return act


@contextmanager
def _classified(operation: Operation[Any]) -> Iterator[None]:
    """Classify the errors inside the block; a refusal says which field of the launchpad takes its phrase."""
    fields = [how.form for one, how in parameters_of(operation.parameters) if one.name == "force"]
    with classified():
        try:
            yield
        except Refused as refused:
            if not fields:
                raise
            raise refused.in_form(fields[0]) from refused


def who(run: dg.DagsterRun) -> str:
    """Return the person or sensor that launched a run."""
    sensor = run.tags.get("dagster/sensor_name")
    if sensor and run.parent_run_id is None:
        return f"sensor {sensor}"
    return f"{run.tags['user']}" if "user" in run.tags else "a person"


def _location(context: dg.OpExecutionContext, registry: SinkRegistry, p: RepairParameters) -> RepairParameters:
    connection = context.resources.transactions.connection()
    kafka, checkpoints = context.resources.kafka, context.resources.checkpoints
    return replace(p, checkpoint=p.checkpoint or checkpoint_of(connection, p.sink_id, kafka, checkpoints))


def _restart(registry: SinkRegistry) -> dg.OpDefinition:
    @dg.op(
        description=(
            "Records whether the stream should start again. It does not launch the stream: the sensor "
            "exactly_once_liveness does, by the restart policy, so that the request survives this process and a second "
            "recovery causes no second start."
        )
    )
    def restart(context: dg.OpExecutionContext, passed: Passed) -> None:
        p = passed.parameters
        stream = next((s for s in registry.streams if s.sink_id == p.sink_id and s.managed), None)
        newest = read_history(context.instance, stream, location_of(context.run)).stream if stream else None
        job = stream.job if stream else "the job that writes it"
        if not p.restart:
            sentence = f"No restart was requested. To start the stream, launch {job}."
        elif newest is None:
            sentence = f"Sink {p.sink_id} has no earlier run whose configuration a restart could use; launch {job}."
        else:
            run_id = context.run.tags.get(TAG_RESTART_OF, newest.run_id)
            context.instance.add_run_tags(context.run_id, {TAG_RESTART_OF: run_id})
            sentence = (
                f"The sensor exactly_once_liveness starts {job} again with the configuration of run {run_id[:8]}, "
                "within seconds or when the restart policy allows it. If that sensor is off, launch the job by hand."
            )
        context.log.info(sentence)
        context.add_output_metadata({"restart": p.restart, "sentence": sentence})

    return restart


#: The extras of jobs, by their names.
_EXTRAS = {
    RECOVERY_JOB: JobExtras(after=_restart),
    REPAIR_JOB: JobExtras(("kafka", "checkpoints"), fill=_location),
    HANGING_JOB: JobExtras(
        ("watch_policy",),
        fill=lambda at, _, p: replace(p, older_than_s=at.resources.watch_policy.hanging_older_than_s),
    ),
    SUCCESSOR_JOB: JobExtras(
        fill=lambda _, registry, p: replace(p, predecessor=p.predecessor or registry.continued.get(p.sink_id, "")),
        warns=lambda at, p: unfilled_days(at.instance, at.resources.transactions.connection(), p.predecessor),
    ),
}
