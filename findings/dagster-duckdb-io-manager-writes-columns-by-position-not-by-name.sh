#!/usr/bin/env bash
# DuckDBPandasIOManager of dagster-duckdb-pandas inserts a partition's data frame by the position of its columns. A frame with
# the same columns in another order, as a changed query or a JSON reader returns it, is stored with the values exchanged
# wherever the types permit, and the run succeeds; the metadata of the materialization shows the frame's order. What is read
# back has the table's names over the other column's values. A double in a column of integers is rounded: 2.7 is 3.
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

FRAMES = {
    "a": pd.DataFrame({"shop": ["a"], "net": [100], "gross": [119]}),
    "b": pd.DataFrame({"shop": ["b"], "gross": [119], "net": [100]}),
    "c": pd.DataFrame({"shop": ["c"], "net": [2.7], "gross": [3.2]}),
}
shops = dg.StaticPartitionsDefinition(list(FRAMES))
settings = {"partitions_def": shops, "key_prefix": "s", "metadata": {"partition_expr": "shop"}}


@dg.asset(**settings)
def orders(context) -> pd.DataFrame:
    return FRAMES[context.partition_key]


@dg.asset(**settings)
def taxes(orders: pd.DataFrame) -> pd.DataFrame:
    print("  read back:   ", orders.to_dict("records"))
    return orders.assign(tax=orders.gross - orders.net)[["shop", "tax"]]


print(*(f"{name} {importlib.metadata.version(name)}" for name in ("dagster", "dagster-duckdb-pandas", "duckdb")))
manager = DuckDBPandasIOManager(database=sys.argv[1] + "/x.duckdb")
for shop, frame in FRAMES.items():
    print(f"partition {shop}")
    print("  was returned:", frame.to_dict("records"))
    result = dg.materialize([orders, taxes], partition_key=shop, resources={"io_manager": manager})
    columns = result.asset_materializations_for_node("s__orders")[0].metadata["dataframe_columns"].schema.columns
    print("  success:", result.success, "columns in the metadata:", [column.name for column in columns])
PYTHON
"$PY" "$WORK/show.py" "$WORK" >"$WORK/seen" 2>"$WORK/show.log"

cat >"$WORK/expected" <<'EXPECTED'
dagster 1.13.27 dagster-duckdb-pandas 0.29.27 duckdb 2.0.1
partition a
  was returned: [{'shop': 'a', 'net': 100, 'gross': 119}]
  read back:    [{'shop': 'a', 'net': 100, 'gross': 119}]
  success: True columns in the metadata: ['shop', 'net', 'gross']
partition b
  was returned: [{'shop': 'b', 'gross': 119, 'net': 100}]
  read back:    [{'shop': 'b', 'net': 119, 'gross': 100}]
  success: True columns in the metadata: ['shop', 'gross', 'net']
partition c
  was returned: [{'shop': 'c', 'net': 2.7, 'gross': 3.2}]
  read back:    [{'shop': 'c', 'net': 3, 'gross': 3}]
  success: True columns in the metadata: ['shop', 'net', 'gross']
EXPECTED
what="dagster-duckdb-pandas writes columns by position, and exchanges the values of a frame in another order"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
