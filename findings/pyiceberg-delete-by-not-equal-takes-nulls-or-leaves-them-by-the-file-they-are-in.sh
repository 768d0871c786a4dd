#!/usr/bin/env bash
# delete("a != 1") in pyiceberg: a row whose column is null goes or stays by what else is in its data file. Beside a 1 in
# its file it stays; in a file without a 1 it goes with the file. A scan with the same filter, which one makes first to see
# what would go, shows the null in neither case. With "a not in (1, 5)" the scan shows it, and the delete may leave it. So
# the same rows under the same filter end otherwise after a compaction, or by how a writer cut its appends.
# Release: pyiceberg 0.12.0. Needs: Python 3.11 or later with pip. Takes about half a minute.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check "pyiceberg[sql-sqlite]==0.12.0" pyarrow==26.0.1

cat >"$WORK/show.py" <<'PYTHON'
import importlib.metadata
import itertools
import sys
import warnings

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog

warnings.simplefilter("ignore")
WORK = sys.argv[1]
catalog = SqlCatalog("c", uri=f"sqlite:///{WORK}/catalog.db", warehouse=f"file://{WORK}/tables")
catalog.create_namespace("n")
numbers = itertools.count()


def values(table, **scan):
    rows = table.refresh().scan(**scan).to_arrow()["a"].to_pylist()
    return sorted(rows, key=lambda v: (v is None, v))


def show(condition, *files):
    """Make a table of these data files, ask for the rows of the condition, and delete them."""
    schema = pa.schema([("a", pa.int64())])
    table = catalog.create_table(f"n.t{next(numbers)}", schema)
    for file in files:
        table.append(pa.table({"a": file}, schema=schema))
    found = values(table, row_filter=condition)
    table.delete(condition)
    print(f"{condition}, files {' '.join(map(str, files))}: scan {found}, left after the delete {values(table)}")


print("pyiceberg", importlib.metadata.version("pyiceberg"))
for condition in ("a != 1", "a not in (1, 5)"):
    show(condition, [1, 2, None])
    show(condition, [1], [2, None])
    show(condition, [1], [2], [None])
PYTHON
"$PY" "$WORK/show.py" "$WORK" >"$WORK/seen" 2>"$WORK/show.log"

cat >"$WORK/expected" <<'EXPECTED'
pyiceberg 0.12.0
a != 1, files [1, 2, None]: scan [2], left after the delete [1, None]
a != 1, files [1] [2, None]: scan [2], left after the delete [1]
a != 1, files [1] [2] [None]: scan [2], left after the delete [1]
a not in (1, 5), files [1, 2, None]: scan [2, None], left after the delete [1, None]
a not in (1, 5), files [1] [2, None]: scan [2, None], left after the delete [1]
a not in (1, 5), files [1] [2] [None]: scan [2, None], left after the delete [1]
EXPECTED
what="a delete by != or not in takes a null or leaves it by the values that share its data file"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
