#!/usr/bin/env bash
# A plain Dagster sensor that raises is evaluated again with the same cursor. A run failure sensor that raises (its
# webhook does not answer) has its cursor moved on behind the failed run all the same: it is not called for that run
# again, so the notice of a failure is lost with the first error. The tick is shown as failed once, and the next ones
# are skipped.
# Release: dagster 1.13.29. Needs: Python 3.11 or later with pip. Takes one to two minutes.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'kill ${PIDS:-} 2>/dev/null || true; wait; rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check dagster==1.13.29

export DAGSTER_HOME=$WORK/home DAGSTER_DISABLE_TELEMETRY=1 CALLS=$WORK/calls
mkdir "$DAGSTER_HOME" "$CALLS"
echo 'run_coordinator: {module: dagster.core.run_coordinator, class: DefaultRunCoordinator}' \
    >"$DAGSTER_HOME/dagster.yaml"
cat >"$WORK/location.py" <<'PYTHON'
import os
from pathlib import Path

import dagster as dg

RUNNING = {"minimum_interval_seconds": 1, "default_status": dg.DefaultSensorStatus.RUNNING}


def told(name, what):
    """Note the call and return how many there were."""
    with (Path(os.environ["CALLS"]) / name).open("a") as file:
        file.write(f"{what}\n")
    return len((Path(os.environ["CALLS"]) / name).read_text().splitlines())


@dg.op
def fail():
    raise RuntimeError("the stream is down")


@dg.job
def stream():
    fail()


@dg.sensor(job=stream, **RUNNING)
def starter(context):
    failures = context.instance.get_runs_count(dg.RunsFilter(statuses=[dg.DagsterRunStatus.FAILURE]))
    if (Path(os.environ["CALLS"]) / "ready").exists() and failures < 2:
        yield dg.RunRequest(run_key=f"failure {failures + 1}")


@dg.run_failure_sensor(monitored_jobs=[stream], **RUNNING)
def notify(context):
    if told("notify", context.dagster_run.tags["dagster/run_key"]) == 1:
        raise ConnectionError("the webhook does not answer")


@dg.sensor(**RUNNING)
def plain(context):
    if told("plain", context.cursor) <= 2:
        raise ConnectionError("the webhook does not answer")
    context.update_cursor("moved")


defs = dg.Definitions(jobs=[stream], sensors=[starter, notify, plain])
PYTHON

cat >"$WORK/show.py" <<'PYTHON'
import importlib.metadata
import os
import time
from pathlib import Path

import dagster as dg

calls = Path(os.environ["CALLS"])
instance = dg.DagsterInstance.get()


def lines(name):
    return (calls / name).read_text().splitlines() if (calls / name).exists() else []


def ticks(name):
    state = next((s for s in instance.all_instigator_state() if s.instigator_name == name), None)
    return instance.get_ticks(state.instigator_origin_id, state.selector_id) if state else []


def until(what, condition):
    end = time.monotonic() + 240
    while not condition():
        if time.monotonic() > end:
            raise SystemExit(f"Not seen within four minutes: {what}")
        time.sleep(0.2)


until("a first tick of the failure sensor", lambda: any(t.status.value == "SKIPPED" for t in ticks("notify")))
(calls / "ready").touch()
until("the second failure", lambda: "failure 2" in lines("notify"))
seen = len(ticks("notify"))
until("five more ticks of the failure sensor", lambda: len(ticks("notify")) >= seen + 5)
until("the plain sensor's third call", lambda: len(lines("plain")) >= 3)
failed = [t for t in ticks("notify") if t.status.value == "FAILURE"]
print("dagster", importlib.metadata.version("dagster"))
print("the run failure sensor raised in its first call; its calls were for:", ", ".join(lines("notify")))
print("its failed ticks:", len(failed))
cursors = ", ".join(lines("plain")[:3])
print("the plain sensor raised in its first two calls; the cursors of its first three calls:", cursors)
PYTHON
"$PY" -c "import dagster; dagster.DagsterInstance.get()" 2>"$WORK/instance.log" # two at once would race
"$WORK/venv/bin/dagster-daemon" run -f "$WORK/location.py" >"$WORK/daemon.log" 2>&1 &
PIDS=$!
"$PY" "$WORK/show.py" >"$WORK/seen" 2>"$WORK/show.log"

cat >"$WORK/expected" <<'EXPECTED'
dagster 1.13.29
the run failure sensor raised in its first call; its calls were for: failure 1, failure 2
its failed ticks: 1
the plain sensor raised in its first two calls; the cursors of its first three calls: None, None, None
EXPECTED
what="a run failure sensor that raises is not called again for that failed run, while a plain sensor is evaluated again"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
