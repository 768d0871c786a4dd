#!/usr/bin/env bash
# Daft compares an int64 with a uint64 as doubles: it joins the id 9007199254740993 of one table with 9007199254740992 of the
# other, an anti join drops the row, `==` calls the two equal, and coalesce and a union by SQL return doubles in place of the ids.
# DuckDB and Polars join no row and call the ids different. A uint64 is what Parquet files of other software have for
# hashes and counters.
# Releases: daft 0.7.26, pyarrow 25.0.1, polars 2.1.0, duckdb 2.0.1. Needs: Python 3.11 or later with pip. Minutes: 0.5.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check daft==0.7.26 pyarrow==25.0.1 polars==2.1.0 duckdb==2.0.1

cat >"$WORK/show.py" <<'PYTHON'
import os
import sys

import daft
import duckdb
import polars
import pyarrow as pa

print("daft", daft.__version__, "pyarrow", pa.__version__, "polars", polars.__version__, "duckdb", duckdb.__version__)
IDS = [2**53 + 1, 2**60 + 1]
OTHERS = [2**53, 2**60]
print("ids of int64:", IDS)
print("ids of uint64:", OTHERS)
left = pa.table({"id": pa.array(IDS, pa.int64()), "left": ["a", "b"]})
right = pa.table({"id": pa.array(OTHERS, pa.uint64()), "right": ["x", "y"]})
pairs = pa.table({"i": left["id"], "u": right["id"]})
signed = pa.table({"id": pa.array(OTHERS, pa.int64()), "right": ["x", "y"]})
rows = daft.from_arrow(left)


def joined(other, how):
    return list(zip(*rows.join(daft.from_arrow(other), on="id", how=how).to_pydict().values()))


print("daft, join:", joined(right, "inner"))
print("daft, anti join:", joined(right, "anti"))
print("daft, join with int64:", joined(signed, "inner"))
print("daft, ==:", daft.from_arrow(pairs).select(daft.col("i") == daft.col("u")).to_pydict()["i"])
print("daft, coalesce:", daft.from_arrow(pairs).select(daft.functions.coalesce(daft.col("i"), daft.col("u"))).to_pydict()["i"])
numbers, others = rows.select("id"), daft.from_arrow(right).select("id")
print("daft, union all:", daft.sql("SELECT id FROM numbers UNION ALL SELECT id FROM others").to_pydict()["id"])
print("duckdb, join:", duckdb.sql('SELECT * FROM "left" JOIN "right" USING (id)').fetchall())
print("duckdb, =:", duckdb.sql("SELECT i = u FROM pairs").fetchall())
print("polars, join:", polars.from_arrow(left).join(polars.from_arrow(right), on="id").rows())
print("polars, ==:", polars.from_arrow(pairs).select(polars.col("i") == polars.col("u"))["i"].to_list())
sys.stdout.flush()
os._exit(0)  # threads of the libraries can disturb the interpreter's own end
PYTHON
"$PY" "$WORK/show.py" >"$WORK/seen" 2>"$WORK/show.log"

cat >"$WORK/expected" <<'EXPECTED'
daft 0.7.26 pyarrow 25.0.1 polars 2.1.0 duckdb 2.0.1
ids of int64: [9007199254740993, 1152921504606846977]
ids of uint64: [9007199254740992, 1152921504606846976]
daft, join: [(9007199254740993, 'a', 'x'), (1152921504606846977, 'b', 'y')]
daft, anti join: []
daft, join with int64: []
daft, ==: [True, True]
daft, coalesce: [9007199254740992.0, 1.152921504606847e+18]
daft, union all: [9007199254740992.0, 1.152921504606847e+18, 9007199254740992.0, 1.152921504606847e+18]
duckdb, join: []
duckdb, =: [(False,), (False,)]
polars, join: []
polars, ==: [False, False]
EXPECTED
what="Daft joins different ids of int64 and uint64 that are one double"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
