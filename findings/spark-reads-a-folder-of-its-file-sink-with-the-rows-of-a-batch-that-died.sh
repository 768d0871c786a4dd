#!/usr/bin/env bash
# Spark's file sink lists the files of finished batches in _spark_metadata, and a batch that dies leaves its files beside those
# of its second try. Spark reads by the list if it is given the sink's own folder. Given the folder of one partition, or a glob,
# as people do to read one day, it reads what lies there: the rows of the dead batch come twice, without an error. The same day
# by a filter on the sink's folder comes once. pyarrow and DuckDB know nothing of the list.
# Releases: PySpark 4.3.0, pyarrow 26.0.1, duckdb 2.0.1. Needs: Python 3.11 or later with pip, Java 17. Takes about one minute.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check pyspark==4.3.0 pyarrow==26.0.1 duckdb==2.0.1

cat >"$WORK/show.py" <<'PYTHON'
import os
import signal
import sys

import duckdb
import pyarrow
import pyarrow.dataset
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

os.environ["PYSPARK_PYTHON"] = sys.executable
root, what = sys.argv[1:]
output, dies = f"{root}/output", what == "die"
settings = {"spark.ui.enabled": "false", "spark.log.level": "ERROR", "spark.sql.files.openCostInBytes": "0"}
settings["spark.sql.files.maxPartitionBytes"] = "50"  # a task for each file, the larger one first
spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
driver = spark._jvm.java.lang.ProcessHandle.current().pid()


@udf("long")
def same(number):
    """Return the number; the first run gets kill -9 in its second task, when the first has written its file."""
    if dies and TaskContext.get().partitionId() == 1:
        os.kill(driver, signal.SIGKILL)
    return number


rows = spark.readStream.schema("id long, day string").json(f"{root}/input")
query = (
    rows.select(same("id").alias("id"), "day")
    .writeStream.format("parquet")
    .partitionBy("day")
    .option("path", output)
    .option("checkpointLocation", f"{root}/checkpoint")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()


def show(words, read):
    print(f"{words}: {sorted(read)}")


def ids(frame):
    return [row.id for row in frame.collect()]


print(f"PySpark {spark.version}, pyarrow {pyarrow.__version__}, duckdb {duckdb.__version__}")
print("input: [1, 2] of the day mon, [3] of the day tue; exception of the second run:", query.exception())
show("Spark, output", ids(spark.read.parquet(output)))
show("Spark, output, where day = 'mon'", ids(spark.read.parquet(output).where("day = 'mon'")))
show("Spark, output/day=mon", ids(spark.read.parquet(f"{output}/day=mon")))
show("Spark, output/day=mon with basePath", ids(spark.read.option("basePath", output).parquet(f"{output}/day=mon")))
show("Spark, output/*", ids(spark.read.parquet(f"{output}/*")))
show("pyarrow, output", pyarrow.dataset.dataset(output, partitioning="hive").to_table()["id"].to_pylist())
show("DuckDB, output/*/*.parquet", [i for (i,) in duckdb.sql(f"SELECT id FROM '{output}/*/*.parquet'").fetchall()])
PYTHON
mkdir "$WORK/input"
printf '{"id": 1, "day": "mon"}\n{"id": 2, "day": "mon"}\n' >"$WORK/input/mon.json"
printf '{"id": 3, "day": "tue"}\n' >"$WORK/input/tue.json"
if "$PY" "$WORK/show.py" "$WORK" die >"$WORK/die.log" 2>&1; then false; fi
"$PY" "$WORK/show.py" "$WORK" go-on >"$WORK/seen" 2>"$WORK/spark.log"

cat >"$WORK/expected" <<'EXPECTED'
PySpark 4.3.0, pyarrow 26.0.1, duckdb 2.0.1
input: [1, 2] of the day mon, [3] of the day tue; exception of the second run: None
Spark, output: [1, 2, 3]
Spark, output, where day = 'mon': [1, 2]
Spark, output/day=mon: [1, 1, 2, 2]
Spark, output/day=mon with basePath: [1, 1, 2, 2]
Spark, output/*: [1, 1, 2, 2, 3]
pyarrow, output: [1, 1, 2, 2, 3]
DuckDB, output/*/*.parquet: [1, 1, 2, 2, 3]
EXPECTED
what="Spark reads the rows of a dead batch, too, from a partition's folder or a glob of its own file sink"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
