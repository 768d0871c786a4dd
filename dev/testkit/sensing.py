"""The sensors of a stream, ticked as one principal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dagster as dg

from dagster_exactly_once.names import NOTIFY, RECOVERY_JOB
from dagster_exactly_once.notify import Notifier
from dagster_exactly_once.resources.checkpoints import CheckpointReader
from dagster_exactly_once.resources.kafka import KafkaTransactionalProducerFactory
from dagster_exactly_once.runs.spec import StreamSpec
from dagster_exactly_once.runs.tags import TAG_STREAM
from dagster_exactly_once.sensors.checkpoint_progress import checkpoint_progress_sensor
from dagster_exactly_once.sensors.liveness import liveness_sensor
from dagster_exactly_once.sensors.run_failure import run_failure_sensor
from dagster_exactly_once.sensors.settings import RestartPolicy, WatchPolicy
from dagster_exactly_once.sensors.stale_transactions import stale_transactions_sensor
from exactly_once.kafka.connection import Connection
from testkit.daemon import Daemon

#: Every sensor of a stream.
SENSORS = (
    "exactly_once_checkpoint_progress",
    "exactly_once_stale_transactions",
    "exactly_once_run_failure",
    "exactly_once_liveness",
)


def stream_of(sink_id: str, source: str, *outputs: str) -> StreamSpec:
    """Return a stream from ``source`` to ``outputs`` that this code location runs."""
    return StreamSpec(
        name=sink_id,
        job="stream",
        op="x",
        sink_id=sink_id,
        sources=(source,),
        outputs=outputs,
        asset_keys=outputs,
        asset="transactions",
    )


def sensing(
    instance: dg.DagsterInstance,
    streams: Sequence[StreamSpec],
    brokers: Connection | str,
    restart: RestartPolicy | None = None,
    notify: Notifier | None = None,
    **policy: Any,
) -> Daemon:
    """Return the sensors of ``streams``, which come to the ``brokers`` by a connection, or by their addresses.

    Without a ``restart`` policy no stream starts again. ``policy`` is of the watch policy.
    """
    jobs = [empty_job(job) for job in {stream.job for stream in streams}]
    sensors = {
        "exactly_once_checkpoint_progress": checkpoint_progress_sensor(streams),
        "exactly_once_stale_transactions": stale_transactions_sensor(streams),
        "exactly_once_run_failure": run_failure_sensor(streams, [*jobs, empty_job(RECOVERY_JOB)]),
        "exactly_once_liveness": liveness_sensor(streams, jobs),
    }
    fields = ("bootstrap_servers", "security_protocol", "sasl_mechanism", "sasl_username", "sasl_password")
    known = {"bootstrap_servers": brokers} if isinstance(brokers, str) else {n: getattr(brokers, n) for n in fields}
    resources = {
        "kafka": KafkaTransactionalProducerFactory(**known),
        "checkpoints": CheckpointReader(root="/nowhere"),
        "restart_policy": restart or RestartPolicy(strategy="none"),
        NOTIFY: notify or Notifier(),
        "watch_policy": WatchPolicy(**policy),
    }
    return Daemon(instance, sensors, resources)


def empty_job(name: str) -> dg.JobDefinition:
    """Return a job that a sensor may request, and that does nothing."""

    @dg.job(name=name)
    def job() -> None:
        pass

    return job


def failure(code: str, cause: str = "c", way_out: str = "w") -> dg.Failure:
    """Return a failure as a run of a stream raises it, classified, of which a restart does not heal."""
    return dg.Failure("d", metadata={"restart_heals": False, "code": code, "cause": cause, "way_out": way_out})


def failed_run(
    instance: dg.DagsterInstance, error: BaseException | None = None, stream: str = "stream", job: str = "stream"
) -> dg.ExecuteInProcessResult:
    """Run a job of a stream that raises; by default it finds that a newer driver has taken the sink."""

    @dg.op
    def step() -> None:
        raise error or failure("EO-FENCED")

    @dg.job(name=job, executor_def=dg.in_process_executor, tags={TAG_STREAM: stream})
    def failing() -> None:
        step()

    return failing.execute_in_process(instance=instance, raise_on_error=False)
