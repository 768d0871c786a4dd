#!/usr/bin/env bash
# write_deltalake(mode="append") of other types than the table's is no error: the values are cast, and what is lost on the way
# is lost silently. 2.7 becomes 2 in a column of integers, 2 becomes true, seconds since 1970 become a time of January 1970,
# 1e300 becomes infinity. Only a value that nothing stands for raises: a NaN, a text that is no integer, more than an int
# holds. pyiceberg refuses such an append.
# Releases: deltalake 1.6.6, pyiceberg 0.12.0. Needs: Python 3.11 or later with pip. Takes about half a minute.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check deltalake==1.6.6 "pyiceberg[sql-sqlite]==0.12.0" pyarrow==26.0.1

cat >"$WORK/show.py" <<'PYTHON'
import contextlib
import importlib.metadata
import io
import sys
import warnings
from datetime import datetime
from decimal import Decimal

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog.sql import SqlCatalog

warnings.simplefilter("ignore")
WORK = sys.argv[1]


def show(number, before, after, **options):
    """Append a value of another type to a table of one row, and print the column."""
    path = f"{WORK}/t{number}"
    write_deltalake(path, pa.table({"a": before}))
    try:
        write_deltalake(path, pa.table({"a": after}), mode="append", **options)
        rows = DeltaTable(path).to_pyarrow_table()["a"]
        now = ", ".join(sorted(str(v) for v in rows.to_pylist()))
    except Exception as error:
        now = f"raised {type(error).__name__}"
    print(f"{after.type} {after[0]} into {before.type}: {now}")


print(*(f"{name} {importlib.metadata.version(name)}" for name in ("deltalake", "pyiceberg")))
one = pa.array([1])
cases = [
    (one, pa.array([2.7])),
    (one, pa.array([Decimal("7.99")])),
    (one, pa.array([float("nan")])),
    (one, pa.array(["7"])),
    (one, pa.array(["7.9"])),
    (pa.array([1], pa.int32()), pa.array([2**40])),
    (pa.array([1.0], pa.float32()), pa.array([1e300])),
    (pa.array([1.0]), pa.array([2**53 + 1])),
    (pa.array([False]), pa.array([2])),
    (pa.array([datetime(2024, 1, 1)], pa.timestamp("us", "UTC")), pa.array([1_704_067_200])),
]
for number, (before, after) in enumerate(cases):
    show(number, before, after)
print('schema_mode="merge": ', end="")
show("merged", one, pa.array([2.7]), schema_mode="merge")

catalog = SqlCatalog("c", uri=f"sqlite:///{WORK}/catalog.db", warehouse=f"file://{WORK}/tables")
catalog.create_namespace("n")
table = catalog.create_table("n.t", pa.schema([("a", pa.int64())]))
try:
    with contextlib.redirect_stdout(io.StringIO()):  # it draws a table of the types
        table.append(pa.table({"a": [2.7]}))
    answer = "appended"
except ValueError:
    answer = "raised ValueError"
print(f"pyiceberg, double 2.7 into int64: {answer}")
PYTHON
"$PY" "$WORK/show.py" "$WORK" >"$WORK/seen" 2>"$WORK/show.log"

cat >"$WORK/expected" <<'EXPECTED'
deltalake 1.6.6 pyiceberg 0.12.0
double 2.7 into int64: 1, 2
decimal128(3, 2) 7.99 into int64: 1, 7
double nan into int64: raised Exception
string 7 into int64: 1, 7
string 7.9 into int64: raised Exception
int64 1099511627776 into int32: raised Exception
double 1e+300 into float: 1.0, inf
int64 9007199254740993 into double: 1.0, 9007199254740992.0
int64 2 into bool: False, True
int64 1704067200 into timestamp[us, tz=UTC]: 1970-01-01 00:28:24.067200+00:00, 2024-01-01 00:00:00+00:00
schema_mode="merge": double 2.7 into int64: 1, 2
pyiceberg, double 2.7 into int64: raised ValueError
EXPECTED
what="an append casts its values to the types of a Delta table, and loses digits without an error"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
