"""Everything that Dagster needs to operate declared streams, in one call."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import dagster as dg

from dagster_exactly_once.assets import (
    backfill_job,
    completed_asset,
    source_assets,
    stream_asset,
    stream_job,
    streams_asset,
    transactions_asset,
)
from dagster_exactly_once.backfill.asset import backfill_asset
from dagster_exactly_once.backfill.schedule import fill_missing_days
from dagster_exactly_once.checks.definitions import checks_of
from dagster_exactly_once.checks.health import health_check
from dagster_exactly_once.checks.schedule import checks_job, checks_schedule
from dagster_exactly_once.checks.verified import verified_check, verify_job, verify_schedule
from dagster_exactly_once.errors import BadDeclaration
from dagster_exactly_once.names import MEMORY, NOTIFY
from dagster_exactly_once.notify import Notifier
from dagster_exactly_once.recovery.checkpoint import repair_job
from dagster_exactly_once.recovery.hanging import hanging_job
from dagster_exactly_once.recovery.job import recovery_job
from dagster_exactly_once.recovery.work import Registry
from dagster_exactly_once.resources.checkpoints import CheckpointReader
from dagster_exactly_once.resources.kafka import KafkaTransactionalProducerFactory
from dagster_exactly_once.resources.spark import SparkSessionResource
from dagster_exactly_once.resources.transactions import TransactionAdmin
from dagster_exactly_once.sensors.checkpoint_progress import checkpoint_progress_sensor
from dagster_exactly_once.sensors.liveness import liveness_sensor
from dagster_exactly_once.sensors.run_failure import run_failure_sensor
from dagster_exactly_once.sensors.settings import RestartPolicy, WatchPolicy
from dagster_exactly_once.sensors.stale_transactions import stale_transactions_sensor
from dagster_exactly_once.stream import Stream
from exactly_once.kafka.connection import unset

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    pass


def exactly_once_definitions(
    *streams: Stream, resources: Mapping[str, Any] | None = None, notify: Notifier | None = None
) -> dg.Definitions:
    """Make the assets, jobs, sensors, checks and schedules of ``streams``: call it once for a code location.

    For each stream: its inputs, its outputs and its transactions as assets, the job ``<name>_stream``, its checks, the
    job ``<name>_verify`` with its schedule, and what its backfill needs. For all together: the jobs
    ``exactly_once_recovery``, ``exactly_once_checkpoint_repair``, ``exactly_once_end_hanging`` and
    ``exactly_once_stream_checks`` with its schedule, and one sensor of each kind.

    Parameters
    ----------
    resources : mapping, optional
        From :func:`exactly_once_resources`; or none here, and the keys ``spark``, ``kafka``, ``transactions``,
        ``checkpoints``, ``restart_policy`` and ``watch_policy`` in another ``Definitions`` that is merged with these.

    notify : Notifier, optional
        Tells people when a stream needs one: a :class:`WebhookNotifier`, an :class:`EmailNotifier`, or one's own.

    Raises
    ------
    BadDeclaration
        Two streams share a name, a sink or an output.
    """
    servers = _servers(resources)
    streams = tuple(replace(stream, bootstrap_servers=servers) for stream in streams)
    _check_distinct(streams)
    specs = [s.spec for s in streams]
    backfills = [s for s in streams if s.backfill is not None]
    registry = Registry(specs, [s.backfill_spec for s in backfills], {s.sink_id: s.others for s in streams})
    managed = [s for s in streams if s.managed]
    stream_jobs = [stream_job(s) for s in managed]
    backfill_jobs = [backfill_job(s) for s in backfills]
    recovery = recovery_job(registry)
    of_stream = {s: made for s in streams if (made := checks_of(s))}
    checks = [check for made in of_stream.values() for check in made]
    check_keys = {s.sink_id: [key for check in made for key in check.check_keys] for s, made in of_stream.items()}
    checking = checks_job(checks) if checks else None
    verified = {s.name: verified_check(s) for s in streams if s.checks is not None}
    verify_jobs = {s.name: verify_job(s, verified[s.name]) for s in streams if s.name in verified}
    watched = [*specs, *(s.backfill_spec for s in backfills)]
    return dg.Definitions(
        assets=[
            *source_assets(streams),
            *(stream_asset(s) for s in managed),
            *(spec for s in streams if not s.managed for spec in s.outputs),
            *(transactions_asset(s) for s in streams),
            streams_asset(),
            *(completed_asset(s) for s in streams if s.complete is not None),
            *(backfill_asset(s) for s in backfills),
        ],
        asset_checks=[*checks, *verified.values(), *(health_check(s) for s in streams)],
        jobs=[
            *stream_jobs,
            *backfill_jobs,
            *verify_jobs.values(),
            recovery,
            repair_job(registry),
            hanging_job(registry),
            *([checking] if checking else []),
        ],
        schedules=[
            *([checks_schedule(list(of_stream), check_keys, checking)] if checking else []),
            *(verify_schedule(s, verify_jobs[s.name]) for s in streams if s.name in verify_jobs),
            *(fill_missing_days(s, job) for s, job in zip(backfills, backfill_jobs, strict=True)),
        ],
        sensors=[
            checkpoint_progress_sensor(specs, check_keys, [recovery, *([checking] if checking else [])]),
            stale_transactions_sensor(watched),
            run_failure_sensor([s.spec for s in managed]),
            liveness_sensor([s.spec for s in managed], stream_jobs),
        ],
        # first of all: a merge with the definitions of other streams stops at it, and says what to call
        resources={_OncePerLocation(NOTIFY): copy(notify or Notifier()), **(resources or {}), MEMORY: _memory},
    )


def exactly_once_resources(
    *, work_dir: str, checkpoints: str, spark: Any = None, kafka: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Make the resources that the streams need, the brokers and their secrets from ``KAFKA_...`` variables.

    Parameters
    ----------
    work_dir : str
        Folder for Spark's temporary files.
    checkpoints : str
        Folder or URI of all checkpoints. A folder is made absolute here: claims, logs and repairs name it.
    spark : resource, optional
        Instead of a local session that ``EXACTLY_ONCE_SPARK_...`` variables change: a :class:`SparkSessionResource`, or
        any resource with a ``spark_session``, such as dagster-pyspark's ``PySparkResource``.
    kafka : mapping, optional
        Fields of :class:`KafkaTransactionalProducerFactory`, instead of the environment's.
    """
    fields = dict(kafka) if kafka is not None else None
    if ":" not in checkpoints:
        checkpoints = os.path.abspath(checkpoints)
    return {
        "kafka": _kafka(KafkaTransactionalProducerFactory, fields),
        "transactions": _kafka(TransactionAdmin, fields),
        "spark": spark if spark is not None else _local_spark(work_dir, checkpoints),
        "checkpoints": CheckpointReader(root=checkpoints),
        "restart_policy": RestartPolicy.from_environment("EXACTLY_ONCE_RESTART_"),
        "watch_policy": WatchPolicy.from_environment("EXACTLY_ONCE_WATCH_"),
    }


class _OncePerLocation(str):
    """The key of a resource of all streams, which ``Definitions.merge`` formats into its refusal of a second one."""

    def __format__(self, spec: str) -> str:
        return (
            f"{self!s}, which all streams of a code location share: call exactly_once_definitions(first, second, ...) "
            "once, with all of them"
        )


@dg.io_manager(description="Passes on what the steps of a recovery find, in the memory of its process. Nothing to set.")
def _memory(context: dg.InitResourceContext) -> dg.InMemoryIOManager:
    return dg.InMemoryIOManager()  # type: ignore[no-untyped-call]


def _local_spark(work_dir: str, checkpoints: str) -> SparkSessionResource:
    on_disk = "://" not in checkpoints or checkpoints.startswith("file:")
    return SparkSessionResource.from_environment(work_dir=work_dir, local_checkpoints=on_disk, ui=True)


def _kafka(resource: Any, fields: dict[str, Any] | None) -> Any:
    return resource.from_environment() if fields is None else resource(**fields)


def _servers(resources: Mapping[str, Any] | None) -> str:
    """Return the brokers that the assets name; empty where they are not known while the code location loads."""
    kafka = (resources or {}).get("kafka")
    told = getattr(kafka, "bootstrap_servers", None) or dg.EnvVar("KAFKA_BOOTSTRAP_SERVERS")
    servers = (told.get_value() if isinstance(told, dg.EnvVar) else str(told)) or ""
    if kafka is not None and not servers.strip():
        log.warning("%s: the resource kafka has no brokers, and no stream can run", unset("KAFKA_BOOTSTRAP_SERVERS"))
    return servers


def _check_distinct(streams: tuple[Stream, ...]) -> None:
    seen: dict[tuple[str, str], str] = {}
    for stream in streams:
        its = [("name", stream.name), ("sink_id", stream.sink_id), *(("output", topic) for topic in stream.topics)]
        if stream.backfill is not None:
            its.append(("sink_id", stream.backfill_spec.sink_id))
        for kind, value in its:
            if (other := seen.setdefault((kind, value), stream.name)) != stream.name or (
                kind == "name" and sum(s.name == value for s in streams) > 1
            ):
                raise BadDeclaration(
                    f"the streams {other} and {stream.name} share the {kind} {value}. Give each stream its own"
                )
