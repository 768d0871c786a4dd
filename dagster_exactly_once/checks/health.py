"""The check ``health``: the sensor evaluates it every few seconds; a person may, from the asset's page."""

import dagster as dg

from dagster_exactly_once.checks.evaluate import check_begun, check_on
from dagster_exactly_once.declare.stream import Stream
from dagster_exactly_once.resources.checkpoints import CheckpointReader
from dagster_exactly_once.resources.kafka import KafkaTransactionalProducerFactory
from dagster_exactly_once.runs.history import Histories
from dagster_exactly_once.runs.operator import alive_of
from dagster_exactly_once.sensors.checkpoint_progress import facts, verdict
from dagster_exactly_once.sensors.health import HEALTH, evaluation
from dagster_exactly_once.sensors.settings import WatchPolicy
from dagster_exactly_once.sensors.sink_state import sink_states
from dagster_exactly_once.sensors.tick import BUDGET_S
from exactly_once.deadline import Deadline
from exactly_once.errors import BrokerUnreachable, ExactlyOnceError
from exactly_once.protocol.log_state import LogState


def health_check(stream: Stream) -> dg.AssetChecksDefinition:
    """Make the check, on the asset of the stream's first output."""

    @check_on(
        stream,
        HEALTH,
        f"The state of the stream {stream.name}; the sensor exactly_once_checkpoint_progress evaluates it, so it is "
        "up to date without a run. Passed while the stream is healthy, idle, catching up or starting; a warning while "
        "it lags, starts slowly, is operated by another driver or has no run in progress; failed when it is stalled, "
        "frozen, in doubt or has lost its sink, or when its last run failed in a way that needs a person.",
    )
    def health(
        context: dg.AssetCheckExecutionContext,
        kafka: KafkaTransactionalProducerFactory,
        checkpoints: CheckpointReader,
        watch_policy: WatchPolicy,
    ) -> dg.AssetCheckResult:
        found = sink_states(kafka, checkpoints, [stream.spec], Deadline(BUDGET_S), alive_of(context.instance))
        if stream.sink_id not in found:
            raise BrokerUnreachable(
                f"the brokers did not answer for sink {stream.sink_id} within {BUDGET_S:g} s",
                "Run exactly-once doctor to see which broker does not answer; then evaluate the check health again",
            )
        answer = found[stream.sink_id]
        if isinstance(answer, ExactlyOnceError):
            raise answer
        history = Histories(context.instance).whole(stream.spec)
        state, said, measured = "stopped", f"The sink {stream.sink_id} was never used", None
        if answer is not None:
            measured = answer.measured
            judged = verdict(facts(stream.spec, answer, history, None, 0.0), watch_policy)
            state, said = judged.state, judged.message
        elif history.stream_failure is None:
            check_begun(stream, LogState())
        e = evaluation(stream.spec, state, f"{said}.", history, measured)
        return dg.AssetCheckResult(
            passed=e.passed, severity=e.severity, description=e.description, metadata=dict(e.metadata)
        )

    return health
