#!/usr/bin/env bash
# pandera with drop_invalid_rows drops the rows of a pandas frame that fail a check by their label. Labels come twice
# where frames were put together by concat, as batches are: each valid row that shares its label with an invalid one
# of another batch goes with it. With n_failure_cases, which is for the report, only so many of the invalid rows go,
# and the others stay in what is returned as valid. Neither raises an error.
# Releases: pandera 0.35.0, pandas 3.0.6. Needs: bash, Python 3.11 or later with pip. Minutes: 0.5.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check pandera==0.35.0 pandas==3.0.6

cat >"$WORK/show.py" <<'PYTHON'
import importlib.metadata

import pandas as pd
import pandera.pandas as pa


def show(name, frame, columns):
    print(name + ":")
    for drop in (False, True):
        schema = pa.DataFrameSchema(columns, drop_invalid_rows=drop)
        try:
            got = schema.validate(frame, lazy=True).to_dict("list")
        except pa.errors.SchemaErrors as error:
            got = f"{len(error.failure_cases)} in the error that is raised"
        print("  with" if drop else "  without", "drop_invalid_rows:", got)


print(*(f"{name} {importlib.metadata.version(name)}" for name in ("pandera", "pandas")))
first = pd.DataFrame({"id": [1, 2], "price": [5, 6]})
second = pd.DataFrame({"id": [3, 4], "price": [-7, 8]})
not_negative = {"id": pa.Column(int), "price": pa.Column(int, pa.Check.ge(0))}
show("two batches", pd.concat([first, second]), not_negative)
show("two batches with ignore_index", pd.concat([first, second], ignore_index=True), not_negative)
prices = pd.DataFrame({"price": [5, -1, -2, -3]})
for count in (None, 1, 2):
    check = pa.Check.ge(0, n_failure_cases=count)
    show(f"n_failure_cases={count}", prices, {"price": pa.Column(int, check)})
PYTHON
"$PY" "$WORK/show.py" >"$WORK/seen" 2>"$WORK/show.log"

cat >"$WORK/expected" <<'EXPECTED'
pandera 0.35.0 pandas 3.0.6
two batches:
  without drop_invalid_rows: 1 in the error that is raised
  with drop_invalid_rows: {'id': [2, 4], 'price': [6, 8]}
two batches with ignore_index:
  without drop_invalid_rows: 1 in the error that is raised
  with drop_invalid_rows: {'id': [1, 2, 4], 'price': [5, 6, 8]}
n_failure_cases=None:
  without drop_invalid_rows: 3 in the error that is raised
  with drop_invalid_rows: {'price': [5]}
n_failure_cases=1:
  without drop_invalid_rows: 1 in the error that is raised
  with drop_invalid_rows: {'price': [5, -2, -3]}
n_failure_cases=2:
  without drop_invalid_rows: 2 in the error that is raised
  with drop_invalid_rows: {'price': [5, -3]}
EXPECTED
what="pandera's drop_invalid_rows drops valid rows of a pandas frame, and keeps invalid ones"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
