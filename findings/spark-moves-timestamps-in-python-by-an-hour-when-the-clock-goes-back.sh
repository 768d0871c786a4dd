#!/usr/bin/env bash
# In autumn an hour comes twice on the clock: in Berlin 02:30 is an instant of UTC+2 and, an hour later, one of UTC+1.
# A timestamp of Spark is an instant, and Python gets it as the session's (pandas) or the process's (datetime) clock.
# A function that returns what it is given moves an hour's rows by an hour: with pandas, a plain UDF, collect() and
# toPandas() those of the first 02:30 come back as the second, and with an Arrow UDF those of the second as the first,
# so that a window or an order by event time has others. mapInArrow and toArrow keep them, TZ=UTC helps datetime
# alone, and there is no error.
# Releases: PySpark 4.3.0, pandas 2.3.3, pyarrow 25.0.1.
# Needs: bash, Python 3.11 or later with pip, Java 17. Minutes: 1 to 2.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check pyspark==4.3.0 pandas==2.3.3 pyarrow==25.0.1

cat >"$WORK/show.py" <<'PYTHON'
import importlib.metadata
import os

import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").config("spark.log.level", "OFF")
spark = builder.config("spark.sql.session.timeZone", "Europe/Berlin").getOrCreate()
frame = spark.sql("select id, timestamp'2026-10-25 00:00:00Z' + make_dt_interval(0, 0, id * 30) as at from range(5)")


def same(value):
    return value


@F.pandas_udf("timestamp")
def pandas_udf(values: pd.Series) -> pd.Series:
    return values


@F.pandas_udf("double")
def minutes_between(values: pd.Series) -> float:
    return (values.max() - values.min()).total_seconds() / 60


WAYS = {
    "pandas_udf": lambda: frame.withColumn("at", pandas_udf("at")),
    "mapInPandas": lambda: frame.mapInPandas(same, frame.schema),
    "applyInPandas": lambda: frame.groupBy("id").applyInPandas(same, frame.schema),
    "udf": lambda: frame.withColumn("at", F.udf(same, "timestamp", useArrow=False)("at")),
    "udf with Arrow": lambda: frame.withColumn("at", F.udf(same, "timestamp", useArrow=True)("at")),
    "collect": lambda: spark.createDataFrame(frame.collect(), frame.schema),
    "toPandas": lambda: spark.createDataFrame(frame.toPandas(), frame.schema),
    "mapInArrow": lambda: frame.mapInArrow(same, frame.schema),
    "toArrow": lambda: spark.createDataFrame(frame.toArrow()),
}


def instants(rows):
    return [row[0] for row in rows.orderBy("id").select(F.unix_seconds("at")).collect()]


before = instants(frame)
if os.environ["TZ"] != "UTC":
    print(*(f"{name} {importlib.metadata.version(name)}" for name in ("pyspark", "pandas", "pyarrow")))
    print("the rows:", *(row[0] for row in frame.orderBy("id").select(F.date_format("at", "HH:mmXXX")).collect()))
print(f"minutes by which they move, the process in {os.environ['TZ']}:")
for name, way in WAYS.items():
    print(f"  {name}:", *((after - first) // 60 for first, after in zip(before, instants(way()), strict=True)))
if os.environ["TZ"] != "UTC":
    between = frame.where("id in (0, 2)").select(minutes_between("at")).first()[0]
    print(f"minutes between the first 02:00 and the second for pandas: {between}")
    for name, rows in {"before": frame, "after": WAYS["pandas_udf"]()}.items():
        hours = rows.groupBy(F.window("at", "1 hour")).count().orderBy("window").collect()
        print(f"rows of each hour {name} the pandas_udf:", *(hour[1] for hour in hours))
PYTHON
for zone in Europe/Berlin UTC; do
    TZ=$zone PYSPARK_PYTHON=$PY "$PY" "$WORK/show.py" >>"$WORK/seen" 2>>"$WORK/show.log"
done

cat >"$WORK/expected" <<'EXPECTED'
pyspark 4.3.0 pandas 2.3.3 pyarrow 25.0.1
the rows: 02:00+02:00 02:30+02:00 02:00+01:00 02:30+01:00 03:00+01:00
minutes by which they move, the process in Europe/Berlin:
  pandas_udf: 60 60 0 0 0
  mapInPandas: 60 60 0 0 0
  applyInPandas: 60 60 0 0 0
  udf: 60 60 0 0 0
  udf with Arrow: 0 0 -60 -60 0
  collect: 60 60 0 0 0
  toPandas: 60 60 0 0 0
  mapInArrow: 0 0 0 0 0
  toArrow: 0 0 0 0 0
minutes between the first 02:00 and the second for pandas: 0.0
rows of each hour before the pandas_udf: 2 2 1
rows of each hour after the pandas_udf: 4 1
minutes by which they move, the process in UTC:
  pandas_udf: 60 60 0 0 0
  mapInPandas: 60 60 0 0 0
  applyInPandas: 60 60 0 0 0
  udf: 0 0 0 0 0
  udf with Arrow: 0 0 0 0 0
  collect: 0 0 0 0 0
  toPandas: 60 60 0 0 0
  mapInArrow: 0 0 0 0 0
  toArrow: 0 0 0 0 0
EXPECTED
what="PySpark moves timestamps by an hour in the hour that comes twice"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
