#!/usr/bin/env bash
# Spark's timestamps have microseconds. to_json, as one writes the value of a Kafka record, and the JSON and CSV files of Spark
# keep three digits of them, by their default format: two events of one millisecond have one time, and what from_json reads
# again is another time. A cast to a string keeps six digits, a key of a map is a number of microseconds, and from_json
# reads six: only the writers cut. With a timestampFormat of six S they do not.
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

from pyspark.sql import SparkSession

os.environ["PYSPARK_PYTHON"] = sys.executable
settings = {"spark.ui.enabled": "false", "spark.sql.session.timeZone": "UTC", "spark.log.level": "ERROR"}
spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()


def show(name, expression):
    print(f"{name}: {spark.sql(f'select {expression} as it').first().it}")


print("PySpark", spark.version)
time = "timestamp'2024-01-01 00:00:00.123456Z'"
show("cast", f"cast({time} as string)")
show("to_json", f"to_json(struct({time} as t))")
show("to_json of a timestamp_ntz", f"to_json(struct(cast({time} as timestamp_ntz) as t))")
show("to_json of a map's key", f"to_json(map({time}, 1))")
show("to_csv", f"to_csv(struct({time} as t))")
table = spark.sql(f"select {time} as t")
for kind in ("json", "csv", "parquet"):
    table.write.format(kind).save(f"{sys.argv[1]}/{kind}")
    read = spark.read.schema("t timestamp").format(kind).load(f"{sys.argv[1]}/{kind}")
    print(f"{kind} file, read again: {read.selectExpr('cast(t as string) as t').first().t}")
show("from_json of six digits", """from_json('{"t": "2024-01-01T00:00:00.123456Z"}', 't timestamp').t""")
show("from_json of to_json is the same", f"from_json(to_json(struct({time} as t)), 't timestamp').t = {time}")
six = "map('timestampFormat', 'yyyy-MM-dd\\'T\\'HH:mm:ss.SSSSSSXXX')"
show("to_json with a format", f"to_json(struct({time} as t), {six})")
PYTHON
"$PY" "$WORK/show.py" "$WORK" >"$WORK/seen" 2>"$WORK/spark.log"

cat >"$WORK/expected" <<'EXPECTED'
PySpark 4.3.0
cast: 2024-01-01 00:00:00.123456
to_json: {"t":"2024-01-01T00:00:00.123Z"}
to_json of a timestamp_ntz: {"t":"2024-01-01T00:00:00.123"}
to_json of a map's key: {"1704067200123456":1}
to_csv: 2024-01-01T00:00:00.123Z
json file, read again: 2024-01-01 00:00:00.123
csv file, read again: 2024-01-01 00:00:00.123
parquet file, read again: 2024-01-01 00:00:00.123456
from_json of six digits: 2024-01-01 00:00:00.123456
from_json of to_json is the same: False
to_json with a format: {"t":"2024-01-01T00:00:00.123456Z"}
EXPECTED
what="Spark's JSON and CSV cut times to milliseconds"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
