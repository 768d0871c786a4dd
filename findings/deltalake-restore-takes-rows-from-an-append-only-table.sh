#!/usr/bin/env bash
# A Delta table with delta.appendOnly=true: deltalake refuses to delete, to update, to merge and to overwrite, and restores
# an older version without a word. The rows of every commit since are gone from the table. So is the property, if it was
# set after that version: the table is append-only no more.
# Release: deltalake 1.6.6. Needs: Python 3.11 or later with pip. Takes about half a minute.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check deltalake==1.6.6 pyarrow==26.0.1

cat >"$WORK/show.py" <<'PYTHON'
import importlib.metadata
import sys

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

PATH = sys.argv[1] + "/t"


def rows(*ids):
    return pa.table({"id": pa.array(ids, pa.int64())})


def state():
    table = DeltaTable(PATH)
    ids = sorted(table.to_pyarrow_table()["id"].to_pylist())
    return f"rows {ids}, appendOnly {table.metadata().configuration.get('delta.appendOnly')}"


def merge():
    merging = DeltaTable(PATH).merge(rows(1), "s.id = t.id", source_alias="s", target_alias="t")
    merging.when_matched_delete().execute()


print("deltalake", importlib.metadata.version("deltalake"))
write_deltalake(PATH, rows(1))
DeltaTable(PATH).alter.set_table_properties({"delta.appendOnly": "true"})
write_deltalake(PATH, rows(2), mode="append")
write_deltalake(PATH, rows(3), mode="append")
print(state())
for name, act in {
    "delete": lambda: DeltaTable(PATH).delete("id = 1"),
    "update": lambda: DeltaTable(PATH).update(updates={"id": "9"}, predicate="id = 1"),
    "merge": merge,
    "overwrite": lambda: write_deltalake(PATH, rows(9), mode="overwrite"),
    "restore(2)": lambda: DeltaTable(PATH).restore(2),
    "restore(0)": lambda: DeltaTable(PATH).restore(0),
    "delete again": lambda: DeltaTable(PATH).delete("id = 1"),
}.items():
    try:
        act()
        print(f"{name}: done, {state()}")
    except DeltaError as error:
        print(f"{name}: {str(error)[-26:]}, {state()}")
PYTHON
"$PY" "$WORK/show.py" "$WORK" >"$WORK/seen" 2>"$WORK/show.log"

cat >"$WORK/expected" <<'EXPECTED'
deltalake 1.6.6
rows [1, 2, 3], appendOnly true
delete: Delta table is append-only, rows [1, 2, 3], appendOnly true
update: Delta table is append-only, rows [1, 2, 3], appendOnly true
merge: Delta table is append-only, rows [1, 2, 3], appendOnly true
overwrite: Delta table is append-only, rows [1, 2, 3], appendOnly true
restore(2): done, rows [1, 2], appendOnly true
restore(0): done, rows [1], appendOnly None
delete again: done, rows [], appendOnly None
EXPECTED
what="restore() takes rows from an append-only Delta table, which refuses every other removal"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
