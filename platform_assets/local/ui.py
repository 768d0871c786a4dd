"""`make ui`: Dagster's web server and daemon beside a broker, with the main job as a stream that runs until it is
stopped.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg
from dagster_graphql import DagsterGraphQLClient, DagsterGraphQLClientError
from rich.console import Console

from dagster_exactly_once import KafkaTransactionalProducerFactory
from dagster_exactly_once.runs.process import UNFINISHED, fail_dead_runs
from exactly_once_local.cluster.guard import kill_session
from exactly_once_local.duel.departures import DEPARTURES
from exactly_once_local.ports import HOST, free_port, is_free
from platform_assets.constants import CODE_LOCATION, FEED_JOB, FLIGHTS
from platform_assets.flights.asset import create_topic
from platform_assets.flights.feed import committed_position
from platform_assets.flights.names import STREAM_JOB
from platform_assets.local.environment import PROJECT, Environment

#: Dagster's usual port; another one when it is taken.
PORT = 3000
START_BUDGET_S = 120.0
#: Seconds for runs to end: they are CANCELED within 15 s, and Dagster's own processes take some seconds more.
RUNS_BUDGET_S = 20.0
STOP_BUDGET_S = 20.0

#: The pace of the feed in events: slow enough to watch the stream for some minutes.
EVENTS_PER_SECOND = 2_000


class WebServerFailed(Exception):
    """Dagster did not start; the message names its log."""


def serve(environment: Environment, console: Console, launch: bool) -> int:
    """Run until Ctrl-C.

    Parameters
    ----------
    launch : bool
        Start the feed, slowly, and the stream.
    """
    with dg.DagsterInstance.get() as instance:
        fail_dead_runs(instance)
        with _dagster_dev(environment) as (process, port):
            url, client = f"http://{HOST}:{port}", DagsterGraphQLClient(HOST, port)
            _await(process, url, environment)
            console.print(f"Dagster: [bold]{url}[/]   Ctrl-C stops all", highlight=False)
            try:
                if launch:
                    kafka = KafkaTransactionalProducerFactory(bootstrap_servers=os.environ["KAFKA_BOOTSTRAP_SERVERS"])
                    create_topic(kafka)
                    if why := why_at_rest(kafka, environment.embedded):
                        console.print(why, highlight=False)
                    feed = {"ops": {"flights": {"config": {"events_per_second": EVENTS_PER_SECOND}}}}
                    for job, config in ((STREAM_JOB, {}), (FEED_JOB, feed)):
                        run_id = client.submit_job_execution(job, CODE_LOCATION, "__repository__", config)
                        console.print(f"  {job}: {url}/runs/{run_id}", highlight=False)
                return process.wait()
            except KeyboardInterrupt:
                console.print("Stopping: runs first, then Dagster, then the broker.")
                _terminate_runs(client, instance)
                return 0


def why_at_rest(kafka: KafkaTransactionalProducerFactory, embedded: bool, topic: str = FLIGHTS) -> str:
    """Return why the pages will show a stream at rest; "" while there is something to feed."""
    if committed_position(kafka.connection().librdkafka(), topic) < DEPARTURES:
        return ""
    return (
        f"All {DEPARTURES:,} flights are in the topic {topic} since an earlier run: the stream waits, its lag is 0, "
        "and its plots stay as they are. To watch the flights come, begin "
        f"{'with make clean' if embedded else 'on a cluster without these topics'}."
    )


@contextmanager
def _dagster_dev(environment: Environment) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    port = PORT if is_free(PORT) else free_port()
    command = [sys.executable, "-m", "dagster", "dev", "-w", str(environment.workspace), "-h", HOST, "-p", str(port)]
    with (environment.logs / "dagster.log").open("w") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=PROJECT, start_new_session=True
        )
    try:
        yield process, port
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            process.wait(STOP_BUDGET_S)
        kill_session(process.pid)
        process.wait()


def _await(process: subprocess.Popen[bytes], url: str, environment: Environment) -> None:
    end = time.monotonic() + START_BUDGET_S
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/server_info", timeout=5):
            return
        time.sleep(0.5)
    raise WebServerFailed(f"Dagster did not answer at {url}; see {environment.logs / 'dagster.log'}")


def _terminate_runs(client: DagsterGraphQLClient, instance: dg.DagsterInstance) -> None:
    """Ask every run to end, and wait for that; errors must not leave processes behind."""
    end = time.monotonic() + RUNS_BUDGET_S
    asked: set[str] = set()
    while time.monotonic() < end:
        runs = {run.run_id for run in instance.get_runs(dg.RunsFilter(statuses=UNFINISHED))}
        if not runs:
            return
        for run in sorted(runs - asked):
            if time.monotonic() >= end:
                return
            with contextlib.suppress(DagsterGraphQLClientError):  # it has ended meanwhile, or is asked again
                client.terminate_run(run)
                asked.add(run)
        time.sleep(0.5)
