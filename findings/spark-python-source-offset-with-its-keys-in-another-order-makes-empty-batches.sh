#!/usr/bin/env bash
# A Python data source names its offset as a dict, such as one number for each of its partitions. Spark compares the
# JSON texts: the same dict with its keys in another order (built from a set, or from an answer that is not sorted) is
# a new offset. The query then runs one empty batch after the other, each with its files in offsets and commits and a
# commit in the sink.
# Release: PySpark 4.3.0. Needs: Python 3.11 or later with pip, Java 17. Takes about one minute.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check pyspark==4.3.0 pyarrow==26.0.1

cat >"$WORK/show.py" <<'PYTHON'
import os
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

os.environ["PYSPARK_PYTHON"] = sys.executable
ROOT = Path(sys.argv[1])
settings = {
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
    "spark.python.authenticate.socketTimeout": "90s",
}
spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()


class Reader(DataSourceStreamReader):
    """Two partitions of five rows each, and never a row more."""

    def __init__(self, turning):
        self.turning, self.calls = turning, 0

    def initialOffset(self):
        return {"left": 0, "right": 0}

    def latestOffset(self, *_):
        self.calls += 1
        keys = ("right", "left") if self.turning and self.calls % 2 else ("left", "right")
        with (ROOT / f"calls-{self.turning}").open("a") as file:
            file.write(".")
        return dict.fromkeys(keys, 5)

    def partitions(self, start, end):
        return [InputPartition((key, start[key], end[key])) for key in sorted(start)]

    def read(self, partition):
        key, start, end = partition.value
        for number in range(start, end):
            yield key, number


class Source(DataSource):
    @classmethod
    def name(cls):
        return "two_sides"

    def schema(self):
        return "side string, number int"

    def streamReader(self, schema):
        return Reader(self.options["turning"] == "yes")


spark.dataSource.register(Source)


def calls(turning):
    file = ROOT / f"calls-{turning}"
    return file.stat().st_size if file.exists() else 0


def batches(turning):
    """Return the rows of the batches of a query until its source was asked twelve times, or ran six batches."""
    rows = []
    query = (
        spark.readStream.format("two_sides")
        .option("turning", "yes" if turning else "no")
        .load()
        .writeStream.foreachBatch(lambda df, number: rows.append(df.count()))
        .option("checkpointLocation", str(ROOT / f"checkpoint-{turning}"))
        .start()
    )
    end = time.monotonic() + 120
    while time.monotonic() < end and query.isActive and len(rows) < 6 and calls(turning) < 12:
        time.sleep(0.1)
    query.stop()
    return rows[:6]


print("PySpark", spark.version)
print("the offset's keys always in one order, rows of its batches:", batches(False))
print("the offset's keys in turn in another order, rows of its first batches:", batches(True))
PYTHON
"$PY" "$WORK/show.py" "$WORK" >"$WORK/seen" 2>"$WORK/spark.log"

cat >"$WORK/expected" <<'EXPECTED'
PySpark 4.3.0
the offset's keys always in one order, rows of its batches: [10]
the offset's keys in turn in another order, rows of its first batches: [10, 0, 0, 0, 0, 0]
EXPECTED
what="Spark takes the offset of a Python source for a new one when only the order of its keys has changed"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
