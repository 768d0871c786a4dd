#!/usr/bin/env bash
# A Parquet file has a column of doubles with a NaN among numbers. Its statistics have the least and the greatest of
# the numbers, as the format wants it, which says that a reader who looks for NaN must not use them. Some use them: in
# a file of pyarrow or Polars DuckDB finds no row "where isnan(f)", and where all the numbers are one number, a
# dataset of pyarrow, DataFusion and a scan of pyiceberg find none either. Where the numbers differ, DuckDB returns
# the NaN "where not isnan(f)". No error: a check for NaN passes. Polars finds the row, and pyiceberg's delete takes
# it.
# Releases: pyarrow 26.0.1, duckdb 2.0.1, datafusion 55.0.0, pyiceberg 0.12.0, polars 2.1.0. Needs: bash, Python 3.11
# or later with pip. Minutes: 1.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check pyarrow==26.0.1 duckdb==2.0.1 datafusion==55.0.0 \
    'pyiceberg[sql-sqlite]==0.12.0' polars==2.1.0

cat >"$WORK/show.py" <<'PYTHON'
import importlib.metadata
import sys

import datafusion
import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog

FOLDER = sys.argv[1]
PACKAGES = ("pyarrow", "duckdb", "datafusion", "pyiceberg", "polars")
catalog = SqlCatalog("c", uri=f"sqlite:///{FOLDER}/catalog.db", warehouse=f"file://{FOLDER}/warehouse")
catalog.create_namespace("d")


def pyarrow_finds(path):
    nan = pc.is_nan(pc.field("f"))
    return [ds.dataset(path).to_table(filter=condition)["f"].to_pylist() for condition in (nan, ~nan)]


def duckdb_finds(path):
    query = f"select f from '{path}' where"
    return [[row[0] for row in duckdb.sql(f"{query} {c}").fetchall()] for c in ("isnan(f)", "not isnan(f)")]


def datafusion_finds(path):
    context = datafusion.SessionContext()
    context.register_parquet("t", path)
    query = "select f from t where"
    return [[row["f"] for row in context.sql(f"{query} {c}").to_pylist()] for c in ("isnan(f)", "not isnan(f)")]


def polars_finds(path):
    nan = pl.col("f").is_nan()
    return [pl.scan_parquet(path).filter(condition).collect()["f"].to_list() for condition in (nan, ~nan)]


def pyiceberg_finds(table):
    return [table.scan(row_filter=c).to_arrow()["f"].to_pylist() for c in ("f is nan", "f is not nan")]


WRITERS = {
    "pyarrow": lambda rows, path: pq.write_table(rows, path),
    "polars": lambda rows, path: pl.from_arrow(rows).write_parquet(path),
    "duckdb": lambda rows, path: duckdb.sql(f"copy (from rows) to '{path}' (format parquet)"),
}

print(*(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES))
for name, values in {"one": [1.0, 1.0, float("nan")], "two": [1.0, 2.0, float("nan")]}.items():
    print(f"rows {values}; then what each finds where NaN, and where not NaN")
    rows = pa.table({"f": values})
    for writer, write in WRITERS.items():
        path = f"{FOLDER}/{name}-{writer}.parquet"
        write(rows, path)
        statistics = pq.ParquetFile(path).metadata.row_group(0).column(0).statistics
        limits = f"{statistics.min} to {statistics.max}" if statistics.has_min_max else "none"
        print(f"  written by {writer}, statistics {limits}:")
        for finds in (pyarrow_finds, duckdb_finds, datafusion_finds, polars_finds):
            print("   ", finds.__name__.replace("_finds", ":"), *finds(path))
    iceberg = catalog.create_table("d." + name, schema=rows.schema)
    iceberg.append(rows)
    print("  pyiceberg:", *pyiceberg_finds(iceberg), end=", ")
    iceberg.delete("f is nan")
    print("and after its delete of NaN:", iceberg.scan().to_arrow()["f"].to_pylist())
PYTHON
"$PY" "$WORK/show.py" "$WORK" >"$WORK/seen" 2>"$WORK/show.log"

cat >"$WORK/expected" <<'EXPECTED'
pyarrow 26.0.1 duckdb 2.0.1 datafusion 55.0.0 pyiceberg 0.12.0 polars 2.1.0
rows [1.0, 1.0, nan]; then what each finds where NaN, and where not NaN
  written by pyarrow, statistics 1.0 to 1.0:
    pyarrow: [] [1.0, 1.0]
    duckdb: [] [1.0, 1.0]
    datafusion: [] [1.0, 1.0, 1.0]
    polars: [nan] [1.0, 1.0]
  written by polars, statistics 1.0 to 1.0:
    pyarrow: [] [1.0, 1.0]
    duckdb: [] [1.0, 1.0]
    datafusion: [] [1.0, 1.0, 1.0]
    polars: [nan] [1.0, 1.0]
  written by duckdb, statistics none:
    pyarrow: [nan] [1.0, 1.0]
    duckdb: [nan] [1.0, 1.0]
    datafusion: [nan] [1.0, 1.0]
    polars: [nan] [1.0, 1.0]
  pyiceberg: [] [1.0, 1.0], and after its delete of NaN: [1.0, 1.0]
rows [1.0, 2.0, nan]; then what each finds where NaN, and where not NaN
  written by pyarrow, statistics 1.0 to 2.0:
    pyarrow: [nan] [1.0, 2.0]
    duckdb: [] [1.0, 2.0, nan]
    datafusion: [nan] [1.0, 2.0]
    polars: [nan] [1.0, 2.0]
  written by polars, statistics 1.0 to 2.0:
    pyarrow: [nan] [1.0, 2.0]
    duckdb: [] [1.0, 2.0, nan]
    datafusion: [nan] [1.0, 2.0]
    polars: [nan] [1.0, 2.0]
  written by duckdb, statistics none:
    pyarrow: [nan] [1.0, 2.0]
    duckdb: [nan] [1.0, 2.0]
    datafusion: [nan] [1.0, 2.0]
    polars: [nan] [1.0, 2.0]
  pyiceberg: [nan] [1.0, 2.0], and after its delete of NaN: [1.0, 2.0]
EXPECTED
what="a filter for NaN misses the rows of a Parquet file that has numbers too"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
