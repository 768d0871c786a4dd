#!/usr/bin/env bash
# A function of pandas that returns what it was given changes rows in Spark. A bigint comes to mapInPandas as a double
# where a null is in the same batch, and an id beyond 2^53 goes back as another id; if the rows have a column of texts
# as well, it comes as an Int64 and stays. To applyInPandas, applyInPandasWithState and a pandas_udf it comes as a
# double beside a null in both cases. A double that is NaN goes back as null, always. No error; mapInArrow and
# applyInArrow return each row as it was.
# Releases: PySpark 4.3.0, pandas 2.3.3, pyarrow 26.0.1. Needs: bash, Java 17, Python 3.11 or later with pip. Minutes:
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

import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql.functions import pandas_udf
from pyspark.sql.streaming.state import GroupStateTimeout

os.environ["PYSPARK_PYTHON"] = sys.executable
settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "1", "spark.log.level": "ERROR"}
spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
CASES = {
    "no null": "(1, 9007199254740993, double('NaN')), (2, 7, 0.5D) as t(key, id, price)",
    "a null": "(1, 9007199254740993, double('NaN')), (2, null, 0.5D) as t(key, id, price)",
    "a null, and a text": "(1, 9007199254740993, double('NaN'), 'a'), (2, null, 0.5D, 'b') as t(key, id, price, word)",
}


@pandas_udf("long")
def same_ids(ids: pd.Series) -> pd.Series:
    return ids


@pandas_udf("double")
def same_prices(prices: pd.Series) -> pd.Series:
    return prices


print(*(f"{name} {importlib.metadata.version(name)}" for name in ("pyspark", "pandas", "pyarrow")))
for number, (case, values) in enumerate(CASES.items()):
    frame = spark.sql(f"select * from values {values}").coalesce(1)
    columns = frame.columns

    def with_state(key, batches, state, columns=columns):
        for batch in batches:
            yield batch[columns]

    files = f"{sys.argv[1]}/{number}"
    frame.write.parquet(files)
    stream = spark.readStream.schema(frame.schema).parquet(files).selectExpr("1 as all", "*").groupBy("all")
    streamed = stream.applyInPandasWithState(with_state, frame.schema, "n int", "append", GroupStateTimeout.NoTimeout)
    query = streamed.writeStream.format("memory").queryName(f"streamed{number}").trigger(availableNow=True)
    query.option("checkpointLocation", files + "-checkpoint").start().awaitTermination()
    results = {
        "as it is": frame,
        "mapInPandas": frame.mapInPandas(lambda batches: batches, frame.schema),
        "applyInPandas": frame.groupBy().applyInPandas(lambda group: group, frame.schema),
        "applyInPandasWithState": spark.table(f"streamed{number}"),
        "pandas_udf": frame.withColumn("id", same_ids("id")).withColumn("price", same_prices("price")),
        "mapInArrow": frame.mapInArrow(lambda batches: batches, frame.schema),
        "applyInArrow": frame.groupBy().applyInArrow(lambda group: group, frame.schema),
    }
    print(case)
    for name, result in results.items():
        row = min(result.collect(), key=lambda row: row.key)
        print(f"  {name}: id {row.id}, price {row.price}")
PYTHON
"$PY" "$WORK/show.py" "$WORK" >"$WORK/seen" 2>"$WORK/show.log"

cat >"$WORK/expected" <<'EXPECTED'
pyspark 4.3.0 pandas 2.3.3 pyarrow 26.0.1
no null
  as it is: id 9007199254740993, price nan
  mapInPandas: id 9007199254740993, price None
  applyInPandas: id 9007199254740993, price None
  applyInPandasWithState: id 9007199254740993, price None
  pandas_udf: id 9007199254740993, price None
  mapInArrow: id 9007199254740993, price nan
  applyInArrow: id 9007199254740993, price nan
a null
  as it is: id 9007199254740993, price nan
  mapInPandas: id 9007199254740992, price None
  applyInPandas: id 9007199254740992, price None
  applyInPandasWithState: id 9007199254740992, price None
  pandas_udf: id 9007199254740992, price None
  mapInArrow: id 9007199254740993, price nan
  applyInArrow: id 9007199254740993, price nan
a null, and a text
  as it is: id 9007199254740993, price nan
  mapInPandas: id 9007199254740993, price None
  applyInPandas: id 9007199254740992, price None
  applyInPandasWithState: id 9007199254740992, price None
  pandas_udf: id 9007199254740992, price None
  mapInArrow: id 9007199254740993, price nan
  applyInArrow: id 9007199254740993, price nan
EXPECTED
what="a function of pandas in Spark changes an id beside a null, and returns NaN as null"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
