#!/usr/bin/env bash
# trigger(availableNow=True) is known to take everything that is there, in several batches if need be, and then to
# end. A query over a SimpleDataSourceStreamReader calls read() once, runs one batch with what that call returned, and
# ends without an error: a source that answers in pages leaves the other pages for the next runs, one page a run.
# While data waits the whole time, a plain trigger takes one page after the other.
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
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader

os.environ["PYSPARK_PYTHON"] = sys.executable
ROOT = Path(sys.argv[1])
settings = {
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
    "spark.python.authenticate.socketTimeout": "90s",
}
spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()


class Reader(SimpleDataSourceStreamReader):
    """Twelve rows in pages of three."""

    def initialOffset(self):
        return {"next": 0}

    def read(self, start):
        end = min(start["next"] + 3, 12)
        return iter([(number,) for number in range(start["next"], end)]), {"next": end}

    def readBetweenOffsets(self, start, end):
        return iter([(number,) for number in range(start["next"], end["next"])])


class Pages(DataSource):
    @classmethod
    def name(cls):
        return "pages"

    def schema(self):
        return "number int"

    def simpleStreamReader(self, schema):
        return Reader()


spark.dataSource.register(Pages)
rows = []


def query(checkpoint, **trigger):
    rows.clear()
    writer = spark.readStream.format("pages").load().writeStream
    writer = writer.foreachBatch(lambda df, number: rows.append(sorted(r.number for r in df.collect())))
    writer = writer.option("checkpointLocation", str(ROOT / checkpoint))
    return (writer.trigger(**trigger) if trigger else writer).start()


print("PySpark", spark.version)
for run in ("first", "second"):
    started = query("checkpoint-1", availableNow=True)
    ended = started.awaitTermination(120)
    print(f"{run} run with availableNow: ended {ended}, exception {started.exception()}, batches {rows}")
started, end = query("checkpoint-2"), time.monotonic() + 120
while time.monotonic() < end and started.isActive and len([batch for batch in rows if batch]) < 4:
    time.sleep(0.1)
started.stop()
print("a run without it: batches", [batch for batch in rows if batch])
PYTHON
"$PY" "$WORK/show.py" "$WORK" >"$WORK/seen" 2>"$WORK/spark.log"

cat >"$WORK/expected" <<'EXPECTED'
PySpark 4.3.0
first run with availableNow: ended True, exception None, batches [[0, 1, 2]]
second run with availableNow: ended True, exception None, batches [[3, 4, 5]]
a run without it: batches [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
EXPECTED
what="availableNow over a simple Python source ends after one call of read(), with rows left"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
