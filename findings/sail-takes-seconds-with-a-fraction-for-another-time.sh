#!/usr/bin/env bash
# Sail, which runs programs of Spark without a JVM, cuts seconds with a fraction where Spark keeps it: timestamp_seconds of
# 1700000000.123456 is 22:13:20 sharp, of -0.5 the full second behind it, and to_timestamp of 1700000000.123456 lies in January
# 1970. From a time before 1970 the way back to seconds is one off. No error. A cast of the number to timestamp is right in both.
# Releases: pysail 0.7.2 with pyspark-client 4.1.1, PySpark 4.3.0 to compare. Needs: Python 3.11 or later with pip, Java 17.
# Takes about one minute.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
for name in sail spark; do python3 -m venv "$WORK/$name"; done
"$WORK/sail/bin/python" -m pip install --quiet --disable-pip-version-check \
    pysail==0.7.2 pyspark-client==4.1.1 pandas==2.3.3 pyarrow==25.0.1
"$WORK/spark/bin/python" -m pip install --quiet --disable-pip-version-check pyspark==4.3.0

cat >"$WORK/show.py" <<'PYTHON'
import os
import sys

from pyspark.sql import SparkSession

os.environ["PYSPARK_PYTHON"] = sys.executable
if sys.argv[1] == "sail":
    from pysail.spark import SparkConnectServer

    server = SparkConnectServer("127.0.0.1", 0)
    server.start(background=True)
    spark = SparkSession.builder.remote("sc://127.0.0.1:{}".format(server.listening_address[1])).getOrCreate()
else:
    settings = {"spark.ui.enabled": "false", "spark.log.level": "OFF"}
    spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
spark.conf.set("spark.sql.session.timeZone", "UTC")
rows = spark.sql("SELECT CAST('1700000000.123456' AS decimal(20,6)) AS a, CAST('-0.5' AS decimal(20,6)) AS b, 1700000000.5D AS c")
for expression in (
    "timestamp_seconds(a)",
    "timestamp_seconds(b)",
    "timestamp_seconds(c)",
    "to_timestamp(a)",
    "to_timestamp(c)",
    "CAST(a AS timestamp)",
    "CAST(b AS timestamp)",
):
    print(f"  {expression}:", rows.selectExpr(f"CAST({expression} AS string)").first()[0])
for expression in ("CAST(t AS bigint)", "unix_seconds(t)", "unix_millis(t)"):
    print(f"  {expression}:", spark.sql(f"SELECT {expression} FROM VALUES (TIMESTAMP'1960-01-01 12:00:00.9') AS x(t)").first()[0])
sys.stdout.flush()
os._exit(0)  # the server has no part in what is shown
PYTHON
for name in sail spark; do
    echo "$name" >>"$WORK/seen"
    "$WORK/$name/bin/python" "$WORK/show.py" "$name" >>"$WORK/seen" 2>"$WORK/$name.log"
done

cat >"$WORK/expected" <<'EXPECTED'
sail
  timestamp_seconds(a): 2023-11-14 22:13:20
  timestamp_seconds(b): 1970-01-01 00:00:00
  timestamp_seconds(c): 2023-11-14 22:13:20
  to_timestamp(a): 1970-01-01 00:28:20
  to_timestamp(c): 1970-01-01 00:28:20
  CAST(a AS timestamp): 2023-11-14 22:13:20.123456
  CAST(b AS timestamp): 1969-12-31 23:59:59.5
  CAST(t AS bigint): -315575999
  unix_seconds(t): -315575999
  unix_millis(t): -315575999100
spark
  timestamp_seconds(a): 2023-11-14 22:13:20.123456
  timestamp_seconds(b): 1969-12-31 23:59:59.5
  timestamp_seconds(c): 2023-11-14 22:13:20.5
  to_timestamp(a): 2023-11-14 22:13:20.123456
  to_timestamp(c): 2023-11-14 22:13:20.5
  CAST(a AS timestamp): 2023-11-14 22:13:20.123456
  CAST(b AS timestamp): 1969-12-31 23:59:59.5
  CAST(t AS bigint): -315576000
  unix_seconds(t): -315576000
  unix_millis(t): -315575999100
EXPECTED
what="Sail takes seconds with a fraction for another time"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
