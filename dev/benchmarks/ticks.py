"""Measures how long a tick of each sensor takes, by the number of streams of the code location."""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import psutil
from dagster._core.test_utils import create_run_for_test

from benchmarks.common import median
from dagster_exactly_once import Stream, exactly_once_definitions, exactly_once_resources, exactly_once_stream
from dagster_exactly_once.names import RECOVERY_JOB
from dagster_exactly_once.runs.operator import operator_of
from dagster_exactly_once.runs.tags import TAG_HOST, TAG_PID, TAG_RECOVERS, TAG_SINK, TAG_STREAM
from exactly_once.commitlog.commit_log import CommitLog
from exactly_once.deadline import Deadline
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.protocol.records import Claim
from exactly_once_local.cluster.embedded_broker import EmbeddedBroker

#: Streams of one code location.
SIZES = (1, 10, 50)

#: Ticks of each sensor; the first one opens what stays open.
TICKS = 6

#: Runs of each stream that its history holds, and recoveries among them.
RUNS, RECOVERIES = 8, 4


@dataclass(frozen=True)
class Ticks:
    """The duration of a tick in ms: the median, and the longest."""

    streams: int
    sensor: str
    median_ms: float
    longest_ms: float


def measure(folder: Path) -> Iterator[Ticks]:
    """Tick each sensor over streams that run, each with a history, on a real broker and a real instance."""
    folder.mkdir(parents=True, exist_ok=True)
    with EmbeddedBroker(folder / "broker") as broker:
        for size in SIZES:
            streams = [_declared(f"s{size}_{n}") for n in range(size)]
            yield from _of(folder, broker.bootstrap_servers, streams)


def _of(folder: Path, servers: str, streams: Sequence[Stream]) -> Iterator[Ticks]:
    resources = exactly_once_resources(
        work_dir=str(folder / "spark"), checkpoints=str(folder / "checkpoints"), kafka={"bootstrap_servers": servers}
    )
    defs = exactly_once_definitions(*streams, resources=resources)
    repository = defs.get_repository_def()
    with dg.DagsterInstance.local_temp(str(_new(folder / "home"))) as instance:
        for stream in streams:
            _run(folder, instance, stream, resources["kafka"].connection())
        for sensor in sorted(repository.sensor_defs, key=lambda s: s.name):
            took, cursor = [], None
            found = repository.get_top_level_resources()
            wanted = {key: found[key] for key in sensor.required_resource_keys}
            for _ in range(TICKS):
                with dg.build_sensor_context(instance=instance, cursor=cursor, resources=wanted) as context:
                    began = time.perf_counter()
                    result = sensor(context)
                    took.append((time.perf_counter() - began) * 1000)
                assert isinstance(result, dg.SensorResult) and not result.run_requests, result
                cursor = result.cursor
            yield Ticks(len(streams), sensor.name, round(median(took[1:]), 1), round(max(took), 1))


def _declared(name: str) -> Stream:
    return exactly_once_stream(name=name, source=f"{name}-in", outputs=[f"{name}_out"])(lambda events: events)


def _run(folder: Path, instance: dg.DagsterInstance, stream: Stream, connection: Connection) -> None:
    """Make what a stream that runs leaves: topics, a claim, a checkpoint, runs and recoveries."""
    with Admin(connection) as admin:
        for topic in (*stream.source_topics, *stream.topics):
            admin.create_topic(topic, 2, 1, {})
    tags = {TAG_STREAM: stream.name, TAG_SINK: stream.sink_id}
    for _ in range(RUNS):
        create_run_for_test(instance, job_name=stream.spec.job, status=dg.DagsterRunStatus.CANCELED, tags=tags)
    for _ in range(RECOVERIES):
        recovers = {TAG_RECOVERS: stream.sink_id, TAG_SINK: stream.sink_id}
        create_run_for_test(instance, job_name=RECOVERY_JOB, status=dg.DagsterRunStatus.SUCCESS, tags=recovers)
    me = f"{os.getpid()}@{psutil.Process().create_time():.2f}"
    tags |= {TAG_HOST: socket.gethostname(), TAG_PID: me}
    run = create_run_for_test(instance, job_name=stream.spec.job, status=dg.DagsterRunStatus.STARTED, tags=tags)
    checkpoint = _new(folder / "checkpoints" / stream.sink_id)
    query = str(uuid.uuid4())
    for part in ("offsets", "commits", "sources/0"):
        (checkpoint / part).mkdir(parents=True)
    offsets = json.dumps({topic: {"0": 0, "1": 0} for topic in stream.source_topics})
    (checkpoint / "metadata").write_text(json.dumps({"id": query}))
    (checkpoint / "sources/0/0").write_text(f"\0v1\n{offsets}")
    (checkpoint / "offsets/0").write_text(f'v1\n{{"batchTimestampMs": 1}}\n{offsets}')
    (checkpoint / "commits/0").write_text("v1\n{}")
    log = CommitLog(connection, stream.sink_id)
    claim = Claim(1, query, 1, "stream", "a-host", 1, str(checkpoint), operator=operator_of(instance, run.run_id))
    log.claim(lambda state: claim, Deadline(30))
    log.close()


def _new(folder: Path) -> Path:
    made = folder.parent / f"{folder.name}-{uuid.uuid4().hex[:8]}"
    made.mkdir(parents=True)
    return made
