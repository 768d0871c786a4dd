#!/usr/bin/env bash
# Deleting a run takes its materializations. What is left of a partition depends on who asked before: the instance (as code
# and sensors ask it) calls the partition missing; automation, which counts in a cache, calls it materialized for good if it
# has looked at the asset before the run was deleted, and requests it again if it has not. An asset without partitions keeps
# the deleted run's event as its latest, while a list of its events is empty.
# Release: dagster 1.13.29. Needs: Python 3.11 or later with pip. Takes about one minute.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check dagster==1.13.29

export DAGSTER_HOME=$WORK/home DAGSTER_DISABLE_TELEMETRY=1
mkdir "$DAGSTER_HOME"
cat >"$WORK/show.py" <<'PYTHON'
import importlib.metadata

import dagster as dg

instance = dg.DagsterInstance.get()
parts = dg.StaticPartitionsDefinition(["a", "b", "c"])
missing = dg.AutomationCondition.missing()


@dg.asset(partitions_def=parts, automation_condition=missing)
def seen_before():
    pass


@dg.asset(partitions_def=parts, automation_condition=missing)
def not_seen_before():
    pass


@dg.asset
def plain():
    pass


def requested(asset):
    """Return what the daemon would request, by its own evaluation."""
    found = dg.evaluate_automation_conditions([asset], instance)
    return sorted(found.get_requested_partitions(asset.key))


def write(asset, part=None):
    return dg.materialize([asset], partition_key=part, instance=instance).run_id


def state(asset):
    materialized = sorted(instance.get_materialized_partitions(asset.key))
    return f"materialized for the instance {materialized}, requested by automation {requested(asset)}"


print("dagster", importlib.metadata.version("dagster"))
for asset in (seen_before, not_seen_before):
    runs = {part: write(asset, part) for part in ("a", "b", "c")}
    if asset is seen_before:
        print("an evaluation before the deletion requests", requested(asset))
    instance.delete_run(runs["b"])
    print(f"{asset.key.path[0]}, run of b deleted: {state(asset)}")
    write(asset, "c")
    print(f"{asset.key.path[0]}, c once more: {state(asset)}")
run = write(plain)
instance.delete_run(run)
latest = instance.get_latest_materialization_event(plain.key)
print("plain: latest event is the deleted run's:", latest is not None and latest.run_id == run)
print("plain: events:", len(instance.fetch_materializations(plain.key, limit=10).records))
PYTHON
"$PY" "$WORK/show.py" >"$WORK/seen" 2>"$WORK/show.log"

cat >"$WORK/expected" <<'EXPECTED'
dagster 1.13.29
an evaluation before the deletion requests []
seen_before, run of b deleted: materialized for the instance ['a', 'c'], requested by automation []
seen_before, c once more: materialized for the instance ['a', 'c'], requested by automation []
not_seen_before, run of b deleted: materialized for the instance ['a', 'c'], requested by automation ['b']
not_seen_before, c once more: materialized for the instance ['a', 'c'], requested by automation ['b']
plain: latest event is the deleted run's: True
plain: events: 0
EXPECTED
what="whether a deleted run's partition is missing depends on who asks, and on whether automation looked before the deletion"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
