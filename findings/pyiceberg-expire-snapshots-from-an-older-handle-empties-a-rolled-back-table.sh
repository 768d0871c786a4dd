#!/usr/bin/env bash
# A table of Iceberg is rolled back to its first snapshot. A clean-up that had loaded the table just before expires
# old snapshots: it protects the snapshot that was the newest for it, removes the one to which the table was rolled
# back, and commits without an error. The table then has no current snapshot, and a scan returns no row.
# Release: pyiceberg 0.12.0. Needs: Python 3.11 or later with pip. Takes about half a minute.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check 'pyiceberg[sql-sqlite]==0.12.0' pyarrow==26.0.1

cat >"$WORK/show.py" <<'PYTHON'
import importlib.metadata
import logging
import sys
from datetime import datetime, timedelta

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog

logging.disable(logging.WARNING)
SCHEMA = pa.schema([("id", pa.int64())])
catalog = SqlCatalog("local", uri=f"sqlite:///{sys.argv[1]}/catalog.db", warehouse=f"file://{sys.argv[1]}")
catalog.create_namespace("shop")


def show(when, name):
    table = catalog.load_table(name)
    current, rows = table.current_snapshot(), sorted(table.scan().to_arrow()["id"].to_pylist())
    print(f"  {when}: {len(table.snapshots())} snapshots, current one: {'yes' if current else 'none'}, rows {rows}")


print("pyiceberg", importlib.metadata.version("pyiceberg"))
for case in ("the clean-up loads the table after the rollback", "the clean-up loads the table before the rollback"):
    name = f"shop.orders{len(catalog.list_tables('shop'))}"
    table = catalog.create_table(name, SCHEMA)
    table.append(pa.table({"id": [1, 2]}, schema=SCHEMA))
    good = table.current_snapshot().snapshot_id
    table.append(pa.table({"id": [3]}, schema=SCHEMA))
    print(case)
    show("before", name)

    cleanup = catalog.load_table(name)
    with catalog.load_table(name).manage_snapshots() as snapshots:
        snapshots.rollback_to_snapshot(good)
    show("rolled back", name)
    if "after" in case:
        cleanup.refresh()
    cleanup.maintenance.expire_snapshots().older_than(datetime.now() + timedelta(days=1)).commit()
    show("old snapshots expired, no error", name)
PYTHON
"$PY" "$WORK/show.py" "$WORK" >"$WORK/seen"

cat >"$WORK/expected" <<'EXPECTED'
pyiceberg 0.12.0
the clean-up loads the table after the rollback
  before: 2 snapshots, current one: yes, rows [1, 2, 3]
  rolled back: 2 snapshots, current one: yes, rows [1, 2]
  old snapshots expired, no error: 1 snapshots, current one: yes, rows [1, 2]
the clean-up loads the table before the rollback
  before: 2 snapshots, current one: yes, rows [1, 2, 3]
  rolled back: 2 snapshots, current one: yes, rows [1, 2]
  old snapshots expired, no error: 1 snapshots, current one: none, rows []
EXPECTED
what="pyiceberg's expire_snapshots from a handle older than a rollback removes the table's current snapshot"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
