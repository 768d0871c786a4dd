#!/usr/bin/env bash
# Pointblank's get_sundered_data() is said to divide a table into the rows that passed all steps and the rows that failed one. It
# joins the steps' results to the table by their row numbers. A step with segments= has numbers of its segment, and one with pre=
# those of the table that pre= returned, so that the verdicts go to other rows: a row that failed is among those that passed, and a
# good one among those that failed. If such a step is the first, the rows behind its last number are in neither part. A step with
# pre= is said to be left out. No error and no warning says so. The counts of the steps are right, and the same steps without
# segments, or polars' own filter, divide the table as described.
# Release: pointblank 1.1.1. Needs: bash, Python 3.11 or later with pip. Minutes: 0.5.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check pointblank==1.1.1 polars==2.1.0 pandas==2.3.3 pyarrow==26.0.1

cat >"$WORK/show.py" <<'PYTHON'
import importlib.metadata

import narwhals
import pointblank as pb
import polars

ORDERS = polars.DataFrame({"shop": ["north", "south", "north", "south"], "amount": [1, 2, -3, 4]})


def rows(frame):
    """Return a frame's rows as short texts."""
    return [f"{shop} {amount}" for shop, amount in narwhals.from_native(frame).rows()]


def show(title, validation):
    """Interrogate, and print what failed by the steps' own counts and how the table is divided."""
    validation = validation.interrogate()
    print(f"{title}: failed by step {list(validation.n_failed().values())}")
    for part in ("pass", "fail"):
        print(f"  {part}: {rows(validation.get_sundered_data(type=part))}")


def named(table):
    """Return a validation whose first step looks at all rows, and passes."""
    return pb.Validate(table).col_vals_not_null("shop")


def of_south(table):
    """Return the rows of one shop."""
    return table.filter(polars.col("shop") == "south")


print(*(f"{name} {importlib.metadata.version(name)}" for name in ("pointblank", "polars")))
print("the table:", rows(ORDERS))
show("without segments", named(ORDERS).col_vals_gt("amount", 0))
show("segments by shop", named(ORDERS).col_vals_gt("amount", 0, segments="shop"))
show("segments by shop, a frame of pandas", named(ORDERS.to_pandas()).col_vals_gt("amount", 0, segments="shop"))
show("segments by shop, and no other step", pb.Validate(ORDERS).col_vals_gt("amount", 0, segments="shop"))
show("pre= takes one shop, less than 3", named(ORDERS).col_vals_lt("amount", 3, pre=of_south))
bad = polars.col("amount") <= 0
print("polars:", {"pass": rows(ORDERS.filter(~bad)), "fail": rows(ORDERS.filter(bad))})
PYTHON
"$PY" "$WORK/show.py" >"$WORK/seen" 2>"$WORK/show.log"

cat >"$WORK/expected" <<'EXPECTED'
pointblank 1.1.1 polars 2.1.0
the table: ['north 1', 'south 2', 'north -3', 'south 4']
without segments: failed by step [0, 1]
  pass: ['north 1', 'south 2', 'south 4']
  fail: ['north -3']
segments by shop: failed by step [0, 1, 0]
  pass: ['north 1', 'north -3', 'south 4']
  fail: ['south 2']
segments by shop, a frame of pandas: failed by step [0, 1, 0]
  pass: ['north 1', 'north -3', 'south 4']
  fail: ['south 2']
segments by shop, and no other step: failed by step [1, 0]
  pass: ['north 1']
  fail: ['south 2']
pre= takes one shop, less than 3: failed by step [0, 1]
  pass: ['north 1', 'north -3', 'south 4']
  fail: ['south 2']
polars: {'pass': ['north 1', 'south 2', 'south 4'], 'fail': ['north -3']}
EXPECTED
what="Pointblank's sundered data takes the row numbers of a segment for those of the table"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
