#!/usr/bin/env bash
# A dynamic partition that is deleted keeps its materializations: it is still among the materialized partitions of the
# asset, and when the same key is added again (a file that came back under its name, say) it is materialized from its first
# moment. Automation, missing() as well as on_missing(), never requests it; on_missing() does request any key that is new.
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
files = dg.DynamicPartitionsDefinition(name="files")


@dg.asset(partitions_def=files, automation_condition=dg.AutomationCondition.missing())
def by_missing():
    pass


@dg.asset(partitions_def=files, automation_condition=dg.AutomationCondition.on_missing())
def by_on_missing():
    pass


cursors = {}


def tick(what):
    """Evaluate both assets as the daemon does, and print what it would request."""
    print(f"{what}:")
    for asset in (by_missing, by_on_missing):
        found = dg.evaluate_automation_conditions([asset], instance, cursor=cursors.get(asset.key))
        cursors[asset.key] = found.cursor
        requests = sorted(found.get_requested_partitions(asset.key))
        materialized = sorted(instance.get_materialized_partitions(asset.key))
        print(f"  {asset.key.path[0]} requests {requests}, materialized {materialized}")


print("dagster", importlib.metadata.version("dagster"))
tick("no partition")
instance.add_dynamic_partitions("files", ["one"])
tick("one is added")
for asset in (by_missing, by_on_missing):
    dg.materialize([asset], partition_key="one", instance=instance)
tick("one is materialized")
instance.delete_dynamic_partition("files", "one")
print("partitions after one is deleted:", instance.get_dynamic_partitions("files"))
tick("one is deleted")
instance.add_dynamic_partitions("files", ["one", "two"])
tick("one is added again, and two")
PYTHON
"$PY" "$WORK/show.py" >"$WORK/seen" 2>"$WORK/show.log"

cat >"$WORK/expected" <<'EXPECTED'
dagster 1.13.29
no partition:
  by_missing requests [], materialized []
  by_on_missing requests [], materialized []
one is added:
  by_missing requests ['one'], materialized []
  by_on_missing requests ['one'], materialized []
one is materialized:
  by_missing requests [], materialized ['one']
  by_on_missing requests [], materialized ['one']
partitions after one is deleted: []
one is deleted:
  by_missing requests [], materialized ['one']
  by_on_missing requests [], materialized ['one']
one is added again, and two:
  by_missing requests ['two'], materialized ['one']
  by_on_missing requests ['two'], materialized ['one']
EXPECTED
what="a dynamic partition that was deleted and is added again counts as materialized"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
