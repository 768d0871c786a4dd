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
    instance: dg.DagsterInstance, streams: Sequence[StreamSpec], connection: Connection, **policy: Any
) -> Daemon:
    """Return the sensors of ``streams``, which come to the brokers by ``connection``.

    ``policy`` is of the watch policy.
    """
    fails = failing_job(streams[0].name)
    jobs = [fails, empty_job(RECOVERY_JOB)]
    sensors = {
        "exactly_once_checkpoint_progress": checkpoint_progress_sensor(streams),
        "exactly_once_stale_transactions": stale_transactions_sensor(streams),
        "exactly_once_run_failure": run_failure_sensor(streams, jobs),
        "exactly_once_liveness": liveness_sensor(streams, [fails]),
    }
    kafka = KafkaTransactionalProducerFactory(
        bootstrap_servers=connection.bootstrap_servers,
        security_protocol=connection.security_protocol,
        sasl_mechanism=connection.sasl_mechanism,
        sasl_username=connection.sasl_username,
        sasl_password=connection.sasl_password,
    )
    resources = {
        "kafka": kafka,
        "checkpoints": CheckpointReader(root="/nowhere"),
        "restart_policy": RestartPolicy(strategy="none"),
        NOTIFY: Notifier(),
        "watch_policy": WatchPolicy(**policy),
    }
    return Daemon(instance, sensors, resources)


def empty_job(name: str) -> dg.JobDefinition:
    """Return a job that a sensor may request, and that does nothing."""

    @dg.job(name=name)
    def job() -> None:
        pass

    return job


def failing_job(stream: str) -> dg.JobDefinition:
    """Return the job of a stream: its run finds that a newer driver has taken the sink."""

    @dg.op
    def step() -> None:
        raise dg.Failure("fenced", metadata={"restart_heals": False, "code": "EO-FENCED", "cause": "c", "way_out": "w"})

    @dg.job(name="stream", executor_def=dg.in_process_executor, tags={TAG_STREAM: stream})
    def job() -> None:
        step()

    return job
