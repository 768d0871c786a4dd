#!/usr/bin/env bash
# now() is documented as current_timestamp() by another name. When Spark runs a batch again after a crash,
# current_timestamp(), localtimestamp() and current_date() in the streaming plan give the time of the first try, which
# offsets/N holds, days before if need be; now() gives the time of the second try, as rand() and uuid() give new
# values. Inside foreachBatch current_timestamp() is new, too.
# Release: PySpark 4.3.0. Needs: Python 3.11 or later with pip, Java 17. Takes about one minute.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check pyspark==4.3.0

cat >"$WORK/show.py" <<'PYTHON'
import os
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

os.environ["PYSPARK_PYTHON"] = sys.executable
ROOT = Path(sys.argv[1])
settings = {"spark.ui.enabled": "false", "spark.log.level": "ERROR"}
spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
(ROOT / "input").mkdir()
(ROOT / "input" / "1.json").write_text('{"id": 1}\n')
tries = []


def batch(df, number):
    """Fail in the first try, after the rows were read."""
    tries.append({"batch": number} | df.withColumn("inside", F.current_timestamp()).collect()[0].asDict())
    if len(tries) == 1:
        raise RuntimeError("the driver dies here")


def run():
    query = (
        spark.readStream.schema("id long")
        .json(str(ROOT / "input"))
        .withColumns({"before": F.current_timestamp(), "sql_now": F.expr("now()"), "date": F.current_date()})
        .withColumns({"local": F.localtimestamp(), "unix": F.expr("unix_timestamp()")})
        .withColumns({"rand": F.rand(), "uuid": F.expr("uuid()")})
        .writeStream.foreachBatch(batch)
        .option("checkpointLocation", str(ROOT / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination()
    except Exception as e:
        assert "the driver dies here" in str(e)


run()
time.sleep(2)
run()
first, second = tries
print("PySpark", spark.version)
print("two tries of one batch:", first["batch"] == second["batch"])
for name, column in (
    ("current_timestamp() before the sink", "before"),
    ("now() before the sink", "sql_now"),
    ("current_date() before the sink", "date"),
    ("localtimestamp() before the sink", "local"),
    ("unix_timestamp() before the sink", "unix"),
    ("rand() before the sink", "rand"),
    ("uuid() before the sink", "uuid"),
    ("current_timestamp() inside foreachBatch", "inside"),
):
    print(f"{name}: {'the same in both tries' if first[column] == second[column] else 'another in the second try'}")
PYTHON
"$PY" "$WORK/show.py" "$WORK" >"$WORK/seen" 2>"$WORK/spark.log"

cat >"$WORK/expected" <<'EXPECTED'
PySpark 4.3.0
two tries of one batch: True
current_timestamp() before the sink: the same in both tries
now() before the sink: another in the second try
current_date() before the sink: the same in both tries
localtimestamp() before the sink: the same in both tries
unix_timestamp() before the sink: the same in both tries
rand() before the sink: another in the second try
uuid() before the sink: another in the second try
current_timestamp() inside foreachBatch: another in the second try
EXPECTED
what="a batch that runs again gets the current_timestamp() of its first try and a now() of its own"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
