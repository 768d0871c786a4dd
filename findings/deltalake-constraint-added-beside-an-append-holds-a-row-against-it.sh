#!/usr/bin/env bash
# deltalake checks all rows of a table before it adds a constraint to it, and refuses a constraint that a row is
# against. It checks the version that it has loaded: a row that another writer appends meanwhile is not looked at,
# both commit, and the table holds a row against its constraint. In the other order, the append behind the new
# constraint, the append is refused.
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
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

print("deltalake", importlib.metadata.version("deltalake"))


def append(table, number):
    write_deltalake(table, pa.table({"id": [number]}), mode="append")


def constrain(table):
    table.alter.add_constraint({"positive": "id > 0"})


def case(name, first, second, stale):
    """Do one deed after the other, the second on a handle that was loaded before the first, or afresh."""
    path = f"{sys.argv[1]}/{name.replace(' ', '-')}"
    write_deltalake(path, pa.table({"id": [1]}))
    mine = DeltaTable(path)
    first(DeltaTable(path))
    try:
        second(mine if stale else DeltaTable(path))
        result = "both committed"
    except CommitFailedError:
        result = "the second one lost the race"
    except DeltaError:
        result = "the second one was refused"
    table = DeltaTable(path)
    rows = sorted(i for file in table.file_uris() for i in pq.read_table(file)["id"].to_pylist())
    print(f"{name}: {result}, constraints {list(table.metadata().configuration.values())}, rows {rows}")


case("append -9 and then the constraint", lambda t: append(t, -9), constrain, stale=False)
case("the constraint beside the append of -9", lambda t: append(t, -9), constrain, stale=True)
case("the append of -9 beside the constraint", constrain, lambda t: append(t, -9), stale=True)
PYTHON
"$PY" "$WORK/show.py" "$WORK" >"$WORK/seen"

cat >"$WORK/expected" <<'EXPECTED'
deltalake 1.6.6
append -9 and then the constraint: the second one was refused, constraints [], rows [-9, 1]
the constraint beside the append of -9: both committed, constraints ['id > 0'], rows [-9, 1]
the append of -9 beside the constraint: the second one lost the race, constraints ['id > 0'], rows [1]
EXPECTED
what="deltalake adds a constraint beside a concurrent append of a row that is against it"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
