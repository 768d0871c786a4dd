#!/usr/bin/env bash
# Spark's Parquet reader under a schema that says int, or bigint, returns the stored digits of a decimal: 1.10 is 110, in a batch,
# in a stream and in a table of int to whose folder a file of decimals came. Under tinyint and smallint an int keeps its low
# bits: 300 is 44, 70000 is 4464. No error, with the vectorized reader and without it, although the reader refuses a double and
# a bigint under int. ORC gives 1 for 1.10 and null for the integers, and pyarrow refuses all of them.
# Releases: PySpark 4.3.0, pyarrow 25.0.1. Needs: Python 3.11 or later with pip, Java 17. Takes about one minute.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check pyspark==4.3.0 pyarrow==25.0.1

cat >"$WORK/show.py" <<'PYTHON'
import os
import sys

import pyarrow as pa
import pyarrow.dataset
from pyspark.sql import SparkSession

WORK = sys.argv[1]
os.environ["PYSPARK_PYTHON"] = sys.executable
settings = {"spark.ui.enabled": "false", "spark.log.level": "OFF", "spark.sql.session.timeZone": "UTC"}
spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
ARROW = {"int": pa.int32(), "bigint": pa.int64(), "tinyint": pa.int8(), "smallint": pa.int16()}
print("PySpark", spark.version, "pyarrow", pa.__version__)


def shown(read):
    """Return the values that a read gives, or that it is refused."""
    try:
        return [None if value is None else str(value) for value in read()]
    except Exception:
        return "refused"


def column(frame):
    return [row.a for row in frame.orderBy("a").collect()]


for number, (value, stored, kind) in enumerate(
    (
        ("1.10", "decimal(5,2)", "int"),
        ("-1234567.89", "decimal(9,2)", "int"),
        ("1.10", "decimal(18,2)", "bigint"),
        ("1.10", "decimal(18,2)", "int"),
        ("300", "int", "tinyint"),
        ("70000", "int", "smallint"),
        ("3000000000", "bigint", "int"),
        ("2.5", "double", "int"),
    )
):
    rows = spark.sql(f"SELECT CAST('{value}' AS {stored}) AS a").coalesce(1)
    found = []
    for form in ("parquet", "orc"):
        rows.write.format(form).save(f"{WORK}/{form}{number}")
    folder = f"{WORK}/parquet{number}"
    for vectorized in ("true", "false"):
        spark.conf.set("spark.sql.parquet.enableVectorizedReader", vectorized)
        found.append(shown(lambda: column(spark.read.schema(f"a {kind}").parquet(folder))))
    spark.conf.set("spark.sql.parquet.enableVectorizedReader", "true")
    print(f"{value}, {stored} under {kind}: Parquet {found[0]}, not vectorized {found[1]}")
    print("  ORC", shown(lambda: column(spark.read.schema(f"a {kind}").orc(f"{WORK}/orc{number}"))), end=", ")
    schema = pa.schema([("a", ARROW[kind])])
    print("pyarrow", shown(lambda: pyarrow.dataset.dataset(folder, schema=schema).to_table()["a"].to_pylist()))

stream = spark.readStream.schema("a int").parquet(f"{WORK}/parquet0")
seen = []
writer = stream.writeStream.option("checkpointLocation", f"{WORK}/checkpoint").trigger(availableNow=True)
writer.foreachBatch(lambda frame, _: seen.extend(column(frame))).start().awaitTermination()
print("as a stream, 1.10 under int:", seen)
spark.sql(f"CREATE TABLE t (a int) USING parquet LOCATION '{WORK}/table'")
spark.sql("INSERT INTO t VALUES (7)")
spark.sql("SELECT CAST(1.10 AS decimal(5,2)) AS a").write.mode("append").parquet(f"{WORK}/table")
spark.catalog.refreshTable("t")
print("a table of int, a file of integers and one of decimals:", column(spark.table("t")))
PYTHON
(cd "$WORK" && "$PY" "$WORK/show.py" "$WORK" >"$WORK/seen" 2>"$WORK/spark.log")

cat >"$WORK/expected" <<'EXPECTED'
PySpark 4.3.0 pyarrow 25.0.1
1.10, decimal(5,2) under int: Parquet ['110'], not vectorized ['110']
  ORC ['1'], pyarrow refused
-1234567.89, decimal(9,2) under int: Parquet ['-123456789'], not vectorized ['-123456789']
  ORC ['-1234567'], pyarrow refused
1.10, decimal(18,2) under bigint: Parquet ['110'], not vectorized ['110']
  ORC ['1'], pyarrow refused
1.10, decimal(18,2) under int: Parquet refused, not vectorized refused
  ORC ['1'], pyarrow refused
300, int under tinyint: Parquet ['44'], not vectorized ['44']
  ORC [None], pyarrow refused
70000, int under smallint: Parquet ['4464'], not vectorized ['4464']
  ORC [None], pyarrow refused
3000000000, bigint under int: Parquet refused, not vectorized refused
  ORC [None], pyarrow refused
2.5, double under int: Parquet refused, not vectorized refused
  ORC ['2'], pyarrow refused
as a stream, 1.10 under int: [110]
a table of int, a file of integers and one of decimals: [7, 110]
EXPECTED
what="Spark's Parquet reader under int returns the stored digits of a decimal, and under tinyint the low bits of an int"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
