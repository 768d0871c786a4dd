#!/usr/bin/env bash
# Two writers of one Delta table, one of which appends while the other replaces or deletes. A delete or an overwrite
# with a predicate notices the append and raises. The same deed without a predicate (overwrite everything, delete
# everything) commits and leaves the appended row: an "overwritten" table holds rows that its last writer never saw,
# and nobody gets an error.
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
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError


def rows(*ids, day="mon"):
    return pa.table({"id": list(ids), "day": [day] * len(ids)})


def ids(path):
    """Return the ids in the files that the newest version of the table names."""
    return sorted(i for file in DeltaTable(path).file_uris() for i in pq.read_table(file)["id"].to_pylist())


def overwrite(table, **how):
    write_deltalake(table, rows(7), mode="overwrite", **how)


DEEDS = {
    "delete(\"day = 'mon'\")": lambda table: table.delete("day = 'mon'"),
    "delete(\"id >= 0\")": lambda table: table.delete("id >= 0"),
    "delete()": lambda table: table.delete(),
    "overwrite with the predicate \"day = 'mon'\"": lambda table: overwrite(table, predicate="day = 'mon'"),
    "overwrite": overwrite,
}

print("deltalake", importlib.metadata.version("deltalake"))
print("The table has the rows 1 and 2. Between the load of my handle and my deed, another writer appends row 9.")
for number, (name, deed) in enumerate(DEEDS.items()):
    path = f"{sys.argv[1]}/table{number}"
    write_deltalake(path, rows(1, 2))
    mine = DeltaTable(path)
    write_deltalake(path, rows(9), mode="append")
    try:
        deed(mine)
        result = "committed"
    except CommitFailedError:
        result = "CommitFailedError"
    print(f"{name}: {result}, rows {ids(path)}")
PYTHON
"$PY" "$WORK/show.py" "$WORK" >"$WORK/seen"

cat >"$WORK/expected" <<'EXPECTED'
deltalake 1.6.6
The table has the rows 1 and 2. Between the load of my handle and my deed, another writer appends row 9.
delete("day = 'mon'"): CommitFailedError, rows [1, 2, 9]
delete("id >= 0"): CommitFailedError, rows [1, 2, 9]
delete(): committed, rows [9]
overwrite with the predicate "day = 'mon'": CommitFailedError, rows [1, 2, 9]
overwrite: committed, rows [7, 9]
EXPECTED
what="deltalake's overwrite and delete without a predicate commit beside a concurrent append and leave its rows"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
