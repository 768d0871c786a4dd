#!/usr/bin/env bash
# connectorx.read_sql reads a query in ranges of a column, at the same time: partition_on, and partition_range for those who know
# the column's least and greatest value. For pandas, the default, the frame is made for the number of rows that the query has, and
# each row that no range has is a row of zeros, with an id of 0 that no row of the table has: of 20 rows 5 are read and 15 are
# zeros, and an order that has come since the range was asked for is a row of zeros. Sums are too small and counts are right. A
# null in the column does the same, which the README rules out and the description of read_sql and Polars' does not; in Polars
# and Arrow the rows are missing. No error and no warning. Spark's JDBC reader gives the rows outside to the ends of the range.
# Releases: connectorx 0.4.6, polars 2.1.0, pandas 2.3.3. Needs: bash, Python 3.11 or later with pip. Minutes: 0.5.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check connectorx==0.4.6 polars==2.1.0 pandas==2.3.3 pyarrow==26.0.1

cat >"$WORK/show.py" <<'PYTHON'
import importlib.metadata
import sqlite3
import sys

import connectorx
import polars

file = f"{sys.argv[1]}/shop.db"
uri, query = f"sqlite://{file}", "SELECT id, voucher, paid FROM orders"
database = sqlite3.connect(file)
database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, voucher INTEGER, paid REAL NOT NULL)")


def insert(first, last):
    """Insert orders; every fifth has no voucher."""
    rows = [(number, None if number % 5 == 0 else number * 10, number + 0.5) for number in range(first, last + 1)]
    database.executemany("INSERT INTO orders VALUES (?, ?, ?)", rows)
    database.commit()


def show(words, **settings):
    """Print what each kind of frame has of the query."""
    print(words)
    frame = connectorx.read_sql(uri, query, **settings)
    zeros = int(((frame["id"] == 0) & (frame["paid"] == 0.0)).sum())
    print(f"  pandas: {len(frame)} rows, {zeros} of them zeros, sum of paid {frame['paid'].sum()}")
    frame = polars.read_database_uri(query, uri, **settings)
    print(f"  Polars: {len(frame)} rows, sum of paid {frame['paid'].sum()}")
    print(f"  Arrow: {connectorx.read_sql(uri, query, return_type='arrow', **settings).num_rows} rows")


print(*(f"{name} {importlib.metadata.version(name)}" for name in ("connectorx", "polars", "pandas")))
insert(1, 20)
print("in the database:", *database.execute("SELECT count(*), min(id), sum(paid) FROM orders"))
show("without partitions")
show("partition_on='id'", partition_on="id", partition_num=2)
show("and the range 1 to 20", partition_on="id", partition_num=2, partition_range=(1, 20))
show("and the range 6 to 10", partition_on="id", partition_num=2, partition_range=(6, 10))
show("partition_on='voucher', of which 4 are null", partition_on="voucher", partition_num=2)
insert(21, 21)
print("after one more order:", *database.execute("SELECT count(*), min(id), sum(paid) FROM orders"))
show("the range 1 to 20", partition_on="id", partition_num=2, partition_range=(1, 20))
PYTHON
"$PY" "$WORK/show.py" "$WORK" >"$WORK/seen" 2>"$WORK/show.log"

cat >"$WORK/expected" <<'EXPECTED'
connectorx 0.4.6 polars 2.1.0 pandas 2.3.3
in the database: (20, 1, 220.0)
without partitions
  pandas: 20 rows, 0 of them zeros, sum of paid 220.0
  Polars: 20 rows, sum of paid 220.0
  Arrow: 20 rows
partition_on='id'
  pandas: 20 rows, 0 of them zeros, sum of paid 220.0
  Polars: 20 rows, sum of paid 220.0
  Arrow: 20 rows
and the range 1 to 20
  pandas: 20 rows, 0 of them zeros, sum of paid 220.0
  Polars: 20 rows, sum of paid 220.0
  Arrow: 20 rows
and the range 6 to 10
  pandas: 20 rows, 15 of them zeros, sum of paid 42.5
  Polars: 5 rows, sum of paid 42.5
  Arrow: 5 rows
partition_on='voucher', of which 4 are null
  pandas: 20 rows, 4 of them zeros, sum of paid 168.0
  Polars: 16 rows, sum of paid 168.0
  Arrow: 16 rows
after one more order: (21, 1, 241.5)
the range 1 to 20
  pandas: 21 rows, 1 of them zeros, sum of paid 220.0
  Polars: 20 rows, sum of paid 220.0
  Arrow: 20 rows
EXPECTED
what="connectorx gives pandas a row of zeros for each row that no partition has"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
