#!/usr/bin/env bash
# Dagster launches one run for each run key of a sensor, it says. What it remembers are the runs, not the keys: when
# somebody deletes old runs (the Delete button, "dagster run delete", a clean-up job), the sensor that still names
# their keys launches them again at its next tick.
# Release: dagster 1.13.29. Needs: Python 3.11 or later with pip. Takes about one minute.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'kill ${PIDS:-} 2>/dev/null || true; wait; rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check dagster==1.13.29

export DAGSTER_HOME=$WORK/home DAGSTER_DISABLE_TELEMETRY=1
mkdir "$DAGSTER_HOME"
echo 'run_coordinator: {module: dagster.core.run_coordinator, class: DefaultRunCoordinator}' \
    >"$DAGSTER_HOME/dagster.yaml"
cat >"$WORK/location.py" <<'PYTHON'
import dagster as dg


@dg.op
def load():
    pass


@dg.job
def load_file():
    load()


@dg.sensor(job=load_file, minimum_interval_seconds=1, default_status=dg.DefaultSensorStatus.RUNNING)
def files(context):
    """Name the three files that lie there, at each tick: the run keys are to launch each of them once."""
    for name in ("a", "b", "c"):
        yield dg.RunRequest(run_key=name)


defs = dg.Definitions(jobs=[load_file], sensors=[files])
PYTHON

cat >"$WORK/show.py" <<'PYTHON'
import importlib.metadata
import time

import dagster as dg

instance = dg.DagsterInstance.get()


def skipped():
    state = next((s for s in instance.all_instigator_state() if s.instigator_name == "files"), None)
    ticks = instance.get_ticks(state.instigator_origin_id, state.selector_id) if state else []
    return sum(t.status.value == "SKIPPED" for t in ticks)


def until(what, condition):
    end = time.monotonic() + 240
    while not condition():
        if time.monotonic() > end:
            raise SystemExit(f"Not seen within four minutes: {what}")
        time.sleep(0.2)


def runs():
    return {r.tags["dagster/run_key"]: r for r in instance.get_runs()}


def settled():
    return len(runs()) == 3 and all(r.is_finished for r in runs().values())


print("dagster", importlib.metadata.version("dagster"))
until("three finished runs", settled)
before, ticks = runs(), skipped()
until("two more ticks", lambda: skipped() >= ticks + 2)
print("runs that later ticks launched for the keys a, b and c:", len(instance.get_runs()) - 3)
instance.delete_run(before["a"].run_id)
until("a run for the key of the deleted run", lambda: "a" in runs())
ticks = skipped()
until("two more ticks", lambda: skipped() >= ticks + 2)
after = runs()
again = [key for key in sorted(after) if after[key].run_id != before[key].run_id]
print("launched again after the run of the key a was deleted:", again)
print("runs now:", len(instance.get_runs()))
PYTHON
"$PY" -c "import dagster; dagster.DagsterInstance.get()" 2>"$WORK/instance.log" # two at once would race
"$WORK/venv/bin/dagster-daemon" run -f "$WORK/location.py" >"$WORK/daemon.log" 2>&1 &
PIDS=$!
"$PY" "$WORK/show.py" >"$WORK/seen" 2>"$WORK/show.log"

cat >"$WORK/expected" <<'EXPECTED'
dagster 1.13.29
runs that later ticks launched for the keys a, b and c: 0
launched again after the run of the key a was deleted: ['a']
runs now: 3
EXPECTED
what="a sensor launches a run key again once the run that had it was deleted"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
