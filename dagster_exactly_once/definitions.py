"""Everything that Dagster needs to operate declared streams, in one call."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

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
from dagster_exactly_once.backfill.asset import backfill_asset, fill_missing_days
from dagster_exactly_once.backfill.resend import resend_job
from dagster_exactly_once.checks.definitions import checks_of, health_check
from dagster_exactly_once.checks.schedule import checks_job, checks_schedule, verify_job, verify_schedule
from dagster_exactly_once.checks.verified import verified_check
from dagster_exactly_once.declare.errors import BadDeclaration
from dagster_exactly_once.declare.stream import Stream
from dagster_exactly_once.names import CHECKS_JOB, MEMORY, NOTIFY
from dagster_exactly_once.notify import Notifier
from dagster_exactly_once.private import UnresolvedAssetJobDefinition
from dagster_exactly_once.recovery.operations import SinkRegistry, operation_job
from dagster_exactly_once.recovery.windows import close_windows_job
from dagster_exactly_once.resources.checkpoints import CheckpointReader
from dagster_exactly_once.resources.kafka import KafkaResource, KafkaTransactionalProducerFactory
from dagster_exactly_once.resources.spark import SparkSessionResource
from dagster_exactly_once.resources.transactions import TransactionAdmin
from dagster_exactly_once.sensors.checkpoint_progress import checkpoint_progress_sensor
from dagster_exactly_once.sensors.liveness import liveness_sensor
from dagster_exactly_once.sensors.run_failure import run_failure_sensor
from dagster_exactly_once.sensors.settings import RestartPolicy, WatchPolicy
from dagster_exactly_once.sensors.stale_transactions import stale_transactions_sensor
from dagster_exactly_once.sensors.tick import Job
from exactly_once.kafka.connection import unset
from exactly_once.location import is_on
from exactly_once.tools.operation import operations
from exactly_once.tools.operation.recover import RECOVER
from exactly_once.tools.operation.retire_sink import SUCCESSOR

log = logging.getLogger(__name__)


def exactly_once_sensors(
    *streams: Stream,
    progress_every_s: int = 10,
    stale_every_s: int = 30,
    failure_every_s: int = 5,
    liveness_every_s: int = 5,
) -> list[dg.SensorDefinition]:
    """Make the sensors that watch ``streams`` and restart them: one of each kind, which serves all of them.

    ``exactly_once_definitions`` calls it by itself. To change an interval, or to add sensors of one's own, give
    ``exactly_once_definitions(..., sensors=...)`` a function that calls it.

    The sensors take the resources ``restart_policy`` and ``watch_policy``, which say when a stream restarts and what
    counts as normal, ``kafka`` and ``checkpoints``; and ``exactly_once_notify``, which comes with the definitions. They
    run by default, unless ``EXACTLY_ONCE_SENSORS=stopped``.

    Parameters
    ----------
    progress_every_s : int
        Seconds between two ticks of ``exactly_once_checkpoint_progress``, which compares checkpoint, commit log and lag
        of each stream. Here and below: a multiple of 5, since Dagster looks at its sensors every 5 s.
    stale_every_s : int
        Of ``exactly_once_stale_transactions``, which asks the brokers for transactions that have been open for too
        long, those of backfills and of resent records included.
    failure_every_s : int
        Of ``exactly_once_run_failure``, which requests a recovery when the newest run of a stream failed.
    liveness_every_s : int
        Of ``exactly_once_liveness``, which reports runs whose process is gone, and starts streams again.

    Returns
    -------
    list of SensorDefinition
        With the jobs that they request. A stream that runs elsewhere has no runs here: the last two leave it out.
    """
    _check_each(streams, "exactly_once_sensors")
    specs = [s.spec for s in streams]
    side_specs = [spec for s in streams for spec in s.side_specs]
    managed = [s for s in streams if s.managed]
    checks = _checks(streams)
    recovery, stream_jobs = operation_job(RECOVER, _registry(streams)), [stream_job(s) for s in managed]
    return [
        checkpoint_progress_sensor(
            specs, _check_keys(checks), [recovery, *_checks_jobs(checks)], every_s=progress_every_s
        ),
        stale_transactions_sensor([*specs, *side_specs], every_s=stale_every_s),
        run_failure_sensor([s.spec for s in managed], [recovery, *stream_jobs], every_s=failure_every_s),
        liveness_sensor([s.spec for s in managed], stream_jobs, every_s=liveness_every_s),
    ]


def exactly_once_definitions(
    *streams: Stream,
    resources: Mapping[str, Any] | None = None,
    notify: Notifier | None = None,
    sensors: Callable[..., Sequence[dg.SensorDefinition]] = exactly_once_sensors,
) -> dg.Definitions:
    """Make the assets, jobs, sensors, checks and schedules of ``streams``: call it once for a code location.

    For each stream: its inputs, its outputs and its transactions as assets, the job ``<name>_stream``, its checks, the
    job ``<name>_verify`` with its schedule, and what its backfill, its rejected records and its complete windows need.
    For all together: the jobs ``exactly_once_recovery``, ``exactly_once_checkpoint_repair``,
    ``exactly_once_end_hanging`` and ``exactly_once_stream_checks`` with its schedule, ``exactly_once_successor`` where
    a stream continues an older version, and one sensor of each kind.

    Parameters
    ----------
    resources : mapping, optional
        From :func:`exactly_once_resources`; or none here, and the keys ``spark``, ``kafka``, ``transactions``,
        ``checkpoints``, ``restart_policy`` and ``watch_policy`` in another ``Definitions`` that is merged with these.
    notify : Notifier, optional
        Tells people when a stream needs one: a :class:`WebhookNotifier`, an :class:`EmailNotifier`, or one's own.
    sensors : callable, optional
        Makes the sensors of the streams that it is called with, such as ``partial(exactly_once_sensors,
        stale_every_s=60)``. A function, not a list: so the sensors are those of these streams on these brokers.

    Raises
    ------
    BadDeclaration
        Two streams share a name, a sink or an output; an argument is no stream, but a list of them, for example; or
        ``sensors`` is not a function.
    """
    _check_each(streams, "exactly_once_definitions")
    servers = _servers(resources)
    streams = tuple(replace(stream, bootstrap_servers=servers) for stream in streams)
    _check_distinct(streams)
    backfills = [s for s in streams if s.backfill is not None]
    registry = _registry(streams)
    managed = [s for s in streams if s.managed]
    backfill_jobs = [backfill_job(s) for s in backfills]
    checks = _checks(streams)
    verified = {s.name: verified_check(s) for s in streams if s.checks is not None}
    verify_jobs = {s.name: verify_job(s, verified[s.name]) for s in streams if s.name in verified}
    watching = _sensors(sensors, streams)
    made: list[Job] = [
        *(stream_job(s) for s in managed),
        *backfill_jobs,
        *(resend_job(s, registry) for s in streams if s.resent),
        *(close_windows_job(s) for s in streams if s.complete is not None),
        *verify_jobs.values(),
        *(operation_job(o, registry) for o in operations() if o.job is not None and o is not SUCCESSOR),
        *_successor_jobs(streams),
        *_checks_jobs(checks),
    ]
    # those that a sensor requests, as it has them: Dagster refuses two objects of one name
    theirs = {job.name: job for sensor in watching if sensor.has_jobs for job in sensor.jobs}
    jobs: dict[str, Any] = {job.name: theirs.get(job.name, job) for job in made}
    return dg.Definitions(
        assets=[
            *source_assets(streams),
            *(stream_asset(s) for s in managed),
            *(spec for s in streams if not s.managed for spec in s.assets),
            *(transactions_asset(s) for s in streams),
            streams_asset(),
            *(completed_asset(s) for s in streams if s.complete is not None),
            *(backfill_asset(s) for s in backfills),
        ],
        asset_checks=[
            *(check for its in checks.values() for check in its),
            *verified.values(),
            *(health_check(s) for s in streams),
        ],
        jobs=list(jobs.values()),
        schedules=[
            *([checks_schedule(list(checks), _check_keys(checks), jobs[CHECKS_JOB])] if checks else []),
            *(verify_schedule(s, verify_jobs[s.name]) for s in streams if s.name in verify_jobs),
            *(fill_missing_days(s, job) for s, job in zip(backfills, backfill_jobs, strict=True)),
        ],
        sensors=watching,
        # first of all: a merge with the definitions of other streams stops at it, and says what to call
        resources={
            _OncePerLocation(NOTIFY): copy(notify or Notifier()),
            **(resources or {}),
            MEMORY: memory_of_a_process,
        },
    )


def exactly_once_resources(
    *,
    work_dir: str,
    checkpoints: str,
    spark: Any = None,
    kafka: KafkaTransactionalProducerFactory | Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Make the resources that the streams need, the brokers and their secrets from ``KAFKA_...`` variables.

    Parameters
    ----------
    work_dir : str
        Folder for Spark's temporary files.
    checkpoints : str
        Folder or location of all checkpoints. A folder is on the local disk, and is made absolute here: claims, logs
        and repairs name it. Where Spark's default file system is another one, write the location with its scheme.
    spark : resource, optional
        Instead of a local session that ``EXACTLY_ONCE_SPARK_...`` variables change: a :class:`SparkSessionResource`, or
        any resource with a ``spark_session``, such as dagster-pyspark's ``PySparkResource``.
    kafka : KafkaTransactionalProducerFactory or mapping, optional
        Instead of the environment's: the factory, or its fields. The resource ``transactions`` reaches the same
        cluster.
    """
    if is_on(checkpoints, ""):
        checkpoints = os.path.abspath(checkpoints)
    if spark is None:
        on_disk = is_on(checkpoints, "", "file")
        spark = SparkSessionResource.from_environment(work_dir=work_dir, local_checkpoints=on_disk, ui=True)
    return {
        "kafka": _kafka(KafkaTransactionalProducerFactory, kafka),
        "transactions": _kafka(TransactionAdmin, kafka),
        "spark": spark,
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
def memory_of_a_process(context: dg.InitResourceContext) -> dg.InMemoryIOManager:
    return dg.InMemoryIOManager()  # type: ignore[no-untyped-call]


def _sensors(
    make: Callable[..., Sequence[dg.SensorDefinition]], streams: Sequence[Stream]
) -> Sequence[dg.SensorDefinition]:
    if not callable(make):
        raise BadDeclaration(
            "sensors takes a function of the streams, and got the sensors themselves, which may be of other streams. "
            "Write sensors=functools.partial(exactly_once_sensors, stale_every_s=60)"
        )
    return make(*streams)


def _registry(streams: Sequence[Stream]) -> SinkRegistry:
    """Return the sinks that a job for repairs finds by name."""
    side_specs = [spec for s in streams for spec in s.side_specs]
    return SinkRegistry([s.spec for s in streams], side_specs, {s.sink_id: s.others for s in streams})


def _successor_jobs(streams: Sequence[Stream]) -> list[dg.JobDefinition]:
    """Return the job that retires the sinks of older versions; none where no stream continues one."""
    new = [s for s in streams if s.continues]
    if not new:
        return []
    others = {s.sink_id: s.others for s in new}
    registry = SinkRegistry([s.spec for s in new], (), others, {s.sink_id: s.continues for s in new})
    return [operation_job(SUCCESSOR, registry)]


def _checks(streams: Sequence[Stream]) -> dict[Stream, list[dg.AssetChecksDefinition]]:
    """Return the checks of each stream that declares some."""
    return {s: made for s in streams if (made := checks_of(s, _blue(s, streams)))}


def _blue(stream: Stream, streams: Sequence[Stream]) -> Stream | None:
    """Return the stream that this one reads along with; None for one that does not."""
    if not stream.beside:
        return None
    found = next((s for s in streams if s.sink_id == stream.beside), None)
    if found is None or not found.one_to_one:
        raise BadDeclaration(
            f"{stream.name}: beside names the sink {stream.beside}, which no stream here has with Checks(origin=...). "
            "Declare the old stream in the same code location, with observed_stream if it runs elsewhere"
        )
    return found


def _check_keys(checks: Mapping[Stream, Sequence[dg.AssetChecksDefinition]]) -> dict[str, list[dg.AssetCheckKey]]:
    """Return their keys by sink id."""
    return {s.sink_id: [key for check in made for key in check.check_keys] for s, made in checks.items()}


def _checks_jobs(checks: Mapping[Stream, Sequence[dg.AssetChecksDefinition]]) -> list[UnresolvedAssetJobDefinition]:
    """Return the one job that evaluates them; none without a check."""
    found = [check for made in checks.values() for check in made]
    return [checks_job(found)] if found else []


def _kafka(resource: type[KafkaResource], given: KafkaResource | Mapping[str, Any] | None) -> KafkaResource:
    if given is None:
        return resource.from_environment()
    if isinstance(given, resource):
        return given
    if isinstance(given, KafkaResource):
        given = {name: value for name in KafkaResource.model_fields if (value := getattr(given, name)) is not None}
    return resource(**given)


def _servers(resources: Mapping[str, Any] | None) -> str:
    """Return the brokers that the assets name; empty where they are not known while the code location loads."""
    kafka = (resources or {}).get("kafka")
    told = getattr(kafka, "bootstrap_servers", None) or dg.EnvVar("KAFKA_BOOTSTRAP_SERVERS")
    servers = (told.get_value() if isinstance(told, dg.EnvVar) else str(told)) or ""
    if kafka is not None and not servers.strip():
        log.warning("%s: the resource kafka has no brokers, and no stream can run", unset("KAFKA_BOOTSTRAP_SERVERS"))
    return servers


def _check_each(streams: Sequence[object], function: str) -> None:
    if wrong := [s for s in streams if not isinstance(s, Stream)]:
        raise BadDeclaration(
            f"{function} takes streams one by one, and got a {type(wrong[0]).__name__}. Write {function}(first, "
            f"second), or {function}(*streams)"
        )


def _check_distinct(streams: tuple[Stream, ...]) -> None:
    seen: dict[tuple[str, str], str] = {}
    for stream in streams:
        its = [("name", stream.name), ("sink_id", stream.sink_id), *(("output", topic) for topic in stream.topics)]
        its += [("sink_id", spec.sink_id) for spec in stream.side_specs]
        for kind, value in its:
            if (other := seen.setdefault((kind, value), stream.name)) != stream.name or (
                kind == "name" and sum(s.name == value for s in streams) > 1
            ):
                raise BadDeclaration(
                    f"the streams {other} and {stream.name} share the {kind} {value}. Give each stream its own"
                )
