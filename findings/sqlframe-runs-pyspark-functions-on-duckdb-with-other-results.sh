#!/usr/bin/env bash
# SQLFrame runs PySpark code on DuckDB, by an import or by its activate(), so that a pipeline can run and be tested without Spark.
# Functions that its list of supported ones has without a remark give other results on ordinary values, without an error: a cast
# of 3.5 to int rounds, slice() returns an element too many and nothing for a negative start, array_max() is null as soon as one
# element is, and array_except(), array_remove() and array_union() drop the null; regexp_replace() writes $1 as it stands,
# date_format() the SSS; collect_list() keeps nulls, and rank() over nulls begins at the other end.
# Releases: sqlframe 4.10.0 with sqlglot 30.29.0, duckdb 2.0.1, PySpark 4.3.0.
# Needs: bash, Python 3.11 or later with pip, Java 17. Minutes: 1.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check sqlframe==4.10.0 sqlglot==30.29.0 duckdb==2.0.1 \
    pandas==2.3.3 pyspark==4.3.0

cat >"$WORK/show.py" <<'PYTHON'
import sys

if sys.argv[1] == "SQLFrame":
    from sqlframe import activate

    activate(engine="duckdb")
from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as F

builder = SparkSession.builder
if sys.argv[1] == "Spark":
    builder = builder.master("local[1]").config("spark.ui.enabled", "false").config("spark.log.level", "OFF")
    builder = builder.config("spark.sql.session.timeZone", "UTC")
spark = builder.getOrCreate()
rows = [(1, "ab-12", 2.5, None, [3, 1, None, 2]), (2, "cd-34", 3.5, 7, [4, 5, 6, 7]), (3, "ef", -3.5, 9, [8])]
frame = spark.createDataFrame(rows, "id int, code string, price double, stock int, sizes array<int>")
frame = frame.withColumn("at", F.lit("2026-01-02 03:04:05.678").cast("timestamp"))
COLUMNS = {
    "price.cast('int')": F.col("price").cast("int"),
    "slice(sizes, 2, 2)": F.slice("sizes", 2, 2),
    "slice(sizes, -2, 2)": F.slice("sizes", -2, 2),
    "array_max(sizes)": F.array_max("sizes"),
    "array_except(sizes, [3])": F.sort_array(F.array_except("sizes", F.array(F.lit(3)))),
    "array_remove(sizes, 3)": F.array_remove("sizes", 3),
    "array_union(sizes, [9])": F.sort_array(F.array_union("sizes", F.array(F.lit(9)))),
    "regexp_replace(code, '([a-z]+)-([0-9]+)', '$2/$1')": F.regexp_replace("code", "([a-z]+)-([0-9]+)", "$2/$1"),
    "date_format(at, 'HH:mm:ss.SSS')": F.date_format("at", "HH:mm:ss.SSS"),
    "sequence(3, 1)": F.sequence(F.lit(3), F.lit(1)),
    "rank() over stock": F.rank().over(Window.orderBy("stock")),
}
results = {
    words: [row[0] for row in frame.select(column.alias("value"), "id").orderBy("id").collect()] for words, column in COLUMNS.items()
}
results["collect_list(stock)"] = frame.agg(F.sort_array(F.collect_list("stock")).alias("value")).collect()[0][0]
for words, result in results.items():
    print(f"{words}:" if sys.argv[1] == "SQLFrame" else "  Spark:", result)
PYTHON
"$PY" "$WORK/show.py" SQLFrame >"$WORK/sqlframe" 2>"$WORK/sqlframe.log"
"$PY" "$WORK/show.py" Spark >"$WORK/spark" 2>"$WORK/spark.log"
"$PY" -m pip list 2>/dev/null | grep -iE '^(sqlframe|sqlglot|duckdb|pyspark) ' | tr -s ' ' >"$WORK/seen"
paste -d '\n' "$WORK/sqlframe" "$WORK/spark" >>"$WORK/seen"

cat >"$WORK/expected" <<'EXPECTED'
duckdb 2.0.1
pyspark 4.3.0
sqlframe 4.10.0
sqlglot 30.29.0
price.cast('int'): [2, 4, -4]
  Spark: [2, 3, -3]
slice(sizes, 2, 2): [[1, None, 2], [5, 6, 7], []]
  Spark: [[1, None], [5, 6], []]
slice(sizes, -2, 2): [[], [], []]
  Spark: [[None, 2], [6, 7], []]
array_max(sizes): [None, 7, 8]
  Spark: [3, 7, 8]
array_except(sizes, [3]): [[1, 2], [4, 5, 6, 7], [8]]
  Spark: [[None, 1, 2], [4, 5, 6, 7], [8]]
array_remove(sizes, 3): [[1, 2], [4, 5, 6, 7], [8]]
  Spark: [[1, None, 2], [4, 5, 6, 7], [8]]
array_union(sizes, [9]): [[1, 2, 3, 9], [4, 5, 6, 7, 9], [8, 9]]
  Spark: [[None, 1, 2, 3, 9], [4, 5, 6, 7, 9], [8, 9]]
regexp_replace(code, '([a-z]+)-([0-9]+)', '$2/$1'): ['$2/$1', '$2/$1', 'ef']
  Spark: ['12/ab', '34/cd', 'ef']
date_format(at, 'HH:mm:ss.SSS'): ['03:04:05.SSS', '03:04:05.SSS', '03:04:05.SSS']
  Spark: ['03:04:05.678', '03:04:05.678', '03:04:05.678']
sequence(3, 1): [[], [], []]
  Spark: [[3, 2, 1], [3, 2, 1], [3, 2, 1]]
rank() over stock: [3, 1, 2]
  Spark: [1, 2, 3]
collect_list(stock): [None, 7, 9]
  Spark: [7, 9]
EXPECTED
what="SQLFrame runs PySpark's functions on DuckDB with other results, without an error"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
