#!/usr/bin/env bash
# from_avro(value, writer's schema, {"avroSchema": reader's schema}) resolves the types and ignores what Avro says of logical
# types: of a decimal written under scale 2 and read under scale 4, 19.99 is 0.1999, and a time written in milliseconds and
# read in microseconds lies in January 1970. No error, although such decimals do not match by Avro's specification; its check of
# compatibility, which registries ask, calls them compatible. The option avroSchema of the file reader does the same, where
# its schema() refuses. fastavro returns what was written.
# Releases: PySpark and its Avro module 4.2.0, fastavro 1.13.1. Needs: Python 3.11 or later with pip, Java 17, Maven. Takes about
# one minute.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check pyspark==4.2.0 fastavro==1.13.1
cat >"$WORK/pom.xml" <<'POM'
<project><modelVersion>4.0.0</modelVersion><groupId>x</groupId><artifactId>x</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.spark</groupId><artifactId>spark-avro_2.13</artifactId><version>4.2.0</version></dependency>
</dependencies></project>
POM
mvn -q -B -f "$WORK/pom.xml" org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
    -DexcludeTransitive=true -DoutputDirectory="$WORK/jars" >"$WORK/mvn.log" 2>&1

cat >"$WORK/show.py" <<'PYTHON'
import io
import json
import os
import sys
from datetime import datetime, timezone
from decimal import Decimal

import fastavro
from pyspark.sql import SparkSession
from pyspark.sql.avro.functions import from_avro

os.environ["PYSPARK_PYTHON"] = sys.executable
WORK = sys.argv[1]
settings = {"spark.ui.enabled": "false", "spark.log.level": "OFF", "spark.sql.session.timeZone": "UTC"}
settings["spark.jars"] = f"{WORK}/jars/spark-avro_2.13-4.2.0.jar"
spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()


def record(kind):
    return {"type": "record", "name": "R", "fields": [{"name": "a", "type": kind}]}


def decimal(scale):
    return {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": scale}


def time(unit):
    return {"type": "long", "logicalType": f"timestamp-{unit}"}


def compatible(new, old):
    """Return what Avro's check says, which Spark brings along."""
    avro = spark._jvm.org.apache.avro
    new, old = (avro.Schema.Parser().parse(json.dumps(record(kind))) for kind in (new, old))
    return avro.SchemaCompatibility.checkReaderWriterCompatibility(new, old).getType().toString()


print("PySpark", spark.version, "fastavro", fastavro.__version__)
NOON = datetime(2024, 1, 1, 12, tzinfo=timezone.utc)
cases = [
    ("decimal, scale 2 to 4", decimal(2), decimal(4), Decimal("19.99")),
    ("decimal, scale 4 to 2", decimal(4), decimal(2), Decimal("19.9900")),
    ("time, milliseconds to microseconds", time("millis"), time("micros"), NOON),
]
for name, old, new, value in cases:
    written = io.BytesIO()
    fastavro.schemaless_writer(written, record(old), {"a": value})
    rows = spark.createDataFrame([(written.getvalue(),)], "v binary")
    read = rows.select(from_avro("v", json.dumps(record(old)), {"avroSchema": json.dumps(record(new))}).alias("r"))
    print(f"{name}: {value} was written, Avro's check: {compatible(new, old)}")
    print("  from_avro:", read.selectExpr("cast(r.a AS string) AS a").first().a)
    written.seek(0)
    print("  fastavro: ", fastavro.schemaless_reader(written, record(old), record(new))["a"])

file = f"{WORK}/x.avro"
with open(file, "wb") as out:
    fastavro.writer(out, record(decimal(2)), [{"a": Decimal("19.99")}])
files = spark.read.format("avro")
print("a file with 19.99 under scale 2")
print("  option avroSchema with scale 4:", files.option("avroSchema", json.dumps(record(decimal(4)))).load(file).first().a)
try:
    print("  schema() with scale 4:", spark.read.format("avro").schema("a decimal(10,4)").load(file).first().a)
except Exception as error:
    print("  schema() with scale 4:", "AVRO_INCOMPATIBLE_READ_TYPE" if "AVRO_INCOMPATIBLE_READ_TYPE" in str(error) else error)
PYTHON
"$PY" "$WORK/show.py" "$WORK" >"$WORK/seen" 2>"$WORK/spark.log"

cat >"$WORK/expected" <<'EXPECTED'
PySpark 4.2.0 fastavro 1.13.1
decimal, scale 2 to 4: 19.99 was written, Avro's check: COMPATIBLE
  from_avro: 0.1999
  fastavro:  19.99
decimal, scale 4 to 2: 19.9900 was written, Avro's check: COMPATIBLE
  from_avro: 1999.00
  fastavro:  19.9900
time, milliseconds to microseconds: 2024-01-01 12:00:00+00:00 was written, Avro's check: COMPATIBLE
  from_avro: 1970-01-20 17:21:50.4
  fastavro:  2024-01-01 12:00:00+00:00
a file with 19.99 under scale 2
  option avroSchema with scale 4: 0.1999
  schema() with scale 4: AVRO_INCOMPATIBLE_READ_TYPE
EXPECTED
what="from_avro reads a decimal under another scale with its point moved, and a time under another unit in another year"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
