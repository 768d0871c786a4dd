"""The actions of a person in the UI: by Dagster's own client, or by the query of the page where that has no method."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import gql
from dagster_graphql import DagsterGraphQLClient, ReloadRepositoryLocationStatus
from gql.transport.exceptions import TransportError
from gql.transport.requests import RequestsHTTPTransport

LOCATION = "platform_assets"
REPOSITORY = "__repository__"
SELECTOR = {"repositoryLocationName": LOCATION, "repositoryName": REPOSITORY}
OVER = ("SUCCESS", "FAILURE", "CANCELED")

#: Of one call: a run that Terminate waits for holds the answer back.
CALL_S = 60

RUNS = """query R($filter: RunsFilter) { runsOrError(filter: $filter, limit: 100) { ... on Runs { results {
  runId status jobName creationTime startTime endTime tags { key value } } } } }"""
LOADED = "query { repositoriesOrError { ... on RepositoryConnection { nodes { name } } } }"
METADATA = """metadataEntries { label ... on TextMetadataEntry { text } ... on BoolMetadataEntry { boolValue }
  ... on IntMetadataEntry { intValue } ... on FloatMetadataEntry { floatValue }
  ... on TableMetadataEntry { table { records } } }"""
LOGS = f"""query G($id: ID!) {{ logsForRun(runId: $id) {{ ... on EventConnection {{ events {{ __typename
  ... on MessageEvent {{ message }}
  ... on ExecutionStepFailureEvent {{ error {{ message }} failureMetadata {{ {METADATA} }} }}
  ... on ExecutionStepOutputEvent {{ outputName stepKey {METADATA} }}
  ... on MaterializationEvent {{ assetKey {{ path }} partition {METADATA} }}
  ... on ObservationEvent {{ assetKey {{ path }} {METADATA} }} }} }} }} }}"""
OBSERVATIONS = f"""query O($key: AssetKeyInput!) {{ assetOrError(assetKey: $key) {{ ... on Asset {{
  assetObservations(limit: 100) {{ timestamp description {METADATA} }} }} }} }}"""
MATERIALIZATIONS = f"""query M($key: AssetKeyInput!) {{ assetOrError(assetKey: $key) {{ ... on Asset {{
  assetMaterializations(limit: 100) {{ timestamp description {METADATA} }} }} }} }}"""
SENSOR = """query S($selector: SensorSelector!) { sensorOrError(sensorSelector: $selector) { ... on Sensor { id
  sensorState { status ticks(limit: 100) { timestamp status skipReason runIds error { message } } } } } }"""
START = """mutation S($selector: SensorSelector!) { startSensor(sensorSelector: $selector) { __typename
  ... on Sensor { sensorState { status } } } }"""
STOP = """mutation S($id: String!) { stopSensor(id: $id) { __typename
  ... on StopSensorMutationResult { instigationState { status } } } }"""
BACKFILL = """mutation B($params: LaunchBackfillParams!) { launchPartitionBackfill(backfillParams: $params) {
  __typename ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message } } }"""
BACKFILL_STATUS = """query B($id: String!) { partitionBackfillOrError(backfillId: $id) { ... on PartitionBackfill {
  status runs { runId } error { message } } } }"""
CHECKS = f"""query C($key: AssetKeyInput!) {{ assetNodeOrError(assetKey: $key) {{ ... on AssetNode {{
  assetChecksOrError {{ ... on AssetChecks {{ checks {{ name executionForLatestMaterialization {{ status
  evaluation {{ success description timestamp {METADATA} }} }} }} }} }} }} }} }}"""


class Client:
    """The web server of a Dagster with one code location."""

    def __init__(self, host: str, port: int):
        self._host, self._port = host, port
        self.url = f"http://{host}:{port}"

    @property
    def _dagster(self) -> DagsterGraphQLClient:
        """One for each call: a test may press a button while another call waits."""
        return DagsterGraphQLClient(self._host, self._port, timeout=CALL_S)

    def graphql(self, query: str, **variables: Any) -> dict[str, Any]:
        """Return the answer to a query of a page.

        Over a transport of its own: the public methods of ``DagsterGraphQLClient`` submit, terminate and reload, and
        the one that takes any query is private.

        Raises
        ------
        OSError
            The web server does not answer.
        """
        transport = RequestsHTTPTransport(f"{self.url}/graphql", timeout=CALL_S)
        try:
            return dict(gql.Client(transport=transport).execute(gql.gql(query), variable_values=variables))
        except TransportError as error:
            raise OSError(f"{self.url}: {error}") from error

    def loaded(self) -> bool:
        """Return whether the code location has loaded."""
        return bool(self.graphql(LOADED)["repositoriesOrError"].get("nodes"))

    def launch(self, job: str, config: Mapping[str, Any] | None = None) -> str:
        """Launch a job as the launchpad does; returns the run's id."""
        return self._dagster.submit_job_execution(job, LOCATION, REPOSITORY, config or {})

    def materialize(self, *assets: str) -> str:
        """Press Materialize on the page of an asset; returns the run's id."""
        return self._dagster.submit_job_execution("__ASSET_JOB", LOCATION, REPOSITORY, {}, asset_selection=assets)

    def status(self, run_id: str) -> str:
        """Return the status of a run."""
        return self._dagster.get_run_status(run_id).value

    def terminate(self, run_id: str) -> None:
        """Press Terminate on the page of a run."""
        self._dagster.terminate_run(run_id)

    def reload(self) -> None:
        """Reload the code location, as the button in the UI does."""
        answer = self._dagster.reload_repository_location(LOCATION)
        assert answer.status is ReloadRepositoryLocationStatus.SUCCESS, answer

    def runs(self, job: str, after: str | None = None, **tags: str) -> list[dict[str, Any]]:
        """Return the runs of a job with ``tags``, newest first; only those since the run ``after``."""
        wanted = [{"key": key, "value": value} for key, value in tags.items()]
        found = list(self.graphql(RUNS, filter={"pipelineName": job, "tags": wanted})["runsOrError"]["results"])
        for run in found:
            run["tags"] = {t["key"]: t["value"] for t in run["tags"]}
        ids = [r["runId"] for r in found]
        return found[: ids.index(after)] if after in ids else found

    def live(self, job: str) -> list[dict[str, Any]]:
        """Return the runs of a job that are not over."""
        return [r for r in self.runs(job) if r["status"] not in OVER]

    def wait_for(self, run_id: str, status: str, timeout_s: float) -> float:
        """Wait for a status; returns the seconds it took. A run that ended otherwise fails the test at once."""
        began = time.monotonic()
        while (found := self.status(run_id)) != status:
            over = found in OVER or time.monotonic() - began > timeout_s
            assert not over, (
                f"{run_id} is {found}, not {status}, after {time.monotonic() - began:.0f} s\n{self.tail(run_id)}"
            )
            time.sleep(0.2)
        return time.monotonic() - began

    def events(self, run_id: str) -> list[dict[str, Any]]:
        """Return the events of a run."""
        return list(self.graphql(LOGS, id=run_id)["logsForRun"]["events"])

    def tail(self, run_id: str) -> str:
        """Return the last events of a run as text."""
        return "\n".join(e.get("message") or e["__typename"] for e in self.events(run_id)[-20:])

    def materialized(self, run_id: str, asset: str) -> list[dict[str, Any]]:
        """Return the metadata of every materialization of ``asset`` in a run."""
        return self._of(run_id, asset, "MaterializationEvent")

    def reported(self, run_id: str, asset: str) -> list[dict[str, Any]]:
        """Return the metadata of every report of progress on ``asset`` in a run."""
        return self._of(run_id, asset, "ObservationEvent")

    def _of(self, run_id: str, asset: str, kind: str) -> list[dict[str, Any]]:
        return [
            metadata(e) for e in self.events(run_id) if e["__typename"] == kind and e["assetKey"]["path"] == [asset]
        ]

    def observations(self, asset: str) -> list[dict[str, Any]]:
        """Return the metadata of the observations of an asset, newest first."""
        found = self.graphql(OBSERVATIONS, key={"path": [asset]})["assetOrError"]["assetObservations"]
        return [metadata(o) | {"description": o["description"]} for o in found]

    def recoveries(self, asset: str) -> list[dict[str, Any]]:
        """Return the metadata of the recoveries that the transactions' asset of a stream keeps, newest first."""
        found = self.graphql(MATERIALIZATIONS, key={"path": [asset]})["assetOrError"]["assetMaterializations"]
        return [metadata(m) for m in found]

    def sensor(self, name: str) -> dict[str, Any]:
        """Return state and ticks, newest first."""
        return dict(self.graphql(SENSOR, selector={**SELECTOR, "sensorName": name})["sensorOrError"])

    def said(self, name: str) -> list[str]:
        """Return what the ticks of a sensor said, newest first; ticks without a reason have asked for a run."""
        return [t["skipReason"] or "" for t in self.sensor(name)["sensorState"]["ticks"]]

    def switch(self, name: str, on: bool) -> None:
        """Toggle a sensor."""
        if on:
            self.graphql(START, selector={**SELECTOR, "sensorName": name})
        else:
            self.graphql(STOP, id=self.sensor(name)["id"])
        assert self.sensor(name)["sensorState"]["status"] == ("RUNNING" if on else "STOPPED")

    def backfill(self, asset: str, days: Sequence[str]) -> str:
        """Launch a backfill as the asset's page does; returns its id."""
        params = {"assetSelection": [{"path": [asset]}], "partitionNames": list(days)}
        answer = self.graphql(BACKFILL, params=params)["launchPartitionBackfill"]
        assert answer["__typename"] == "LaunchBackfillSuccess", answer
        return str(answer["backfillId"])

    def backfill_status(self, backfill_id: str) -> dict[str, Any]:
        """Return status, runs and error of a backfill."""
        return dict(self.graphql(BACKFILL_STATUS, id=backfill_id)["partitionBackfillOrError"])

    def checks(self, asset: str) -> dict[str, Any]:
        """Return the latest execution of each check, by name."""
        node = self.graphql(CHECKS, key={"path": [asset]})["assetNodeOrError"]
        return {c["name"]: c["executionForLatestMaterialization"] for c in node["assetChecksOrError"]["checks"]}


def metadata(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of an event, by label."""
    kinds = ("text", "boolValue", "intValue", "floatValue", "table")
    entries: Iterable[Mapping[str, Any]] = event.get("metadataEntries") or event.get("failureMetadata", {}).get(
        "metadataEntries", []
    )
    return {m["label"]: next((m[kind] for kind in kinds if m.get(kind) is not None), None) for m in entries}
