#!/usr/bin/env bash
# pyspark.testing.assertDataFrameEqual, with which a pipeline's tests compare what came out with what is expected. It passes for a
# NaN against any number and for a number against an expected infinity, also inside of arrays and maps and with rtol=0 and
# atol=0, although its formula, |a - b| <= atol + rtol * |b|, is false for NaN. If rows are expected, they are compared as far
# as the shorter one goes: a frame passes whose last columns the rows do not have, or lack, whatever is in them. That types and
# names are not compared then is described; that values are not is not. chispa refuses the frames.
# Releases: PySpark 4.3.0, chispa 0.12.0, pandas 2.3.3. Needs: bash, Python 3.11 or later with pip, Java 17. Minutes: 1.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check pyspark==4.3.0 chispa==0.12.0 pandas==2.3.3 pyarrow==26.0.1

cat >"$WORK/show.py" <<'PYTHON'
import importlib.metadata

import chispa
from pyspark.sql import Row, SparkSession
from pyspark.testing import assertDataFrameEqual

settings = {"spark.ui.enabled": "false", "spark.log.level": "OFF"}
spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
NAN, INFINITY = float("nan"), float("inf")


def verdict(compare, actual, expected, **options):
    """Return whether the comparison passes."""
    try:
        compare(actual, expected, **options)
    except Exception as error:
        return type(error).__name__
    return "passes"


def frames(kind, actual, expected, **options):
    """Compare two frames of one row and one column."""
    left, right = (spark.createDataFrame([(value,)], f"value {kind}") for value in (actual, expected))
    spark_says = verdict(assertDataFrameEqual, left, right, **options)
    chispa_says = verdict(chispa.assert_df_equality, left, right)
    print(f"{kind}, {actual}, expected {expected}{options or ''}: {spark_says} (chispa: {chispa_says})")


print(*(f"{name} {importlib.metadata.version(name)}" for name in ("pyspark", "chispa", "pandas")))
frames("double", 1.0, 2.0)
frames("double", NAN, 2.0)
frames("double", 2.0, NAN)
frames("double", NAN, 2.0, rtol=0, atol=0)
frames("double", 2.0, INFINITY)
frames("double", INFINITY, 2.0)
frames("double", -INFINITY, INFINITY)
frames("array<double>", [1.0, NAN], [1.0, 2.0])
frames("map<string,double>", {"a": NAN}, {"a": 2.0})
frames("double", None, NAN)
orders = spark.createDataFrame([(1, 20, True)], "id int, amount int, paid boolean")
for rows in (
    [Row(id=1, amount=20, paid=True)],
    [Row(id=1, amount=21, paid=True)],
    [Row(id=1, amount=20)],
    [Row(id=1)],
    [Row(id=1, amount=20, paid=True, refund=7)],
    [],
):
    print(f"{orders.first()}, expected {rows}: {verdict(assertDataFrameEqual, orders, rows)}")
PYTHON
"$PY" "$WORK/show.py" >"$WORK/seen" 2>"$WORK/spark.log"

cat >"$WORK/expected" <<'EXPECTED'
pyspark 4.3.0 chispa 0.12.0 pandas 2.3.3
double, 1.0, expected 2.0: PySparkAssertionError (chispa: DataFramesNotEqualError)
double, nan, expected 2.0: passes (chispa: DataFramesNotEqualError)
double, 2.0, expected nan: passes (chispa: DataFramesNotEqualError)
double, nan, expected 2.0{'rtol': 0, 'atol': 0}: passes (chispa: DataFramesNotEqualError)
double, 2.0, expected inf: passes (chispa: DataFramesNotEqualError)
double, inf, expected 2.0: PySparkAssertionError (chispa: DataFramesNotEqualError)
double, -inf, expected inf: passes (chispa: DataFramesNotEqualError)
array<double>, [1.0, nan], expected [1.0, 2.0]: passes (chispa: DataFramesNotEqualError)
map<string,double>, {'a': nan}, expected {'a': 2.0}: passes (chispa: DataFramesNotEqualError)
double, None, expected nan: PySparkAssertionError (chispa: DataFramesNotEqualError)
Row(id=1, amount=20, paid=True), expected [Row(id=1, amount=20, paid=True)]: passes
Row(id=1, amount=20, paid=True), expected [Row(id=1, amount=21, paid=True)]: PySparkAssertionError
Row(id=1, amount=20, paid=True), expected [Row(id=1, amount=20)]: passes
Row(id=1, amount=20, paid=True), expected [Row(id=1)]: passes
Row(id=1, amount=20, paid=True), expected [Row(id=1, amount=20, paid=True, refund=7)]: passes
Row(id=1, amount=20, paid=True), expected []: PySparkAssertionError
EXPECTED
what="assertDataFrameEqual passes for NaN against any number, and for rows that lack values"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
