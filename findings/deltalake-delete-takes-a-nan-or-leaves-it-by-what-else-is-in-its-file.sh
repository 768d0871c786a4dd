#!/usr/bin/env bash
# deltalake's SQL takes NaN as greater than each number, as Spark does: f > 5, f <> 1 and not f < 5 hold for it.
# Whether a delete takes the row, an update changes it and a query of QueryBuilder returns it depends on the file that
# the row is in: the statistics of a file leave NaN out, and a file whose greatest number is small is passed by. The
# same rows in other files, as after an optimize, give another answer. No error; isnan(f) finds it in each.
# Releases: deltalake 1.6.6, pyarrow 26.0.1. Needs: bash, Python 3.11 or later with pip. Minutes: 0.5.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check deltalake==1.6.6 pyarrow==26.0.1

cat >"$WORK/show.py" <<'PYTHON'
import importlib.metadata
import itertools
import os
import sys

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, write_deltalake

NAN = float("nan")
LAYOUTS = {
    "one file": [[1.0, NAN, 7.0, 8.0]],
    "NaN beside 7 and 8": [[1.0], [NAN, 7.0, 8.0]],
    "NaN beside 1": [[1.0, NAN], [7.0, 8.0]],
}
counter = itertools.count()


def table(files):
    path = f"{sys.argv[1]}/{next(counter)}"
    for file in files:
        write_deltalake(path, pa.table({"f": file}), mode="append")
    return DeltaTable(path)


def rows(found):
    return sorted((row["f"] for row in found.to_pylist()), key=str)


print("deltalake", importlib.metadata.version("deltalake"))
for condition in ("f > 5", "f <> 1", "not f < 5", "isnan(f)"):
    print(condition)
    for name, files in LAYOUTS.items():
        query = f"select f from t where {condition}"
        found = rows(pa.table(QueryBuilder().register("t", table(files)).execute(query).read_all()))
        deleted = table(files)
        count = deleted.delete(condition)["num_deleted_rows"]
        updated = table(files)
        updated.update({"f": "0.0"}, predicate=condition)
        print(f"  {name}: query {found}, delete of {count} leaves {rows(deleted.to_pyarrow_table())},", end=" ")
        print("update to 0 leaves", rows(updated.to_pyarrow_table()))
compacted = table(LAYOUTS["NaN beside 1"])
compacted.optimize.compact()
deleted = compacted.delete("f > 5")["num_deleted_rows"]
print(f"NaN beside 1, after an optimize: delete of {deleted} by f > 5 leaves {rows(compacted.to_pyarrow_table())}")
sys.stdout.flush()
os._exit(0)  # at times a thread aborts at the end of the process
PYTHON
"$PY" "$WORK/show.py" "$WORK" >"$WORK/seen" 2>"$WORK/show.log"

cat >"$WORK/expected" <<'EXPECTED'
deltalake 1.6.6
f > 5
  one file: query [7.0, 8.0, nan], delete of 3 leaves [1.0], update to 0 leaves [0.0, 0.0, 0.0, 1.0]
  NaN beside 7 and 8: query [7.0, 8.0, nan], delete of 3 leaves [1.0], update to 0 leaves [0.0, 0.0, 0.0, 1.0]
  NaN beside 1: query [7.0, 8.0], delete of 2 leaves [1.0, nan], update to 0 leaves [0.0, 0.0, 1.0, nan]
f <> 1
  one file: query [7.0, 8.0, nan], delete of 3 leaves [1.0], update to 0 leaves [0.0, 0.0, 0.0, 1.0]
  NaN beside 7 and 8: query [7.0, 8.0, nan], delete of 3 leaves [1.0], update to 0 leaves [0.0, 0.0, 0.0, 1.0]
  NaN beside 1: query [7.0, 8.0], delete of 2 leaves [1.0, nan], update to 0 leaves [0.0, 0.0, 1.0, nan]
not f < 5
  one file: query [7.0, 8.0, nan], delete of 3 leaves [1.0], update to 0 leaves [0.0, 0.0, 0.0, 1.0]
  NaN beside 7 and 8: query [7.0, 8.0, nan], delete of 3 leaves [1.0], update to 0 leaves [0.0, 0.0, 0.0, 1.0]
  NaN beside 1: query [7.0, 8.0], delete of 2 leaves [1.0, nan], update to 0 leaves [0.0, 0.0, 1.0, nan]
isnan(f)
  one file: query [nan], delete of 1 leaves [1.0, 7.0, 8.0], update to 0 leaves [0.0, 1.0, 7.0, 8.0]
  NaN beside 7 and 8: query [nan], delete of 1 leaves [1.0, 7.0, 8.0], update to 0 leaves [0.0, 1.0, 7.0, 8.0]
  NaN beside 1: query [nan], delete of 1 leaves [1.0, 7.0, 8.0], update to 0 leaves [0.0, 1.0, 7.0, 8.0]
NaN beside 1, after an optimize: delete of 3 by f > 5 leaves [1.0]
EXPECTED
what="deltalake's delete takes a NaN or leaves it by what else is in its file"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
