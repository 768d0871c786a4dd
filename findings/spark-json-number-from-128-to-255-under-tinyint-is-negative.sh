#!/usr/bin/env bash
# Spark's JSON reader takes a number that does not fit its type for a malformed one: null, or an error in the mode
# FAILFAST. Under tinyint it asks its parser for a byte, which accepts -128 to 255 and keeps the low bits: 128 is -128,
# 200 is -56 and 255 is -1, in from_json, in files, in a stream, in arrays and in the mode FAILFAST, and the column of
# corrupt records is null. From 256 on, and under the other integers, numbers that do not fit are malformed. CSV and
# XML give null for 200, and a cast raises.
# Release: PySpark 4.3.0. Needs: Python 3.11 or later with pip, Java 17. Minutes: 1.
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
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

os.environ["PYSPARK_PYTHON"] = sys.executable
INPUT = Path(sys.argv[1])
settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "1", "spark.log.level": "OFF"}
spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
print("PySpark", spark.version)


def show(words, make):
    try:
        rows = make()
        print(f"{words}:", *(value for row in rows for value in row))
    except Exception:
        print(f"{words}: refused")


def one(text, read):
    return spark.createDataFrame([(text,)], "v string").select(read).collect()


for number in (127, 128, 200, 255, 256, -129):
    show(f"from_json, tinyint, {number}", lambda: one(f'{{"a": {number}}}', F.from_json("v", "a tinyint").a))
for number in (200, 256):
    options = {"mode": "FAILFAST"}
    read = F.from_json("v", "a tinyint", options).a
    show(f"from_json, tinyint, {number}, FAILFAST", lambda: one(f'{{"a": {number}}}', read))
show("from_json, smallint, 40000", lambda: one('{"a": 40000}', F.from_json("v", "a smallint").a))
show("from_json, array of tinyint", lambda: one("[100, 200]", F.from_json("v", "array<tinyint>")))
show("from_csv, tinyint, 200", lambda: one("200", F.from_csv("v", "a tinyint").a))
show("from_xml, tinyint, 200", lambda: one("<r><a>200</a></r>", F.from_xml("v", "a tinyint").a))
show("cast of the number 200", lambda: one("200", F.col("v").cast("int").cast("tinyint")))

INPUT.mkdir()
(INPUT / "1.json").write_text('{"a": 200}\n')
reader = {"schema": "a tinyint, _corrupt_record string"}
show("file", lambda: spark.read.schema(**reader).json(str(INPUT)).cache().collect())
stream = spark.readStream.schema(**reader).json(str(INPUT))
stream.writeStream.format("memory").queryName("t").trigger(availableNow=True).start().awaitTermination()
show("stream", lambda: spark.table("t").collect())
PYTHON
"$PY" "$WORK/show.py" "$WORK/input" >"$WORK/seen" 2>"$WORK/spark.log"

cat >"$WORK/expected" <<'EXPECTED'
PySpark 4.3.0
from_json, tinyint, 127: 127
from_json, tinyint, 128: -128
from_json, tinyint, 200: -56
from_json, tinyint, 255: -1
from_json, tinyint, 256: None
from_json, tinyint, -129: None
from_json, tinyint, 200, FAILFAST: -56
from_json, tinyint, 256, FAILFAST: refused
from_json, smallint, 40000: None
from_json, array of tinyint: [100, -56]
from_csv, tinyint, 200: None
from_xml, tinyint, 200: None
cast of the number 200: refused
file: -56 None
stream: -56 None
EXPECTED
what="Spark's JSON reader returns a negative number for one from 128 to 255 under tinyint"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
