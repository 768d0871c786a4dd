#!/usr/bin/env bash
# Daft reads several Parquet files under the types of the first, and what does not fit comes without an error: behind a file of
# int32 an id of int64 is null, behind int64 2.7 is 2 and a text is null, behind decimals of 5 digits a larger one is null,
# behind nanoseconds the year 1600 is 2184. A filter of such a read sees the file's value: a == 1099511627783 returns a row
# whose a is null. Each file alone is read as it was written. pyarrow and Polars refuse each of these pairs, and DuckDB all but
# the second, where 2.7 is 3.
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
from datetime import datetime
from decimal import Decimal

import daft
import duckdb
import polars
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet

WORK = sys.argv[1]


def shown(read):
    """Return the values that a read gives, or the name of its error."""
    try:
        return [value if isinstance(value, (int, float, str, type(None))) else str(value) for value in read()]
    except Exception as error:
        return type(error).__name__


print("daft", daft.__version__, "pyarrow", pa.__version__, "polars", polars.__version__, "duckdb", duckdb.__version__)
cases = {
    "int32, int64": (pa.array([1], pa.int32()), pa.array([2**40 + 7], pa.int64())),
    "int64, double": (pa.array([1], pa.int64()), pa.array([2.7])),
    "int64, string": (pa.array([1], pa.int64()), pa.array(["A-7"])),
    "decimal(5,2), decimal(18,2)": (
        pa.array([Decimal("1.10")], pa.decimal128(5, 2)),
        pa.array([Decimal("123456.78")], pa.decimal128(18, 2)),
    ),
    "nanoseconds, microseconds": (
        pa.array([datetime(2024, 1, 1)], pa.timestamp("ns")),
        pa.array([datetime(1600, 1, 1)], pa.timestamp("us")),
    ),
}
for number, (name, columns) in enumerate(cases.items()):
    folder = f"{WORK}/{number}"
    os.mkdir(folder)
    files = [f"{folder}/0.parquet", f"{folder}/1.parquet"]
    for file, column in zip(files, columns):
        pyarrow.parquet.write_table(pa.table({"a": column}), file)
    print(name)
    print("  daft:", shown(lambda: daft.read_parquet(files).to_pydict()["a"]))
    print("  daft, the second alone:", shown(lambda: daft.read_parquet(files[1]).to_pydict()["a"]))
    print("  pyarrow:", shown(lambda: pyarrow.dataset.dataset(files).to_table()["a"].to_pylist()))
    print("  polars:", shown(lambda: polars.read_parquet(files)["a"].to_list()))
    print("  duckdb:", shown(lambda: [row[0] for row in duckdb.sql(f"SELECT a FROM read_parquet({files})").fetchall()]))

rows = daft.read_parquet([f"{WORK}/0/0.parquet", f"{WORK}/0/1.parquet"])
print("int32, int64: where a == 1099511627783:", rows.where(daft.col("a") == 2**40 + 7).to_pydict()["a"])
print("int32, int64: where a is null:", rows.where(daft.col("a").is_null()).to_pydict()["a"])
print("int32, int64: sum:", rows.agg(daft.col("a").sum()).to_pydict()["a"])
sys.stdout.flush()
os._exit(0)  # threads of the libraries can disturb the interpreter's own end
PYTHON
"$PY" "$WORK/show.py" "$WORK" >"$WORK/seen" 2>"$WORK/show.log"

cat >"$WORK/expected" <<'EXPECTED'
daft 0.7.26 pyarrow 25.0.1 polars 2.1.0 duckdb 2.0.1
int32, int64
  daft: [1, None]
  daft, the second alone: [1099511627783]
  pyarrow: ArrowInvalid
  polars: SchemaError
  duckdb: ConversionException
int64, double
  daft: [1, 2]
  daft, the second alone: [2.7]
  pyarrow: ArrowInvalid
  polars: SchemaError
  duckdb: [1, 3]
int64, string
  daft: [1, None]
  daft, the second alone: ['A-7']
  pyarrow: ArrowInvalid
  polars: SchemaError
  duckdb: ConversionException
decimal(5,2), decimal(18,2)
  daft: ['1.10', None]
  daft, the second alone: ['123456.78']
  pyarrow: ArrowInvalid
  polars: SchemaError
  duckdb: ConversionException
nanoseconds, microseconds
  daft: ['2024-01-01 00:00:00', '2184-07-20 23:34:33.709551']
  daft, the second alone: ['1600-01-01 00:00:00']
  pyarrow: ArrowInvalid
  polars: SchemaError
  duckdb: ConversionException
int32, int64: where a == 1099511627783: [None]
int32, int64: where a is null: []
int32, int64: sum: [1]
EXPECTED
what="Daft reads Parquet files under the types of the first, and what does not fit is null or cut"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
