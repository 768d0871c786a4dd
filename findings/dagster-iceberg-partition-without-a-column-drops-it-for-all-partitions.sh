#!/usr/bin/env bash
# Dagster's Iceberg I/O manager with schema_update_mode="update", which one sets so that a new column is added: a partition whose
# table lacks a column, as an old day that runs again or a source that leaves an empty field out, drops the column from the
# table. The run replaces one partition and every other partition loses its values; when the column comes back with the next
# run, it is a new one and the old values are null. With write_mode="append" it is the same. Each run succeeds.
# Releases: dagster 1.13.29, dagster-iceberg 0.3.14, pyiceberg 0.11.1. Needs: bash, Python 3.11 or later with pip. Minutes: 1.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
export DAGSTER_HOME=$WORK/home DAGSTER_DISABLE_TELEMETRY=1
mkdir "$DAGSTER_HOME"
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check dagster==1.13.29 dagster-iceberg==0.3.14 \
    'pyiceberg[pyarrow,pyiceberg-core,sql-sqlite]==0.11.1' pyarrow==26.0.1

cat >"$WORK/show.py" <<'PYTHON'
import importlib.metadata
import sys

import dagster as dg
import pyarrow as pa
from dagster_iceberg.config import IcebergCatalogConfig
from dagster_iceberg.io_manager.arrow import PyArrowIcebergIOManager
from pyiceberg.catalog.sql import SqlCatalog

WORK = sys.argv[1]
place = {"uri": f"sqlite:///{WORK}/catalog.db", "warehouse": f"file://{WORK}/warehouse"}
catalog = SqlCatalog("c", **place)
catalog.create_namespace("s")
manager = PyArrowIcebergIOManager(name="c", config=IcebergCatalogConfig(properties={"type": "sql", **place}), namespace="s")
RUNS = [
    ("a", {"shop": ["a"], "net": [100], "tax": [19]}),
    ("b", {"shop": ["b"], "net": [200], "tax": [38]}),
    ("b", {"shop": ["b"], "net": [200]}),
    ("b", {"shop": ["b"], "net": [200], "tax": [38]}),
]


def show(name, **metadata):
    print(metadata)
    for shop, columns in RUNS:

        @dg.asset(
            name=name,
            key_prefix="s",
            partitions_def=dg.StaticPartitionsDefinition(["a", "b"]),
            metadata={"partition_expr": "shop", **metadata},
        )
        def asset() -> pa.Table:
            return pa.table(columns)

        result = dg.materialize([asset], partition_key=shop, resources={"io_manager": manager}, raise_on_error=False)
        rows = catalog.load_table(f"s.{name}").scan().to_arrow().to_pylist()
        print(f"  {shop} returns {', '.join(columns)}: success {result.success}, table:")
        words = [str(tuple(row.get(column, "no column") for column in ("shop", "net", "tax"))) for row in rows]
        print("    " + " ".join(sorted(words)))


print(*(f"{name} {importlib.metadata.version(name)}" for name in ("dagster", "dagster-iceberg", "pyiceberg")))
show("with_update", schema_update_mode="update")
show("with_append", schema_update_mode="update", write_mode="append")
show("with_error", schema_update_mode="error")
PYTHON
"$PY" "$WORK/show.py" "$WORK" >"$WORK/seen" 2>"$WORK/show.log"

cat >"$WORK/expected" <<'EXPECTED'
dagster 1.13.29 dagster-iceberg 0.3.14 pyiceberg 0.11.1
{'schema_update_mode': 'update'}
  a returns shop, net, tax: success True, table:
    ('a', 100, 19)
  b returns shop, net, tax: success True, table:
    ('a', 100, 19) ('b', 200, 38)
  b returns shop, net: success True, table:
    ('a', 100, 'no column') ('b', 200, 'no column')
  b returns shop, net, tax: success True, table:
    ('a', 100, None) ('b', 200, 38)
{'schema_update_mode': 'update', 'write_mode': 'append'}
  a returns shop, net, tax: success True, table:
    ('a', 100, 19)
  b returns shop, net, tax: success True, table:
    ('a', 100, 19) ('b', 200, 38)
  b returns shop, net: success True, table:
    ('a', 100, 'no column') ('b', 200, 'no column') ('b', 200, 'no column')
  b returns shop, net, tax: success True, table:
    ('a', 100, None) ('b', 200, 38) ('b', 200, None) ('b', 200, None)
{'schema_update_mode': 'error'}
  a returns shop, net, tax: success True, table:
    ('a', 100, 19)
  b returns shop, net, tax: success True, table:
    ('a', 100, 19) ('b', 200, 38)
  b returns shop, net: success False, table:
    ('a', 100, 19) ('b', 200, 38)
  b returns shop, net, tax: success True, table:
    ('a', 100, 19) ('b', 200, 38)
EXPECTED
what="a run of dagster-iceberg whose partition lacks a column drops the column's values of every partition"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
