"""What a person does in the UI, over its own interface: GraphQL."""

import json
import time
import urllib.request

SELECTOR = {"repositoryLocationName": "platform_assets", "repositoryName": "__repository__"}
OVER = ("SUCCESS", "FAILURE", "CANCELED")

LAUNCH = """mutation L($selector: JobOrPipelineSelector!, $config: RunConfigData!) { launchRun(executionParams: {
  selector: $selector, runConfigData: $config}) { __typename ... on LaunchRunSuccess { run { runId } }
  ... on PythonError { message } } }"""
RUN = "query R($id: ID!) { runOrError(runId: $id) { ... on Run { status tags { key value } } } }"
RUNS = """query R($filter: RunsFilter) { runsOrError(filter: $filter, limit: 100) { ... on Runs { results {
  runId status jobName creationTime startTime endTime tags { key value } } } } }"""
TERMINATE = """mutation T($id: String!) { terminateRun(runId: $id, terminatePolicy: SAFE_TERMINATE) { __typename } }"""
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
RELOAD = """mutation R { reloadRepositoryLocation(repositoryLocationName: "platform_assets") { __typename
  ... on WorkspaceLocationEntry { loadStatus locationOrLoadError { __typename } } } }"""


class Client:
    """A web server of Dagster, at ``url``."""

    def __init__(self, url):
        self.url = url

    def launch(self, job, config=None):
        """Launch a job as the launchpad does; returns the run's id."""
        answer = self.graphql(LAUNCH, selector={**SELECTOR, "jobName": job}, config=config or {})["launchRun"]
        assert answer["__typename"] == "LaunchRunSuccess", answer
        return answer["run"]["runId"]

    def status(self, run_id):
        return self.graphql(RUN, id=run_id)["runOrError"]["status"]

    def tags(self, run_id):
        return {t["key"]: t["value"] for t in self.graphql(RUN, id=run_id)["runOrError"]["tags"]}

    def runs(self, job, after=None, **tags):
        """The runs of a job with ``tags``, newest first; only those since the run ``after``."""
        wanted = [{"key": key, "value": value} for key, value in tags.items()]
        found = self.graphql(RUNS, filter={"pipelineName": job, "tags": wanted})["runsOrError"]["results"]
        for run in found:
            run["tags"] = {t["key"]: t["value"] for t in run["tags"]}
        ids = [r["runId"] for r in found]
        return found[: ids.index(after)] if after in ids else found

    def live(self, job):
        """The runs of a job that are not over."""
        return [r for r in self.runs(job) if r["status"] not in OVER]

    def terminate(self, run_id):
        self.graphql(TERMINATE, id=run_id)

    def wait_for(self, run_id, status, timeout_s):
        """Wait for a status; returns the seconds it took. A run that ended otherwise fails the test at once."""
        began = time.monotonic()
        while (found := self.status(run_id)) != status:
            over = found in OVER or time.monotonic() - began > timeout_s
            assert not over, (
                f"{run_id} is {found}, not {status}, after {time.monotonic() - began:.0f} s\n{self.tail(run_id)}"
            )
            time.sleep(0.2)
        return time.monotonic() - began

    def events(self, run_id):
        return self.graphql(LOGS, id=run_id)["logsForRun"]["events"]

    def tail(self, run_id):
        return "\n".join(e.get("message") or e["__typename"] for e in self.events(run_id)[-20:])

    def materialized(self, run_id, asset):
        """The metadata of every materialization of ``asset`` in a run."""
        return self._of(run_id, asset, "MaterializationEvent")

    def reported(self, run_id, asset):
        """The metadata of every report of progress on ``asset`` in a run."""
        return self._of(run_id, asset, "ObservationEvent")

    def materialize(self, *assets):
        """Press Materialize on the page of an asset; returns the run's id."""
        selector = {**SELECTOR, "jobName": "__ASSET_JOB", "assetSelection": [{"path": [a]} for a in assets]}
        answer = self.graphql(LAUNCH, selector=selector, config={})["launchRun"]
        assert answer["__typename"] == "LaunchRunSuccess", answer
        return answer["run"]["runId"]

    def _of(self, run_id, asset, kind):
        return [
            metadata(e) for e in self.events(run_id) if e["__typename"] == kind and e["assetKey"]["path"] == [asset]
        ]

    def observations(self, asset):
        """The metadata of the observations of an asset, newest first."""
        found = self.graphql(OBSERVATIONS, key={"path": [asset]})["assetOrError"]["assetObservations"]
        return [metadata(o) | {"description": o["description"]} for o in found]

    def recoveries(self, asset):
        """The metadata of the recoveries that the transactions' asset of a stream keeps, newest first."""
        found = self.graphql(MATERIALIZATIONS, key={"path": [asset]})["assetOrError"]["assetMaterializations"]
        return [metadata(m) for m in found]

    def sensor(self, name):
        """State and ticks, newest first."""
        return self.graphql(SENSOR, selector={**SELECTOR, "sensorName": name})["sensorOrError"]

    def said(self, name):
        """What the ticks of a sensor said, newest first; ticks without a reason have asked for a run."""
        return [t["skipReason"] or "" for t in self.sensor(name)["sensorState"]["ticks"]]

    def switch(self, name, on):
        """Toggle a sensor."""
        if on:
            self.graphql(START, selector={**SELECTOR, "sensorName": name})
        else:
            self.graphql(STOP, id=self.sensor(name)["id"])
        assert self.sensor(name)["sensorState"]["status"] == ("RUNNING" if on else "STOPPED")

    def backfill(self, asset, days):
        """Launch a backfill as the asset's page does; returns its id."""
        params = {"assetSelection": [{"path": [asset]}], "partitionNames": days}
        answer = self.graphql(BACKFILL, params=params)["launchPartitionBackfill"]
        assert answer["__typename"] == "LaunchBackfillSuccess", answer
        return answer["backfillId"]

    def backfill_status(self, backfill_id):
        return self.graphql(BACKFILL_STATUS, id=backfill_id)["partitionBackfillOrError"]

    def checks(self, asset):
        """The latest execution of each check, by name."""
        node = self.graphql(CHECKS, key={"path": [asset]})["assetNodeOrError"]
        return {c["name"]: c["executionForLatestMaterialization"] for c in node["assetChecksOrError"]["checks"]}

    def reload(self):
        """Reload the code location, as the button in the UI does."""
        answer = self.graphql(RELOAD)["reloadRepositoryLocation"]
        assert answer.get("locationOrLoadError", {}).get("__typename") == "RepositoryLocation", answer

    def graphql(self, query, **variables):
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(f"{self.url}/graphql", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            found = json.load(answer)
        assert "errors" not in found, found
        return found["data"]


def metadata(event):
    """The metadata of an event, by label."""
    kinds = ("text", "boolValue", "intValue", "floatValue", "table")
    return {
        m["label"]: next((m[kind] for kind in kinds if m.get(kind) is not None), None)
        for m in event.get("metadataEntries") or event.get("failureMetadata", {}).get("metadataEntries", [])
    }
