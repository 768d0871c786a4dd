#!/usr/bin/env bash
# The Delta Lake I/O manager of Dagster replaces a partition by a predicate, and when it cannot make one it drops the error and
# overwrites the table: the run of a day over a column of times without a zone leaves that day's rows alone in the table, and so
# do a run over a column of integers, one of several dimensions with such a column, and one run of two static partitions. Each
# run succeeds. Over a column of dates or of texts the other partitions keep their rows.
# Releases: dagster 1.13.27, dagster-deltalake and dagster-deltalake-pandas 0.29.27, deltalake 1.6.6, pandas 2.3.3.
# Needs: Python 3.11 or later with pip. Minutes: 0.5.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check dagster==1.13.27 dagster-deltalake==0.29.27 \
    dagster-deltalake-pandas==0.29.27 deltalake==1.6.6 pandas==2.3.3 pyarrow==26.0.1

cat >"$WORK/show.py" <<'PYTHON'
import importlib.metadata
import os
import sys

import dagster
import deltalake
import pandas as pd
from dagster_deltalake import LocalConfig
from dagster_deltalake_pandas import DeltaLakePandasIOManager

WORK = sys.argv[1]
manager = DeltaLakePandasIOManager(root_uri=f"{WORK}/lake", storage_options=LocalConfig(), schema="s")
instance = dagster.DagsterInstance.ephemeral()
DAYS = dagster.DailyPartitionsDefinition("2024-01-01", end_date="2024-01-05")
WORDS = dagster.StaticPartitionsDefinition(["a", "b", "c"])
NUMBERS = dagster.StaticPartitionsDefinition(["1", "2", "3"])
BOTH = dagster.MultiPartitionsDefinition({"day": DAYS, "word": WORDS})


def show(name, partitions, column, runs):
    """Run the partitions one after the other with their rows, and print what each run leaves in the table."""
    print(name)
    frames = []

    @dagster.asset(
        name=name.replace(" ", "_"),
        key_prefix=["s"],
        partitions_def=partitions,
        metadata={"partition_expr": column},
        backfill_policy=dagster.BackfillPolicy.single_run(),
    )
    def rows() -> pd.DataFrame:
        return frames[-1]

    for key, values in runs:
        frames.append(pd.DataFrame(values))
        first, last = key if isinstance(key, tuple) else (key, key)
        tags = {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last}
        how = {"tags": tags} if first != last else {"partition_key": key}
        run = dagster.materialize([rows], resources={"io_manager": manager}, instance=instance, raise_on_error=False, **how)
        table = deltalake.DeltaTable(f"{WORK}/lake/s/{name.replace(' ', '_')}").to_pyarrow_table()
        print(f"  {key}: success {run.success}, rows {sorted(table['v'].to_pylist())}")


def days(make):
    return [(f"2024-01-0{day}", {"t": [make(f"2024-01-0{day}")], "v": [day]}) for day in (1, 2, 3)]


for package in ("dagster", "dagster-deltalake", "deltalake"):
    print(package, importlib.metadata.version(package))
show("texts", WORDS, "p", [(key, {"p": [key], "v": [number]}) for number, key in enumerate("abc", 1)])
show("dates", DAYS, "t", days(lambda text: pd.Timestamp(text).date()))
show("times", DAYS, "t", days(pd.Timestamp))
show(
    "days and texts",
    BOTH,
    {"day": "t", "word": "p"},
    [
        (dagster.MultiPartitionKey({"day": "2024-01-01", "word": key}), {"t": [pd.Timestamp("2024-01-01")], "p": [key], "v": [number]})
        for number, key in enumerate("abc", 1)
    ],
)
show("numbers", NUMBERS, "p", [(key, {"p": [int(key)], "v": [int(key)]}) for key in "123"])
show("two texts in a run", WORDS, "p", [("a", {"p": ["a"], "v": [1]}), (("b", "c"), {"p": ["b", "c"], "v": [2, 3]})])
sys.stdout.flush()
os._exit(0)  # threads of the libraries can disturb the interpreter's own end
PYTHON
DAGSTER_HOME='' "$PY" "$WORK/show.py" "$WORK" >"$WORK/seen" 2>"$WORK/show.log"

cat >"$WORK/expected" <<'EXPECTED'
dagster 1.13.27
dagster-deltalake 0.29.27
deltalake 1.6.6
texts
  a: success True, rows [1]
  b: success True, rows [1, 2]
  c: success True, rows [1, 2, 3]
dates
  2024-01-01: success True, rows [1]
  2024-01-02: success True, rows [1, 2]
  2024-01-03: success True, rows [1, 2, 3]
times
  2024-01-01: success True, rows [1]
  2024-01-02: success True, rows [2]
  2024-01-03: success True, rows [3]
days and texts
  2024-01-01|a: success True, rows [1]
  2024-01-01|b: success True, rows [2]
  2024-01-01|c: success True, rows [3]
numbers
  1: success True, rows [1]
  2: success True, rows [2]
  3: success True, rows [3]
two texts in a run
  a: success True, rows [1]
  ('b', 'c'): success True, rows [2, 3]
EXPECTED
what="the Delta Lake I/O manager replaces the whole table when it cannot make a predicate for a partition"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
