#!/usr/bin/env bash
# A Python data source of Spark yields rows whose values have another type than the schema's. Spark refuses True, "7"
# and a number that is too large under int, and 7 under a decimal; but 2.7 under int it takes as 2, without an error,
# where createDataFrame refuses it. Bytes under string, as a client of Kafka returns a record's value, become the text
# of Python's repr, with a b and quotes around it, in both; 1.239 under decimal(10,2) is rounded, a datetime under
# date loses its hours, and 1e300 under float is infinity.
# Releases: PySpark 4.3.0, pyarrow 26.0.1, pandas 2.3.3. Needs: bash, Java 17, Python 3.11 or later with pip. Minutes:
# 1.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check pyspark==4.3.0 pandas==2.3.3 pyarrow==26.0.1

cat >"$WORK/show.py" <<'PYTHON'
import importlib.metadata
import os
import sys
from datetime import datetime
from decimal import Decimal

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader

os.environ["PYSPARK_PYTHON"] = sys.executable
settings = {"spark.ui.enabled": "false", "spark.sql.session.timeZone": "UTC", "spark.log.level": "OFF"}
spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
CASES = (
    ("int", 2.7), ("int", True), ("int", "7"), ("int", 2**33), ("bigint", -2.7), ("string", b"order 7"), ("string", 7),
    ("date", datetime(2026, 1, 1, 23)), ("decimal(10,2)", Decimal("1.239")), ("decimal(10,2)", 7), ("float", 1e300),
    ("double", Decimal("1.5")), ("boolean", 1),
)


class Reader(DataSourceReader):
    def __init__(self, number):
        self.number = number

    def read(self, partition):
        yield (CASES[self.number][1],)


class Source(DataSource):
    @classmethod
    def name(cls):
        return "one_value"

    def schema(self):
        return "v " + CASES[int(self.options["number"])][0]

    def reader(self, schema):
        return Reader(int(self.options["number"]))


def outcome(frame):
    try:
        return repr(frame().collect()[0].v)
    except Exception:
        return "refused"


print(*(f"{name} {importlib.metadata.version(name)}" for name in ("pyspark", "pyarrow")))
spark.dataSource.register(Source)
for number, (kind, value) in enumerate(CASES):
    read = outcome(lambda number=number: spark.read.format("one_value").option("number", number).load())
    created = outcome(lambda kind=kind, value=value: spark.createDataFrame([(value,)], "v " + kind))
    print(f"{kind}: {value!r} gives {read}; createDataFrame: {created}")
PYTHON
"$PY" "$WORK/show.py" "$WORK" >"$WORK/seen" 2>"$WORK/show.log"

cat >"$WORK/expected" <<'EXPECTED'
pyspark 4.3.0 pyarrow 26.0.1
int: 2.7 gives 2; createDataFrame: refused
int: True gives refused; createDataFrame: refused
int: '7' gives refused; createDataFrame: refused
int: 8589934592 gives refused; createDataFrame: refused
bigint: -2.7 gives -2; createDataFrame: refused
string: b'order 7' gives "b'order 7'"; createDataFrame: "b'order 7'"
string: 7 gives '7'; createDataFrame: '7'
date: datetime.datetime(2026, 1, 1, 23, 0) gives datetime.date(2026, 1, 1); createDataFrame: datetime.date(2026, 1, 1)
decimal(10,2): Decimal('1.239') gives Decimal('1.24'); createDataFrame: Decimal('1.24')
decimal(10,2): 7 gives refused; createDataFrame: refused
float: 1e+300 gives inf; createDataFrame: inf
double: Decimal('1.5') gives refused; createDataFrame: refused
boolean: 1 gives refused; createDataFrame: refused
EXPECTED
what="a Python data source of Spark cuts a fraction, and makes a text of bytes by their repr"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
