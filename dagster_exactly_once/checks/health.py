"""The check ``health``: the sensor evaluates it every few seconds; a person may, from the asset's page."""

import dagster as dg

from dagster_exactly_once.checks.evaluate import NeverBegun, check_on
from dagster_exactly_once.checks.readers import read_stream
from dagster_exactly_once.declare.stream import Stream
from dagster_exactly_once.resources.checkpoints import CheckpointReader
from dagster_exactly_once.resources.kafka import KafkaTransactionalProducerFactory
from dagster_exactly_once.sensors.health import HEALTH, evaluation
from dagster_exactly_once.sensors.settings import WatchPolicy
from dagster_exactly_once.sensors.sink_state import facts_of
from dagster_exactly_once.sensors.tick import BUDGET_S
from exactly_once.diagnosis import health as state_of_stream


def health_check(stream: Stream) -> dg.AssetChecksDefinition:
    """Make the check, on the asset of the stream's first output."""

    @check_on(
        stream,
        HEALTH,
        f"The state of the stream {stream.name}; the sensor exactly_once_checkpoint_progress evaluates it, so it is "
        "up to date without a run. Passed while the stream is healthy, idle, catching up or starting; a warning while "
        "it lags, starts slowly, is operated by another driver, has no run in progress, or its last run failed and is "
        "started again; failed when it is stalled, frozen, in doubt or has lost its sink, when its checkpoint is torn "
        "or does not fit, or when its last run failed in a way that needs a person.",
    )
    def health(
        context: dg.AssetCheckExecutionContext,
        kafka: KafkaTransactionalProducerFactory,
        checkpoints: CheckpointReader,
        watch_policy: WatchPolicy,
    ) -> dg.AssetCheckResult:
        found, history = read_stream(context.instance, stream, kafka, checkpoints, BUDGET_S)
        state = state_of_stream(facts_of(context.instance, stream.spec, found, history), watch_policy.limits)
        if state.code == "HEALTH-NEVER-USED":
            raise NeverBegun(state)
        measured = found.measured if found.lags else None
        e = evaluation(stream.spec, state, "", history.stream, measured)
        return dg.AssetCheckResult(
            passed=e.passed, severity=e.severity, description=e.description, metadata=dict(e.metadata)
        )

    return health
