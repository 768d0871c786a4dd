"""The frame of a check. One that cannot be evaluated says so, in place of a failed run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import dagster as dg

from dagster_exactly_once.checks import judgements
from dagster_exactly_once.declare.stream import Stream
from dagster_exactly_once.resources.checkpoints import CheckpointReader, checkpoint_of
from dagster_exactly_once.runs.failures import diagnose
from dagster_exactly_once.runs.history import StreamHistory, read_history
from dagster_exactly_once.runs.location import is_of, location_of
from dagster_exactly_once.runs.operator import stream_facts
from dagster_exactly_once.runs.pieces import logged_every
from dagster_exactly_once.runs.spec import StreamSpec
from dagster_exactly_once.sensors.observation import as_check
from exactly_once.errors import (
    BrokerRefused,
    BrokerUnreachable,
    CheckpointAway,
    CommitLogBlocked,
    ExactlyOnceError,
    InvalidOption,
    NotAuthorized,
)
from exactly_once.inspection.findings import Inspection
from exactly_once.kafka.connection import Connection
from exactly_once.protocol.log_state import LogState
from exactly_once.tools.diagnosis import Diagnosis, Severity, SinkFacts, health

#: Errors that tell nothing of the stream: brokers or the checkpoint's store are away, unknown, or refuse the question,
#: or the open transaction of another client hides the end of the commit log.
CANNOT_READ = (BrokerRefused, BrokerUnreachable, CheckpointAway, CommitLogBlocked, InvalidOption, NotAuthorized)

#: The number of evaluations among which the last finished one of a check is looked for.
EARLIER = 100


class NeverBegun(Exception):
    """The stream has never begun a batch, so there is nothing to check; ``state`` says why."""

    def __init__(self, state: Diagnosis):
        super().__init__(state.text)
        self.state = replace(state, severity=max(state.severity, Severity.WARN, key=lambda s: s.rank))


class CheckContext(NamedTuple):
    """A stream, and what a check of it takes from Dagster."""

    stream: Stream
    context: dg.AssetCheckExecutionContext
    config: Any

    @property
    def checkpoints(self) -> CheckpointReader:
        """The reader of the streams' checkpoints."""
        found: CheckpointReader = self.context.resources.checkpoints
        return found

    @property
    def connection(self) -> Connection:
        """The connection to the brokers."""
        found: Connection = self.context.resources.kafka.connection()
        return found

    def location(self, stream: Stream | None = None) -> str:
        """Return the checkpoint location of this stream, or of another one."""
        sink_id = (stream or self.stream).sink_id
        return checkpoint_of(self.connection, sink_id, self.context.resources.kafka, self.checkpoints)

    @property
    def code_location(self) -> str:
        """The code location of the run that evaluates the check."""
        return location_of(self.context.run)

    def history(self, stream: StreamSpec) -> StreamHistory:
        """Read the runs of a stream."""
        return read_history(self.context.instance, stream, self.code_location)


def check_on(
    stream: Stream,
    name: str,
    description: str,
    evaluate: Callable[[CheckContext], dg.AssetCheckResult],
    config: type[dg.Config] | None = None,
    resources: Sequence[str] = ("kafka", "checkpoints"),
    asset: dg.AssetKey | None = None,
) -> dg.AssetChecksDefinition:
    """Make a check, on the asset of the stream's first output unless ``asset`` names another."""

    def judged(context: dg.AssetCheckExecutionContext, config: Any) -> dg.AssetCheckResult:
        with logged_every(context.log.info, lambda: f"The check {name} reads"):
            return evaluated(evaluate, CheckContext(stream, context, config))

    def configured(context: dg.AssetCheckExecutionContext, config: config) -> dg.AssetCheckResult:  # type: ignore[valid-type]
        return judged(context, config)

    def plain(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        return judged(context, None)

    on = asset or stream.outputs[0].key
    made = dg.asset_check(asset=on, name=name, description=description, required_resource_keys=set(resources))
    return made(configured if config is not None else plain)


def evaluated(evaluate: Callable[[CheckContext], dg.AssetCheckResult], at: CheckContext) -> dg.AssetCheckResult:
    """Return the result of a check, also in place of each of the project's own errors."""
    try:
        return evaluate(at)
    except NeverBegun as never:
        return result(never.state)
    except ExactlyOnceError as error:
        return result(judgements.not_evaluated(diagnose(error), grave=not isinstance(error, CANNOT_READ)))


def earlier_notes(at: CheckContext, asset: dg.AssetKey, name: str) -> dict[str, Any]:
    """Return the metadata of the newest finished evaluation of a check that could read, by a run of the code location;
    empty without one.
    """
    key, instance, here = dg.AssetCheckKey(asset, name), at.context.instance, at.code_location
    for record in instance.event_log_storage.get_asset_check_execution_history(key, limit=EARLIER):
        said = evaluation_in(record)
        if said is None or "evaluated" in said.metadata:
            continue
        if (run := instance.get_run_by_id(record.run_id)) is None or is_of(run, here):
            return {name: value.value for name, value in said.metadata.items()}
    return {}


def evaluation_in(record: Any) -> dg.AssetCheckEvaluation | None:
    """Return what a check said, from Dagster's record of its evaluation; None of one that is not finished."""
    event = record.event.dagster_event if record.event else None
    said = event.event_specific_data if event else None
    return said if isinstance(said, dg.AssetCheckEvaluation) else None


def check_begun(instance: dg.DagsterInstance, stream: StreamSpec, log: LogState, location: str = "") -> None:
    """Make sure that the stream has begun a batch, with which it claims its sink. Raises NeverBegun."""
    if log.owner is None:
        known = stream_facts(instance, stream, read_history(instance, stream, location), None)
        raise NeverBegun(health(SinkFacts(Inspection(stream.sink_id), stream=known)))


def result(verdict: Diagnosis, more: Mapping[str, Any] | None = None) -> dg.AssetCheckResult:
    """Make the result that Dagster shows."""
    codes = {"code": verdict.code, **({"way_out": verdict.remedy} if verdict.remedy else {})}
    return dg.AssetCheckResult(**as_check(verdict, {**codes, **verdict.evidence, **(more or {})}))
