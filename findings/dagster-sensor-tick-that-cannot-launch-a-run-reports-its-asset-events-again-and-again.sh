#!/usr/bin/env bash
# A Dagster sensor returns run requests, an asset event and a new cursor in one result. If one request cannot be
# launched (a value of its run config is refused), the tick fails and the sensor's cursor stays, as with a sensor that
# raises. But the result is not undone: the asset event is stored, and stored again at each new evaluation, for ever;
# a request before the refused one is launched, one behind it never is. The failed tick itself shows the new cursor.
# Release: dagster 1.13.29. Needs: Python 3.11 or later with pip. Takes one to two minutes.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'kill ${PIDS:-} 2>/dev/null || true; wait; rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check dagster==1.13.29

export DAGSTER_HOME=$WORK/home DAGSTER_DISABLE_TELEMETRY=1 EVALUATIONS=$WORK/evaluations
mkdir "$DAGSTER_HOME"
echo 'run_coordinator: {module: dagster.core.run_coordinator, class: DefaultRunCoordinator}' \
    >"$DAGSTER_HOME/dagster.yaml"
cat >"$WORK/location.py" <<'PYTHON'
import os

import dagster as dg

RUNNING = {"minimum_interval_seconds": 1, "default_status": dg.DefaultSensorStatus.RUNNING}


@dg.op(config_schema={"rows": int})
def load():
    pass


@dg.job
def load_file():
    load()


@dg.sensor(job=load_file, **RUNNING)
def files(context):
    """Ask for a run for each of three files; the second has a wrong number of rows."""
    if context.cursor:
        return dg.SkipReason("no more files")
    with open(os.environ["EVALUATIONS"], "a") as file:
        file.write(".")
    requests = [
        dg.RunRequest(f"file {number}", run_config={"ops": {"load": {"config": {"rows": rows}}}})
        for number, rows in ((1, 10), (2, "unknown"), (3, 30))
    ]
    return dg.SensorResult(requests, asset_events=[dg.AssetMaterialization("seen")], cursor="three files")


defs = dg.Definitions(jobs=[load_file], sensors=[files])
PYTHON

cat >"$WORK/show.py" <<'PYTHON'
import importlib.metadata
import os
import time
from pathlib import Path

import dagster as dg

instance, evaluations = dg.DagsterInstance.get(), Path(os.environ["EVALUATIONS"])


def count():
    return evaluations.stat().st_size if evaluations.exists() else 0


end = time.monotonic() + 240
while count() < 4:
    if time.monotonic() > end:
        raise SystemExit("The sensor was not evaluated four times within four minutes")
    time.sleep(0.2)
state = next(s for s in instance.all_instigator_state() if s.instigator_name == "files")
ended = [t for t in instance.get_ticks(state.instigator_origin_id, state.selector_id) if t.status.value != "STARTED"]
events = len(instance.fetch_materializations(dg.AssetKey("seen"), limit=100).records)
print("dagster", importlib.metadata.version("dagster"))
print("ticks:", sorted({f"{t.status.value}, shown with the cursor {t.cursor}" for t in ended}))
print("cursor of the sensor:", state.instigator_data.cursor)
print("runs:", [r.tags["dagster/run_key"] for r in instance.get_runs()])
events = "3 or 4" if events in (3, 4) else events
print("asset events of the one thing that was seen, at the fourth evaluation:", events)
PYTHON
"$PY" -c "import dagster; dagster.DagsterInstance.get()" 2>"$WORK/instance.log" # two at once would race
"$WORK/venv/bin/dagster-daemon" run -f "$WORK/location.py" >"$WORK/daemon.log" 2>&1 &
PIDS=$!
"$PY" "$WORK/show.py" >"$WORK/seen" 2>"$WORK/show.log"

cat >"$WORK/expected" <<'EXPECTED'
dagster 1.13.29
ticks: ['FAILURE, shown with the cursor three files']
cursor of the sensor: None
runs: ['file 1']
asset events of the one thing that was seen, at the fourth evaluation: 3 or 4
EXPECTED
what="a sensor's tick that cannot launch one of its runs keeps the cursor and stores its asset events at each evaluation"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
