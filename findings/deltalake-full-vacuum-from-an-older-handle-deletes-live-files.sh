#!/usr/bin/env bash
# A service keeps one DeltaTable for weeks and cleans up with vacuum(full=True) and the default retention of seven
# days. The vacuum compares the folder with the version that was current when the handle was loaded: a file that
# another writer committed since is "unused", and is deleted once it is older than the retention. The table's log
# still names it, so each read fails. A handle loaded afresh, or a vacuum that is not full, deletes nothing.
# The ten days are played by the modification times of the files.
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
import os
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake


def rows(path):
    """Return the rows of the files that the newest version names, or what is wrong with one of them."""
    found = []
    for file in DeltaTable(path).file_uris():
        try:
            found += pq.read_table(file)["id"].to_pylist()
        except FileNotFoundError:
            found.append("a file is missing")
    return sorted(found, key=str)


print("deltalake", importlib.metadata.version("deltalake"))
for number, (handle, full) in enumerate([("afresh", True), ("before the append", False), ("before the append", True)]):
    path = f"{sys.argv[1]}/table{number}"
    write_deltalake(path, pa.table({"id": [1, 2]}))
    kept = DeltaTable(path)
    write_deltalake(path, pa.table({"id": [9]}), mode="append")
    ten_days_ago = time.time() - 10 * 86_400
    for file in Path(path).glob("*.parquet"):
        os.utime(file, (ten_days_ago, ten_days_ago))
    table = DeltaTable(path) if handle == "afresh" else kept
    deleted = table.vacuum(full=full, dry_run=False)
    print(f"handle loaded {handle}, full={full}: files deleted {len(deleted)}, rows {rows(path)}")
PYTHON
"$PY" "$WORK/show.py" "$WORK" >"$WORK/seen"

cat >"$WORK/expected" <<'EXPECTED'
deltalake 1.6.6
handle loaded afresh, full=True: files deleted 0, rows [1, 2, 9]
handle loaded before the append, full=False: files deleted 0, rows [1, 2, 9]
handle loaded before the append, full=True: files deleted 1, rows [1, 2, 'a file is missing']
EXPECTED
what="deltalake's full vacuum from an older handle deletes files that later commits of others have added"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
