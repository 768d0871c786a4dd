#!/usr/bin/env bash
# DuckDBPandasIOManager of dagster-duckdb-pandas deletes a partition's rows and then inserts the new ones, outside of a
# transaction. A run whose frame the table refuses (a column more, a text for a number) fails, and the rows that the partition
# had before are gone. Dagster has the partition as failed and still among the materialized ones, as after any failed run, and
# an asset that depends on it gets a frame without rows and succeeds.
# Releases: dagster 1.13.27, dagster-duckdb-pandas 0.29.27, duckdb 2.0.1, pandas 2.3.3.
# Needs: Python 3.11 or later with pip. Takes about half a minute.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
export DAGSTER_HOME=$WORK/home DAGSTER_DISABLE_TELEMETRY=1
mkdir "$DAGSTER_HOME"
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check dagster==1.13.27 dagster-duckdb-pandas==0.29.27 duckdb==2.0.1 pandas==2.3.3

cat >"$WORK/show.py" <<'PYTHON'
import importlib.metadata
import sys

import dagster as dg
import pandas as pd
from dagster_duckdb_pandas import DuckDBPandasIOManager

frame = None
shops = dg.StaticPartitionsDefinition(["a", "b"])
settings = {"partitions_def": shops, "key_prefix": "s", "metadata": {"partition_expr": "shop"}}


@dg.asset(**settings)
def orders() -> pd.DataFrame:
    return frame


@dg.asset(**settings)
def report(orders: pd.DataFrame) -> pd.DataFrame:
    print("  report reads", orders.to_dict("records"))
    return pd.DataFrame({"shop": ["a"], "total": [orders.net.sum()]})


def run(asset, shop, *others):
    """Materialize one partition of the asset."""
    manager = DuckDBPandasIOManager(database=sys.argv[1] + "/x.duckdb")
    all_assets = {"selection": [asset], "partition_key": shop, "instance": instance, "raise_on_error": False}
    result = dg.materialize([asset, *others], resources={"io_manager": manager}, **all_assets)
    print(f"{asset.key.path[-1]} {shop}: success {result.success}")
    for event in result.get_step_failure_events():
        print("  " + event.step_failure_data.error.cause.message.splitlines()[0])


print(*(f"{name} {importlib.metadata.version(name)}" for name in ("dagster", "dagster-duckdb-pandas", "duckdb")))
instance = dg.DagsterInstance.ephemeral()
for shop in "ab":
    frame = pd.DataFrame({"shop": [shop], "net": [100]})
    run(orders, shop)
run(report, "a", orders)
frame = pd.DataFrame({"shop": ["a"], "net": [100], "tax": [19]})
run(orders, "a")
run(report, "a", orders)
print("materialized for Dagster:", sorted(instance.get_materialized_partitions(orders.key)))
statuses = instance.get_status_by_partition(orders.key, ["a", "b"], shops)
print("status:", {shop: status.value for shop, status in statuses.items()})
PYTHON
"$PY" "$WORK/show.py" "$WORK" >"$WORK/seen" 2>"$WORK/show.log"

cat >"$WORK/expected" <<'EXPECTED'
dagster 1.13.27 dagster-duckdb-pandas 0.29.27 duckdb 2.0.1
orders a: success True
orders b: success True
  report reads [{'shop': 'a', 'net': 100}]
report a: success True
orders a: success False
  _duckdb.BinderException: Binder Error: table "orders" has 2 columns but 3 values were supplied
  report reads []
report a: success True
materialized for Dagster: ['a', 'b']
status: {'a': 'FAILED', 'b': 'MATERIALIZED'}
EXPECTED
what="dagster-duckdb-pandas empties a partition whose new rows are refused, and what depends on it goes on with no rows"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
