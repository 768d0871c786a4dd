"""Dagster as a user runs it: `dagster dev` with web server, daemon and code server, driven over GraphQL."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request

from tests.dagster.conftest import ROOT
from tests.support.processes import until

LAUNCH = """mutation L($job: String!, $config: RunConfigData!) { launchRun(executionParams: {selector: {
  repositoryLocationName: "platform_assets", repositoryName: "__repository__", jobName: $job}, runConfigData: $config})
  { __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }"""
STATUS = """query S($id: ID!) { runOrError(runId: $id) { __typename ... on Run { status tags { key value } } } }"""
TERMINATE = """mutation T($id: String!) { terminateRun(runId: $id, terminatePolicy: SAFE_TERMINATE) { __typename } }"""
LOGS = """query G($id: ID!) { logsForRun(runId: $id) { __typename ... on EventConnection { events { __typename
  ... on MessageEvent { message }
  ... on ExecutionStepFailureEvent { error { message } failureMetadata { metadataEntries { label
    ... on TextMetadataEntry { text } ... on BoolMetadataEntry { boolValue } } } }
  ... on MaterializationEvent { assetKey { path } metadataEntries { label ... on IntMetadataEntry { intValue }
    ... on FloatMetadataEntry { floatValue } } } } } } }"""


class WebServer:
    """`dagster dev` of a site."""

    def __init__(self, site):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/graphql"
        self.log = site.folder / "dagster.log"
        command = [sys.executable, "-m", "dagster", "dev", "-w", "workspace.yaml", "-h", "127.0.0.1", "-p", str(port)]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=site.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def __enter__(self):
        until("the web server", self._answers, 120, every_s=0.5)
        return self

    def __exit__(self, *error):
        self.process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def launch(self, job, config=None):
        """Launch a job as the launchpad does; returns the run's id."""
        answer = self.graphql(LAUNCH, job=job, config=config or {})["launchRun"]
        assert answer["__typename"] == "LaunchRunSuccess", answer
        return answer["run"]["runId"]

    def status(self, run_id):
        return self.graphql(STATUS, id=run_id)["runOrError"]["status"]

    def tags(self, run_id):
        return {t["key"]: t["value"] for t in self.graphql(STATUS, id=run_id)["runOrError"]["tags"]}

    def terminate(self, run_id):
        self.graphql(TERMINATE, id=run_id)

    def wait_for(self, run_id, status, timeout_s):
        """Wait for a status; returns the seconds it took. A run that ended otherwise fails the test at once."""
        began = time.monotonic()
        while (found := self.status(run_id)) != status:
            over = found in ("SUCCESS", "FAILURE", "CANCELED") or time.monotonic() - began > timeout_s
            assert not over, (
                f"{run_id} is {found}, not {status}, after {time.monotonic() - began:.0f} s\n{self.tail(run_id)}"
            )
            time.sleep(0.2)
        return time.monotonic() - began

    def events(self, run_id):
        return self.graphql(LOGS, id=run_id)["logsForRun"]["events"]

    def tail(self, run_id):
        return "\n".join(e.get("message") or e["__typename"] for e in self.events(run_id)[-20:])

    def graphql(self, query, **variables):
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(self.url, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            found = json.load(answer)
        assert "errors" not in found, found
        return found["data"]

    def _answers(self):
        assert self.process.poll() is None, self.log.read_text()[-3000:]
        with contextlib.suppress(OSError):
            return self.graphql("query { repositoriesOrError { __typename } }")
        return False
