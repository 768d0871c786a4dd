#!/usr/bin/env bash
# Sail, which runs programs of Spark without a JVM, reads $1_ in the replacement of regexp_replace as a group of the name `1_`,
# which there is not, and puts nothing in its place: 2024-01 under $2_$1 is 2024, and a7 under $1x is 7. Java, and so Spark,
# takes the number alone. No error; with another character behind the number both give the same.
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
from pyspark.sql.functions import regexp_replace

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
rows = spark.createDataFrame([("2024-01", "a7")], "month string, code string")
for column, pattern, replacement in (
    ("month", "([0-9]+)-([0-9]+)", "$2/$1"),
    ("month", "([0-9]+)-([0-9]+)", "$2_$1"),
    ("month", "([0-9]+)-([0-9]+)", "$1M$2"),
    ("code", "([a-z])", "$1-"),
    ("code", "([a-z])", "$1x"),
    ("code", "([a-z])", "$10"),
):
    print(f"  {column} {replacement}:", repr(rows.select(regexp_replace(column, pattern, replacement)).first()[0]))
sys.stdout.flush()
os._exit(0)  # the server has no part in what is shown
PYTHON
for name in sail spark; do
    echo "$name" >>"$WORK/seen"
    "$WORK/$name/bin/python" "$WORK/show.py" "$name" >>"$WORK/seen" 2>"$WORK/$name.log"
done

cat >"$WORK/expected" <<'EXPECTED'
sail
  month $2/$1: '01/2024'
  month $2_$1: '2024'
  month $1M$2: '01'
  code $1-: 'a-7'
  code $1x: '7'
  code $10: '7'
spark
  month $2/$1: '01/2024'
  month $2_$1: '01_2024'
  month $1M$2: '2024M01'
  code $1-: 'a-7'
  code $1x: 'ax7'
  code $10: 'a07'
EXPECTED
what="Sail's regexp_replace drops a group that a letter, a digit or an underscore follows"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
