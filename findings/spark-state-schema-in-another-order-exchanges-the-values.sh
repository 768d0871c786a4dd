#!/usr/bin/env bash
# A stateful query of Structured Streaming in Python starts again on its checkpoint with the same fields of its state in another
# order: Spark compares their types alone, and gives each the value at its place. `clicks` and `views` come exchanged, and a
# field that is renamed takes the old one's value. No error, in transformWithState and in applyInPandasWithState; two fields of
# different types are refused. With the Avro encoding of the state store (RocksDB) each field keeps its value by its name.
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


def processor(schema, new):
    class Last(StatefulProcessor):
        def init(self, handle):
            self.state = handle.getValueState("state", schema)

        def handleInputRows(self, key, rows, timers):
            old = self.state.get() if self.state.exists() else None
            self.state.update(new)
            yield Row(old=repr(old and dict(zip([part.split()[0] for part in schema.split(", ")], old))))

        def close(self):
            pass

    return Last()


def with_processor(groups, schema, new):
    return groups.transformWithState(processor(schema, new), "old string", "Append", "None")


def with_state(groups, schema, new):
    def last(key, frames, state):
        old = state.get if state.exists else None
        state.update(new)
        yield pd.DataFrame({"old": [repr(old and dict(zip([part.split()[0] for part in schema.split(", ")], old)))]})

    return groups.applyInPandasWithState(last, "old string", schema, "Append", GroupStateTimeout.NoTimeout)


def run(number, query, first, values, second):
    """Keep the values under the first schema, start again under the second, and print what the state is then."""
    folder = f"{WORK}/{number}"
    for schema, new in ((first, values), (second, values[: len(second.split(", "))])):
        spark.createDataFrame([("k",)], "k string").write.mode("append").parquet(f"{folder}/in")
        stream = query(spark.readStream.schema("k string").parquet(f"{folder}/in").groupBy("k"), schema, new)
        writer = stream.writeStream.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
        seen = []
        try:
            writer.foreachBatch(lambda frame, _: seen.extend(frame.collect())).start().awaitTermination()
        except Exception as error:
            name = "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE"
            seen = [Row(old=name if name in str(error) else str(error))]
    print(f"  {first} with {values}, then {second}: {seen[0].old}")


print("PySpark", spark.version)
NUMBERS = ("clicks bigint, views bigint", (3, 1000))
for name, query, encoding in (
    ("applyInPandasWithState", with_state, "unsaferow"),
    ("transformWithState", with_processor, "unsaferow"),
    ("transformWithState, Avro encoding", with_processor, "avro"),
):
    print(name)
    spark.conf.set("spark.sql.streaming.stateStore.encodingFormat", encoding)
    run(name + "1", query, *NUMBERS, "clicks bigint, views bigint")
    run(name + "2", query, *NUMBERS, "views bigint, clicks bigint")
    run(name + "3", query, "clicks bigint, name string", (3, "x"), "name string, clicks bigint")
PYTHON
"$PY" "$WORK/show.py" "$WORK" >"$WORK/seen" 2>"$WORK/spark.log"

cat >"$WORK/expected" <<'EXPECTED'
PySpark 4.3.0
applyInPandasWithState
  clicks bigint, views bigint with (3, 1000), then clicks bigint, views bigint: {'clicks': 3, 'views': 1000}
  clicks bigint, views bigint with (3, 1000), then views bigint, clicks bigint: {'views': 3, 'clicks': 1000}
  clicks bigint, name string with (3, 'x'), then name string, clicks bigint: STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE
transformWithState
  clicks bigint, views bigint with (3, 1000), then clicks bigint, views bigint: {'clicks': 3, 'views': 1000}
  clicks bigint, views bigint with (3, 1000), then views bigint, clicks bigint: {'views': 3, 'clicks': 1000}
  clicks bigint, name string with (3, 'x'), then name string, clicks bigint: STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE
transformWithState, Avro encoding
  clicks bigint, views bigint with (3, 1000), then clicks bigint, views bigint: {'clicks': 3, 'views': 1000}
  clicks bigint, views bigint with (3, 1000), then views bigint, clicks bigint: {'views': 1000, 'clicks': 3}
  clicks bigint, name string with (3, 'x'), then name string, clicks bigint: {'name': 'x', 'clicks': 3}
EXPECTED
what="Spark gives the fields of a state's schema the values at their places, without a look at their names"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
