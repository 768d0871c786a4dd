"""`make ui`: Dagster's web server and daemon beside a broker, with the main job as a stream that runs until it is
stopped.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dagster as dg
from rich.console import Console

from dagster_exactly_once.resources.kafka import KafkaTransactionalProducerFactory
from dagster_exactly_once.runs.process import fail_dead_runs
from exactly_once_local.cluster.guard import kill_session
from exactly_once_local.ports import HOST, free_port, is_free
from platform_assets.constants import CODE_LOCATION, FEED_JOB
from platform_assets.flights.asset import create_topic
from platform_assets.flights.names import STREAM_JOB
from platform_assets.local.environment import PROJECT, Environment

#: Dagster's usual port; another one when it is taken.
PORT = 3000
START_BUDGET_S = 120.0
#: Runs are CANCELED within 15 s; Dagster's own processes take some seconds more.
RUNS_BUDGET_S = 20.0
STOP_BUDGET_S = 20.0

#: Slow enough to watch the stream for some minutes.
EVENTS_PER_SECOND = 2_000

_LAUNCH = """
mutation Launch($job: String!, $config: RunConfigData!, $location: String!) {
  launchRun(executionParams: {
    selector: {repositoryLocationName: $location, repositoryName: "__repository__", jobName: $job},
    runConfigData: $config
  }) { __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } }
}
"""
_IN_PROGRESS = """
query { runsOrError(filter: {statuses: [QUEUED, NOT_STARTED, STARTING, STARTED, CANCELING]}) {
  ... on Runs { results { runId } } } }
"""
_TERMINATE = """
mutation Terminate($ids: [String!]!) { terminateRuns(runIds: $ids, terminatePolicy: SAFE_TERMINATE) { __typename } }
"""


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
    with _dagster_dev(environment) as (process, url):
        _await(process, url, environment)
        console.print(f"Dagster: [bold]{url}[/]   Ctrl-C stops all", highlight=False)
        try:
            if launch:
                create_topic(KafkaTransactionalProducerFactory(bootstrap_servers=os.environ["KAFKA_BOOTSTRAP_SERVERS"]))
                feed = {"ops": {"flights": {"config": {"events_per_second": EVENTS_PER_SECOND}}}}
                for job, config in ((STREAM_JOB, {}), (FEED_JOB, feed)):
                    run_id = _launch(url, job, config)
                    console.print(f"  {job}: {url}/runs/{run_id}", highlight=False)
            return process.wait()
        except KeyboardInterrupt:
            console.print("Stopping: runs first, then Dagster, then the broker.")
            _terminate_runs(url)
            return 0


@contextmanager
def _dagster_dev(environment: Environment) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    port = PORT if is_free(PORT) else free_port()
    command = [sys.executable, "-m", "dagster", "dev", "-w", str(environment.workspace), "-h", HOST, "-p", str(port)]
    with (environment.logs / "dagster.log").open("w") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=PROJECT, start_new_session=True
        )
    try:
        yield process, f"http://{HOST}:{port}"
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
        with contextlib.suppress(OSError, ValueError):
            if _graphql(url, "query { repositoriesOrError { __typename } }", {})["repositoriesOrError"]:
                return
        time.sleep(0.5)
    raise WebServerFailed(f"Dagster did not answer at {url}; see {environment.logs / 'dagster.log'}")


def _terminate_runs(url: str) -> None:
    """Ask every run to end, and wait for that; errors must not leave processes behind."""
    end = time.monotonic() + RUNS_BUDGET_S
    asked: set[str] = set()
    with contextlib.suppress(OSError, ValueError, KeyError):
        while time.monotonic() < end:
            runs = {r["runId"] for r in _graphql(url, _IN_PROGRESS, {})["runsOrError"]["results"]}
            if not runs:
                return
            if runs - asked:
                _graphql(url, _TERMINATE, {"ids": sorted(runs - asked)})
                asked |= runs
            time.sleep(0.5)


def _launch(url: str, job: str, config: dict[str, Any]) -> str:
    variables = {"job": job, "config": config, "location": CODE_LOCATION}
    run_id: str = _graphql(url, _LAUNCH, variables)["launchRun"]["run"]["runId"]
    return run_id


def _graphql(url: str, query: str, variables: dict[str, Any]) -> dict[str, Any]:
    body = json.dumps({"query": query, "variables": variables}).encode()
    request = urllib.request.Request(f"{url}/graphql", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            data: dict[str, Any] = json.load(answer)["data"]
            return data
    except urllib.error.HTTPError as e:
        raise OSError(f"{url}: {e.read()[:500]!r}") from e
