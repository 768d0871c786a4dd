"""The jobs of the operations: the same for each, but for what only Dagster knows of their parameters."""

from dataclasses import replace
from typing import Any

import dagster as dg

from dagster_exactly_once.names import HANGING_JOB, RECOVERY_JOB, REPAIR_JOB, SUCCESSOR_JOB
from dagster_exactly_once.recovery.operations import Passed, operation_job
from dagster_exactly_once.recovery.work import SinkRegistry
from dagster_exactly_once.resources.location import checkpoint_of
from dagster_exactly_once.runs.history import read_history
from dagster_exactly_once.runs.tags import TAG_RESTART_OF
from exactly_once.operation.end_hanging import HangingParameters
from exactly_once.operation.model import Operation
from exactly_once.operation.repair_checkpoint import RepairParameters
from exactly_once.operation.retire_sink import SuccessorParameters


def job_of(operation: Operation[Any], registry: SinkRegistry) -> dg.JobDefinition:
    """Make the job of an operation, for the sinks of the registry."""
    assert operation.job is not None
    return operation_job(operation, registry, **_EXTRAS.get(operation.job.name, {}))


def _location(context: dg.OpExecutionContext, registry: SinkRegistry, p: RepairParameters) -> RepairParameters:
    connection = context.resources.transactions.connection()
    kafka, checkpoints = context.resources.kafka, context.resources.checkpoints
    return replace(p, checkpoint=p.checkpoint or checkpoint_of(connection, p.sink_id, kafka, checkpoints))


def _age(context: dg.OpExecutionContext, registry: SinkRegistry, p: HangingParameters) -> HangingParameters:
    return replace(p, older_than_s=context.resources.watch_policy.hanging_older_than_s)


def _predecessor(context: dg.OpExecutionContext, registry: SinkRegistry, p: SuccessorParameters) -> SuccessorParameters:
    return replace(p, predecessor=p.predecessor or registry.continues(p.sink_id))


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
        stream = registry.stream(p.sink_id)
        newest = read_history(context.instance, stream).stream if stream else None
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


#: By job: what completes the parameters, with the resources that it takes, and a further op.
_EXTRAS: dict[str, dict[str, Any]] = {
    RECOVERY_JOB: {"after": _restart},
    REPAIR_JOB: {"fill": _location, "resources": ("kafka", "checkpoints")},
    HANGING_JOB: {"fill": _age, "resources": ("watch_policy",)},
    SUCCESSOR_JOB: {"fill": _predecessor},
}
