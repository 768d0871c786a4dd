#!/usr/bin/env bash
# A Parquet file has a column of doubles with NaN beside one number that comes again and again, as a price does. Its
# statistics leave NaN out, so that the least value is the greatest, and DataFusion takes the column for a constant:
# each query returns the number in place of the NaN, and sums and counts it. deltalake, which is built on it, does so
# where a predicate names the column: a query returns the number, and an update of another column writes it into the
# table. No error; beside two different numbers NaN stays NaN.
# Releases: datafusion 55.0.0, deltalake 1.6.6, pyarrow 26.0.1. Needs: bash, Python 3.11 or later with pip. Minutes:
# 0.5.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check datafusion==55.0.0 deltalake==1.6.6 pyarrow==26.0.1

cat >"$WORK/show.py" <<'PYTHON'
import importlib.metadata
import os
import sys

import pyarrow as pa
import pyarrow.parquet as pq
from datafusion import SessionContext
from deltalake import DeltaTable, QueryBuilder, write_deltalake

NAN = float("nan")
FILES = {"one number": [NAN, 9.5, 9.5], "two numbers": [NAN, 9.5, 9.6]}


def rows(found):
    return [tuple(row.values()) for row in found.to_pylist()]


print(*(f"{name} {importlib.metadata.version(name)}" for name in ("datafusion", "deltalake", "pyarrow")))
for name, values in FILES.items():
    written = pa.table({"id": [1, 2, 3], "f": values, "word": ["a", "b", "c"]})
    path = f"{sys.argv[1]}/{name}"
    pq.write_table(written, path + ".parquet")
    context = SessionContext()
    context.register_parquet("t", path + ".parquet")
    print(f"{name}: {values}")
    for query in ("select id, f from t", "select id, f from t where id = 1", "select sum(f), count(distinct f) from t"):
        print(f"  datafusion, {query}: {rows(context.sql(query))}")
    write_deltalake(path, written)
    for query in ("select id, f from t", "select id, f from t where f > 5"):
        found = pa.table(QueryBuilder().register("t", DeltaTable(path)).execute(query).read_all())
        print(f"  deltalake, {query}: {rows(found)}")
    for predicate in ("id > 0", "f > 5"):
        changed = f"{path} {predicate}"
        write_deltalake(changed, written)
        DeltaTable(changed).update({"word": "'new'"}, predicate=predicate)
        print(f"  deltalake, after an update of word where {predicate}:", rows(DeltaTable(changed).to_pyarrow_table()))
sys.stdout.flush()
os._exit(0)  # without waiting for the threads of the library
PYTHON
"$PY" "$WORK/show.py" "$WORK" >"$WORK/seen" 2>"$WORK/show.log"

cat >"$WORK/expected" <<'EXPECTED'
datafusion 55.0.0 deltalake 1.6.6 pyarrow 26.0.1
one number: [nan, 9.5, 9.5]
  datafusion, select id, f from t: [(1, 9.5), (2, 9.5), (3, 9.5)]
  datafusion, select id, f from t where id = 1: [(1, 9.5)]
  datafusion, select sum(f), count(distinct f) from t: [(28.5, 1)]
  deltalake, select id, f from t: [(1, nan), (2, 9.5), (3, 9.5)]
  deltalake, select id, f from t where f > 5: [(1, 9.5), (2, 9.5), (3, 9.5)]
  deltalake, after an update of word where id > 0: [(1, nan, 'new'), (2, 9.5, 'new'), (3, 9.5, 'new')]
  deltalake, after an update of word where f > 5: [(1, 9.5, 'new'), (2, 9.5, 'new'), (3, 9.5, 'new')]
two numbers: [nan, 9.5, 9.6]
  datafusion, select id, f from t: [(1, nan), (2, 9.5), (3, 9.6)]
  datafusion, select id, f from t where id = 1: [(1, nan)]
  datafusion, select sum(f), count(distinct f) from t: [(nan, 3)]
  deltalake, select id, f from t: [(1, nan), (2, 9.5), (3, 9.6)]
  deltalake, select id, f from t where f > 5: [(1, nan), (2, 9.5), (3, 9.6)]
  deltalake, after an update of word where id > 0: [(1, nan, 'new'), (2, 9.5, 'new'), (3, 9.6, 'new')]
  deltalake, after an update of word where f > 5: [(1, nan, 'new'), (2, 9.5, 'new'), (3, 9.6, 'new')]
EXPECTED
what="DataFusion returns a number in place of a NaN, and deltalake stores it"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
