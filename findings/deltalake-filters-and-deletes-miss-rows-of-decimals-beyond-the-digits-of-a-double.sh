#!/usr/bin/env bash
# deltalake writes the least and the greatest value of a decimal column into the log as a number of JSON, with the
# digits of a double, and an id of 64 bits as at most 2^63 - 1. Who filters by the column passes by a file whose
# greatest value is less by that: to_pyarrow_dataset() and to_pyarrow_table(filters=...) and DuckDB over them,
# QueryBuilder, and Polars' scan_delta return fewer rows than the table has, or none, and delete() leaves them. A
# dataset loses the row of an infinity, too. No error; smaller numbers are all found.
# Releases: deltalake 1.6.6, pyarrow 26.0.1, duckdb 2.0.1, polars 2.1.0. Needs: bash, Python 3.11 or later with pip.
# Minutes: 0.5.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check deltalake==1.6.6 pyarrow==26.0.1 duckdb==2.0.1 polars==2.1.0

cat >"$WORK/show.py" <<'PYTHON'
import importlib.metadata
import os
import sys
from decimal import Decimal
from math import inf

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder, write_deltalake

CASES = (
    (pa.decimal128(20, 2), "decimal(20,2)", [Decimal("19.99"), Decimal("5.00")]),
    (pa.decimal128(20, 2), "decimal(20,2)", [Decimal("12345678901234567.89"), Decimal("5.00")]),
    (pa.decimal128(38, 18), "decimal(38,18)", [Decimal("1.123456789012345701"), Decimal(1)]),
    (pa.decimal128(20, 0), "decimal(20,0)", [Decimal(2**64 - 1), Decimal(2**63)]),
    (pa.float64(), "double", [2.5, 1.0]),
    (pa.float64(), "double", [inf, 1.0]),
)

print(*(f"{name} {importlib.metadata.version(name)}" for name in ("deltalake", "pyarrow", "duckdb", "polars")))
for number, (kind, name, values) in enumerate(CASES):
    path = f"{sys.argv[1]}/{number}"
    write_deltalake(path, pa.table({"v": pa.array(values, kind)}))
    table = DeltaTable(path)
    dataset = table.to_pyarrow_dataset()
    print(f"{name}: {values[0]}, {values[1]}; statistics {table.get_add_actions(flatten=True)['max.v'][0].as_py()}")
    for value in values:
        sql = f"v >= cast('{value}' as {name})"
        condition = pc.field("v") >= pa.scalar(value, kind)
        query = f"select v from t where {sql}"
        counts = {
            "in memory": len(dataset.to_table().filter(condition)),
            "dataset": len(dataset.to_table(filter=condition)),
            "filters=": len(table.to_pyarrow_table(filters=[("v", ">=", value)])),
            "DuckDB": len(duckdb.sql(f"select v from dataset where {sql}").fetchall()),
            "QueryBuilder": len(QueryBuilder().register("t", table).execute(query).read_all()),
            "Polars": pl.scan_delta(path).filter(pl.col("v") >= pl.lit(value)).collect().height,
        }
        other = f"{path}-{value}"
        write_deltalake(other, dataset.to_table())
        counts["delete"] = DeltaTable(other).delete(sql)["num_deleted_rows"]
        print(f"  v >= {value}:", ", ".join(f"{reader} {count}" for reader, count in counts.items()))
sys.stdout.flush()
os._exit(0)  # without waiting for the threads of the library
PYTHON
"$PY" "$WORK/show.py" "$WORK" >"$WORK/seen" 2>"$WORK/show.log"

cat >"$WORK/expected" <<'EXPECTED'
deltalake 1.6.6 pyarrow 26.0.1 duckdb 2.0.1 polars 2.1.0
decimal(20,2): 19.99, 5.00; statistics 19.99
  v >= 19.99: in memory 1, dataset 1, filters= 1, DuckDB 1, QueryBuilder 1, Polars 1, delete 1
  v >= 5.00: in memory 2, dataset 2, filters= 2, DuckDB 2, QueryBuilder 2, Polars 2, delete 2
decimal(20,2): 12345678901234567.89, 5.00; statistics None
  v >= 12345678901234567.89: in memory 1, dataset 0, filters= 0, DuckDB 0, QueryBuilder 1, Polars 1, delete 1
  v >= 5.00: in memory 2, dataset 2, filters= 2, DuckDB 2, QueryBuilder 2, Polars 2, delete 2
decimal(38,18): 1.123456789012345701, 1; statistics 1.123456789012345700
  v >= 1.123456789012345701: in memory 1, dataset 0, filters= 0, DuckDB 0, QueryBuilder 0, Polars 0, delete 0
  v >= 1: in memory 2, dataset 2, filters= 2, DuckDB 2, QueryBuilder 2, Polars 2, delete 2
decimal(20,0): 18446744073709551615, 9223372036854775808; statistics 9223372036854775807
  v >= 18446744073709551615: in memory 1, dataset 0, filters= 0, DuckDB 0, QueryBuilder 0, Polars 0, delete 0
  v >= 9223372036854775808: in memory 2, dataset 0, filters= 0, DuckDB 0, QueryBuilder 0, Polars 0, delete 0
double: 2.5, 1.0; statistics 2.5
  v >= 2.5: in memory 1, dataset 1, filters= 1, DuckDB 1, QueryBuilder 1, Polars 1, delete 1
  v >= 1.0: in memory 2, dataset 2, filters= 2, DuckDB 2, QueryBuilder 2, Polars 2, delete 2
double: inf, 1.0; statistics None
  v >= inf: in memory 1, dataset 0, filters= 0, DuckDB 1, QueryBuilder 1, Polars 1, delete 1
  v >= 1.0: in memory 2, dataset 2, filters= 2, DuckDB 2, QueryBuilder 2, Polars 2, delete 2
EXPECTED
what="filters and deletes of deltalake miss rows of decimals beyond the digits of a double"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
