#!/usr/bin/env bash
# Spark's file sink remembers finished batches by their number alone, in the output folder, whichever query wrote
# them. A query with a new checkpoint (a restart from scratch, or a second query into one folder) starts with batch 0
# again: as many of its batches as the folder knows already are counted as written, and none of their rows is. No
# error, and commits go on.
# Release: PySpark 4.3.0. Needs: Python 3.11 or later with pip, Java 17. Takes about one minute.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check pyspark==4.3.0

cat >"$WORK/show.py" <<'PYTHON'
import json
import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

os.environ["PYSPARK_PYTHON"] = sys.executable
ROOT = Path(sys.argv[1])
settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "1", "spark.log.level": "ERROR"}
spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()


def put(folder, number, *ids):
    """Write the input file of one batch."""
    (ROOT / folder).mkdir(exist_ok=True)
    file = ROOT / folder / f"{number}.json"
    file.write_text("".join(json.dumps({"id": i}) + "\n" for i in ids))
    os.utime(file, (1_700_000_000 + 60 * number,) * 2)  # the order in which the source takes the files


def run(folder, checkpoint):
    """Read each file of the folder in a batch of its own, and append its rows to the output."""
    stream = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).json(str(ROOT / folder))
    query = (
        stream.writeStream.format("parquet")
        .option("path", str(ROOT / "output"))
        .option("checkpointLocation", str(ROOT / checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    committed = sorted(int(f.name) for f in (ROOT / checkpoint / "commits").iterdir() if f.name.isdigit())
    print(f"  exception: {query.exception()}, batches committed in the checkpoint: {committed}")


def output():
    print("  ids in the output:", sorted(r.id for r in spark.read.parquet(str(ROOT / "output")).collect()))


print("PySpark", spark.version)
for number in range(3):
    put("first", number, number)
for number in range(4):
    put("second", number, 100 + number)
print("first query, three files with the ids 0 to 2:")
run("first", "checkpoint-1")
output()
print("second query, own input and own checkpoint, four files with the ids 100 to 103:")
run("second", "checkpoint-2")
output()
print("the second query once more:")
run("second", "checkpoint-2")
output()
PYTHON
"$PY" "$WORK/show.py" "$WORK" >"$WORK/seen" 2>"$WORK/spark.log"

cat >"$WORK/expected" <<'EXPECTED'
PySpark 4.3.0
first query, three files with the ids 0 to 2:
  exception: None, batches committed in the checkpoint: [0, 1, 2]
  ids in the output: [0, 1, 2]
second query, own input and own checkpoint, four files with the ids 100 to 103:
  exception: None, batches committed in the checkpoint: [0, 1, 2, 3]
  ids in the output: [0, 1, 2, 103]
the second query once more:
  exception: None, batches committed in the checkpoint: [0, 1, 2, 3]
  ids in the output: [0, 1, 2, 103]
EXPECTED
what="Spark's file sink drops the batches of a new checkpoint whose numbers the output folder knows already"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
