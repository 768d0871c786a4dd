#!/usr/bin/env bash
# Restoring a Delta table to an older version takes the rows of the later batches away and leaves the application's
# transaction at the last batch. A writer that asks for it before it repeats a batch finds each of them done, and the
# rows never come back. A table that is created again with mode="overwrite" remembers the transaction, too.
# Release: deltalake 1.6.6. Needs: Python 3.11 or later with pip. Takes about half a minute.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check deltalake==1.6.6 pyarrow==26.0.1

cat >"$WORK/show.py" <<'PYTHON'
import importlib.metadata
import sys

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake

PATH = sys.argv[1] + "/orders"
COLUMNS = pa.schema([("batch", pa.int64()), ("id", pa.int64())])


def write(batch):
    """Write a batch of ten rows once: what an idempotent writer does."""
    if DeltaTable.is_deltatable(PATH):
        done = DeltaTable(PATH).transaction_version("stream")
        if done is not None and done >= batch:
            return "skipped"
    data = pa.table({"batch": [batch] * 10, "id": list(range(10))}, schema=COLUMNS)
    write_deltalake(
        PATH, data, mode="append", commit_properties=CommitProperties(app_transactions=[Transaction("stream", batch)])
    )
    return "written"


def state():
    table = DeltaTable(PATH)
    batches = sorted({b for file in table.file_uris() for b in pq.read_table(file)["batch"].to_pylist()})
    return f"rows of batches {batches}, transaction version {table.transaction_version('stream')}"


print("deltalake", importlib.metadata.version("deltalake"))
print("batches 0 to 5:", *[write(batch) for batch in range(6)])
print("table:", state())
print("transaction version in the table's version 2:", DeltaTable(PATH, version=2).transaction_version("stream"))
DeltaTable(PATH).restore(2)
print("after restore(2):", state())
print("batches 3 to 5 again:", *[write(batch) for batch in range(3, 6)])
DeltaTable.create(PATH, schema=Schema.from_arrow(COLUMNS), mode="overwrite")
print('after create(mode="overwrite"):', state())
print("batches 0 to 5 again:", *[write(batch) for batch in range(6)])
print("batch 6:", write(6))
print("table:", state())
PYTHON
"$PY" "$WORK/show.py" "$WORK" >"$WORK/seen"

cat >"$WORK/expected" <<'EXPECTED'
deltalake 1.6.6
batches 0 to 5: written written written written written written
table: rows of batches [0, 1, 2, 3, 4, 5], transaction version 5
transaction version in the table's version 2: 2
after restore(2): rows of batches [0, 1, 2], transaction version 5
batches 3 to 5 again: skipped skipped skipped
after create(mode="overwrite"): rows of batches [], transaction version 5
batches 0 to 5 again: skipped skipped skipped skipped skipped skipped
batch 6: written
table: rows of batches [6], transaction version 6
EXPECTED
what="a restored Delta table still holds the transaction version of the batches whose rows the restore took away"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
