#!/usr/bin/env bash
# A stateful query of Structured Streaming in Python updates its state with a tuple that Spark does not compare with the state's
# schema: 7 under double is kept as null, and so are 7.0 under bigint, 1 under boolean and 7 under decimal; 2147483648 under int
# is kept as -2147483648. No error, in transformWithState, transformWithStateInPandas and applyInPandasWithState. A running
# total of ints under double starts anew in each batch. createDataFrame refuses each of the values under the same schema.
# Release: PySpark 4.3.0. Needs: Python 3.11 or later with pip, Java 17. Takes about one minute.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check pyspark==4.3.0 pandas==2.3.3 pyarrow==25.0.1 protobuf==7.36.2

cat >"$WORK/show.py" <<'PYTHON'
import os
import sys

import pandas as pd
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.streaming.state import GroupStateTimeout

WORK = sys.argv[1]
os.environ["PYSPARK_PYTHON"] = sys.executable
settings = {"spark.ui.enabled": "false", "spark.log.level": "OFF", "spark.sql.shuffle.partitions": "1"}
provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
settings["spark.sql.streaming.stateStore.providerClass"] = provider
spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()

STATE = "total double, d double, l bigint, b boolean, m decimal(10,2), i int"
VALUES = (7, 7.0, 1, 7, 2**31)
OUT = "total double, old string"


def step(state, amount):
    """Add an amount to the total of a state, and return the state to keep and what to show."""
    total = (state[0] if state and state[0] is not None else 0) + amount
    return (total, *VALUES), (float(total), repr(state and state[1:]))


class Totals(StatefulProcessor):
    def init(self, handle):
        self.state = handle.getValueState("state", STATE)

    def handleInputRows(self, key, rows, timers):
        amount = sum(row.n for row in rows)
        new, seen = step(tuple(self.state.get()) if self.state.exists() else None, amount)
        self.state.update(new)
        yield Row(total=seen[0], old=seen[1])

    def close(self):
        pass


class TotalsInPandas(Totals):
    def handleInputRows(self, key, rows, timers):
        amount = sum(int(frame.n.sum()) for frame in rows)
        new, seen = step(tuple(self.state.get()) if self.state.exists() else None, amount)
        self.state.update(new)
        yield pd.DataFrame({"total": [seen[0]], "old": [seen[1]]})


def totals(key, frames, state):
    amount = sum(int(frame.n.sum()) for frame in frames)
    new, seen = step(tuple(state.get) if state.exists else None, amount)
    state.update(new)
    yield pd.DataFrame({"total": [seen[0]], "old": [seen[1]]})


def run(name, query):
    """Give a query the amounts 10, 20 and 30, a batch each, and print the total and the state that each batch found."""
    print(name)
    for amount in (10, 20, 30):
        spark.createDataFrame([("k", amount)], "k string, n int").write.mode("append").parquet(f"{WORK}/{name}/in")
        stream = query(spark.readStream.schema("k string, n int").parquet(f"{WORK}/{name}/in").groupBy("k"))
        writer = stream.writeStream.option("checkpointLocation", f"{WORK}/{name}/checkpoint").trigger(availableNow=True)

        def show(frame, number):
            for row in frame.collect():
                print(f"  {amount} more: total {row.total}, the state was {row.old}")

        writer.foreachBatch(show).start().awaitTermination()


print("PySpark", spark.version, "state:", STATE, "values:", VALUES)
run("transformWithState", lambda groups: groups.transformWithState(Totals(), OUT, "Append", "None"))
run("transformWithStateInPandas", lambda groups: groups.transformWithStateInPandas(TotalsInPandas(), OUT, "Append", "None"))
run(
    "applyInPandasWithState",
    lambda groups: groups.applyInPandasWithState(totals, OUT, STATE, "Append", GroupStateTimeout.NoTimeout),
)
for kind, value in zip(("double", "bigint", "boolean", "decimal(10,2)", "int"), VALUES):
    try:
        print(f"createDataFrame: {value} under {kind}:", spark.createDataFrame([(value,)], f"a {kind}").collect())
    except Exception as error:
        print(f"createDataFrame: {value} under {kind}:", type(error).__name__)
PYTHON
"$PY" "$WORK/show.py" "$WORK" >"$WORK/seen" 2>"$WORK/spark.log"

cat >"$WORK/expected" <<'EXPECTED'
PySpark 4.3.0 state: total double, d double, l bigint, b boolean, m decimal(10,2), i int values: (7, 7.0, 1, 7, 2147483648)
transformWithState
  10 more: total 10.0, the state was None
  20 more: total 20.0, the state was (None, None, None, None, -2147483648)
  30 more: total 30.0, the state was (None, None, None, None, -2147483648)
transformWithStateInPandas
  10 more: total 10.0, the state was None
  20 more: total 20.0, the state was (None, None, None, None, -2147483648)
  30 more: total 30.0, the state was (None, None, None, None, -2147483648)
applyInPandasWithState
  10 more: total 10.0, the state was None
  20 more: total 20.0, the state was (None, None, None, None, -2147483648)
  30 more: total 30.0, the state was (None, None, None, None, -2147483648)
createDataFrame: 7 under double: PySparkTypeError
createDataFrame: 7.0 under bigint: PySparkTypeError
createDataFrame: 1 under boolean: PySparkTypeError
createDataFrame: 7 under decimal(10,2): PySparkTypeError
createDataFrame: 2147483648 under int: PySparkValueError
EXPECTED
what="the state of a streaming query in Python keeps null, or another number, for a number of another type"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
