#!/usr/bin/env bash
# The scheduler's setting max_catchup_runs is described as the number of past partitions that a partitioned schedule
# makes up for after a downtime (5 by default). With it set to 24, the daemon away for eight hours, and a schedule
# made by build_schedule_from_partitioned_job for an hourly asset, Dagster launches one run, of the newest hour. The
# seven hours before are missing, and nothing is red.
# The downtime is played by setting the schedule's own marks eight hours back, as an older daemon would have left
# them.
# Release: dagster 1.13.29. Needs: Python 3.11 or later with pip. Takes one to two minutes.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check dagster==1.13.29

export DAGSTER_HOME=$WORK/home DAGSTER_DISABLE_TELEMETRY=1
mkdir "$DAGSTER_HOME"
cat >"$DAGSTER_HOME/dagster.yaml" <<'YAML'
run_coordinator: {module: dagster.core.run_coordinator, class: DefaultRunCoordinator}
scheduler: {module: dagster.core.scheduler, class: DagsterDaemonScheduler, config: {max_catchup_runs: 24}}
YAML
cat >"$WORK/location.py" <<'PYTHON'
import dagster as dg


@dg.asset(partitions_def=dg.HourlyPartitionsDefinition("2026-01-01-00:00"))
def hour():
    pass


job = dg.define_asset_job("load_hour", selection=[hour])
schedule = dg.build_schedule_from_partitioned_job(
    job, name="each_hour", default_status=dg.DefaultScheduleStatus.RUNNING
)
defs = dg.Definitions(assets=[hour], jobs=[job], schedules=[schedule])
PYTHON

cat >"$WORK/show.py" <<'PYTHON'
import importlib.metadata
import subprocess
import sys
import time
from pathlib import Path

import dagster as dg

daemon, folder = sys.argv[1], Path(sys.argv[2])
instance = dg.DagsterInstance.get()
AWAY = 8 * 3600


def schedule():
    return next((s for s in instance.all_instigator_state() if s.instigator_name == "each_hour"), None)


def until(what, condition):
    end = time.monotonic() + 240
    while not condition():
        if time.monotonic() > end:
            raise SystemExit(f"Not seen within four minutes: {what}")
        time.sleep(0.2)


def under_a_daemon(what, condition):
    with (folder / "daemon.log").open("a") as log:
        process = subprocess.Popen(
            [daemon, "run", "-f", str(folder / "location.py")], stdout=log, stderr=subprocess.STDOUT
        )
        try:
            until(what, condition)
        finally:
            process.terminate()
            process.wait(60)


if time.time() % 3600 > 3500:  # the next hour would begin within the trial
    time.sleep(3601 - time.time() % 3600)
under_a_daemon("the schedule's first evaluation", lambda: schedule() and schedule().instigator_data.start_timestamp)
state = schedule()
old = time.time() - AWAY
marks = state.instigator_data._replace(start_timestamp=old, last_iteration_timestamp=old)
instance.update_instigator_state(state.with_data(marks))
under_a_daemon("runs, all of them finished", lambda: (r := instance.get_runs()) and all(x.is_finished for x in r))
ticks = instance.get_ticks(state.instigator_origin_id, state.selector_id)
newest = time.strftime("%Y-%m-%d-%H:00", time.gmtime(time.time() - 3600))
keys = [r.tags["dagster/partition"] for r in instance.get_runs()]
print("dagster", importlib.metadata.version("dagster"))
print("max_catchup_runs:", instance.scheduler.max_catchup_runs, "- hours in which the daemon was away:", AWAY // 3600)
print("ticks:", [t.status.value for t in ticks], "- runs:", len(keys))
print("the run is of the newest hour:", keys == [newest])
warning = "has no partition set, so not trying to catch up"
print("the daemon's log says that the schedule", warning + ":", warning in (folder / "daemon.log").read_text())
PYTHON
"$PY" "$WORK/show.py" "$WORK/venv/bin/dagster-daemon" "$WORK" >"$WORK/seen" 2>"$WORK/show.log"

cat >"$WORK/expected" <<'EXPECTED'
dagster 1.13.29
max_catchup_runs: 24 - hours in which the daemon was away: 8
ticks: ['SUCCESS'] - runs: 1
the run is of the newest hour: True
the daemon's log says that the schedule has no partition set, so not trying to catch up: True
EXPECTED
what="a partitioned schedule launches the newest hour alone after a downtime, whatever max_catchup_runs says"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
