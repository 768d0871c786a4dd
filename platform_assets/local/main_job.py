"""The main job in a terminal: feed, stream until caught up, report. Each step is a Dagster run."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import dagster as dg
from rich.console import Console

from dagster_exactly_once import KafkaTransactionalProducerFactory
from dagster_exactly_once.runs.process import fail_dead_runs
from exactly_once.errors import ExactlyOnceError
from exactly_once.kafka.admin import Admin
from exactly_once_local.duel.departures import DEPARTURES
from platform_assets.constants import FEED_JOB, FLIGHT_DELAYS, FLIGHT_DELAYS_REJECTED, FLIGHTS
from platform_assets.flights.feed import committed_position
from platform_assets.flights.names import SINK_ID, STREAM_JOB
from platform_assets.local.environment import Environment
from platform_assets.local.job_process import running, why_failed
from platform_assets.local.show import Bars, show_report
from platform_assets.report.contents import Contents
from platform_assets.report.report import TOPICS, expected_contents, make_report
from resources.deployment import resources

#: Seconds between two moves of a bar; each reading costs the brokers a handful of requests.
READ_EVERY_S = 1.0

#: The position of a job in its input, and the length of that.
Position = tuple[int, int]

_STREAM_CONFIG = {"ops": {"stream_flight_delays": {"config": {"mode": "caught_up"}}}}


class JobFailed(Exception):
    """A run did not succeed; the message says why."""


def run_main_job(environment: Environment, console: Console) -> int:
    """Feed ``flights``, run the stream until it has caught up, report.

    Returns
    -------
    int
        0 if both runs succeeded and the report finds no problem, else 1.
    """
    kafka = KafkaTransactionalProducerFactory(bootstrap_servers=environment.bootstrap_servers)
    with dg.DagsterInstance.get() as instance, ThreadPoolExecutor(1) as threads:
        fail_dead_runs(instance)
        try:
            contents = threads.submit(expected_contents)  # the feed is busy on one core, Spark on all
            client, run = kafka.connection().librdkafka(), partial(_run_with_bar, environment, instance, console)
            fed = run(FEED_JOB, {}, "feeding flights", lambda: (committed_position(client, FLIGHTS), DEPARTURES))
            title, committed = "flights -> flight_delays (offsets)", _stream_progress(kafka, environment)
            run(STREAM_JOB, _STREAM_CONFIG, title, committed)
        except JobFailed as failure:
            console.print(f"[bold red]Failed:[/] {failure}", highlight=False)
            return 1
        sent = _metadata(instance, FLIGHTS)
        written = _metadata(instance, FLIGHT_DELAYS)
    if not sent.get("records_committed") and not written.get("run_records_committed"):
        console.print(f"Nothing to do: all {fed:,} events are in flights, and the stream has caught up.")
    seen = {
        "feed": sent.get("records_per_second"),
        "stream (with its start)": written.get("run_records_per_second"),
    }
    rates = {name: rate for name, rate in seen.items() if rate}
    return _report(environment, kafka, console, rates, contents.result())


def _report(
    environment: Environment,
    kafka: KafkaTransactionalProducerFactory,
    console: Console,
    rates: dict[str, float],
    contents: Contents,
) -> int:
    checkpoint = resources(environment.folder)["checkpoints"].location(kafka.cluster_id(), SINK_ID)
    with Bars(console) as shown:
        bars = {topic: shown.add(f"reading back {topic}") for topic in TOPICS}
        lengths = {FLIGHTS: DEPARTURES, FLIGHT_DELAYS: DEPARTURES, FLIGHT_DELAYS_REJECTED: None}
        report = make_report(
            kafka.connection(),
            checkpoint,
            rates,
            contents,
            lambda topic, count: shown.move(bars[topic], count, lengths[topic]),
        )
        f = report.contents
        for topic, count in zip(TOPICS, (f.records_in, f.out, f.rejected), strict=True):
            shown.move(bars[topic], count, count, last=True)
    (environment.folder / "report.json").write_text(json.dumps(report.as_json(), indent=2))
    show_report(console, report)
    return 1 if report.problems else 0


def _run_with_bar(
    environment: Environment,
    instance: dg.DagsterInstance,
    console: Console,
    job: str,
    config: dict[str, Any],
    title: str,
    position: Callable[[], Position],
) -> int:
    """Run ``job`` to its end under a bar that ``position`` moves; returns the bar's last position."""
    with running(environment, instance, job, config, console.print) as process, Bars(console) as shown:
        bar = shown.add(title)
        done, of, ended = 0, None, False
        while not ended:
            ended = process.wait(READ_EVERY_S)
            with contextlib.suppress(ExactlyOnceError):  # the job itself says what is wrong with the brokers
                done, of = position()
                shown.move(bar, done, of, last=ended)
        if not process.succeeded:
            raise JobFailed(why_failed(instance, process))
    return done


def _stream_progress(kafka: KafkaTransactionalProducerFactory, environment: Environment) -> Callable[[], Position]:
    """Return what counts the offsets of ``flights`` that the stream has committed, by its checkpoint."""
    checkpoints = resources(environment.folder)["checkpoints"]
    location = checkpoints.location(kafka.cluster_id(), SINK_ID)

    def position() -> Position:
        with Admin(kafka.connection()) as admin:
            marks = admin.watermarks(FLIGHTS)
        committed = checkpoints.committed_offsets(location).get(FLIGHTS, {})
        done = sum(max(0, committed.get(p, 0) - w.low) for p, w in marks.items())
        return done, sum(w.last_stable - w.low for w in marks.values())

    return position


def _metadata(instance: dg.DagsterInstance, asset: str) -> dict[str, Any]:
    """Return the numbers of the newest materialization of ``asset``."""
    event = instance.get_latest_materialization_event(dg.AssetKey(asset))
    materialization = event.asset_materialization if event else None
    return {k: v.value for k, v in materialization.metadata.items()} if materialization else {}
