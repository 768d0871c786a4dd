#!/usr/bin/env bash
# A step of pointblank that cannot be evaluated, because its column has another name by now or holds texts in place of numbers,
# reaches no threshold: its levels are None. assert_below_threshold(), which is described as the check of a pipeline that some
# failing rows are allowed to pass, returns, above_threshold() is False, and no action is called, although one failing row is enough
# for the thresholds that are set. interrogate() raises and logs nothing; all_passed() alone is False, as for any failing row.
# A step with one failing row does what is described, and dataframely refuses both frames.
# Releases: pointblank 1.1.1, dataframely 3.1.2. Needs: bash, Python 3.11 or later with pip. Minutes: 0.5.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check pointblank==1.1.1 dataframely==3.1.2 polars==2.1.0 pandas==2.3.3 pyarrow==26.0.1

cat >"$WORK/show.py" <<'PYTHON'
import importlib.metadata

import dataframely
import pointblank as pb
import polars

ORDERS = polars.DataFrame({"id": [1, 2, 3], "amount": [10, 20, 30]})
RENAMED = ORDERS.rename({"amount": "total"})
TEXTS = ORDERS.cast({"amount": polars.String})
called = []


class Orders(dataframely.Schema):
    """What dataframely compares the same frames with."""

    id = dataframely.Int64()
    amount = dataframely.Int64(min_exclusive=0)


def outcome(call):
    """Return what a call gives, or the name of what it raises."""
    try:
        result = call()
    except Exception as error:
        return type(error).__name__
    return "passes" if result is None else "returns the frame"


def show(title, table):
    """Demand amounts above zero and ids, with one failing row as the threshold of each level."""
    called.clear()
    validation = pb.Validate(
        table, thresholds=pb.Thresholds(warning=1, error=1, critical=1), actions=pb.Actions(critical=lambda: called.append("called"))
    )
    validation = validation.col_vals_not_null("id").col_vals_gt("amount", 0).interrogate()
    print(f"{title}:")
    print("  critical by step", list(validation.critical().values()), "action", called or "not called")
    print("  assert_below_threshold", outcome(lambda: validation.assert_below_threshold(level="warning")), end=", ")
    print("above_threshold", validation.above_threshold(level="warning"), end=", ")
    print("all_passed", validation.all_passed())


print(*(f"{name} {importlib.metadata.version(name)}" for name in ("pointblank", "polars", "dataframely")))
show("good rows", ORDERS)
show("one amount is less than zero", ORDERS.with_columns(amount=polars.Series([10, 20, -30])))
show("the column has another name", RENAMED)
show("the column has another name, a frame of pandas", RENAMED.to_pandas())
show("the column holds texts", TEXTS)
for title, table in (("good rows", ORDERS), ("another name", RENAMED), ("texts", TEXTS)):
    print(f"dataframely, {title}:", outcome(lambda table=table: Orders.validate(table)))
PYTHON
"$PY" "$WORK/show.py" >"$WORK/seen" 2>"$WORK/show.log"

cat >"$WORK/expected" <<'EXPECTED'
pointblank 1.1.1 polars 2.1.0 dataframely 3.1.2
good rows:
  critical by step [False, False] action not called
  assert_below_threshold passes, above_threshold False, all_passed True
one amount is less than zero:
  critical by step [False, True] action ['called']
  assert_below_threshold AssertionError, above_threshold True, all_passed False
the column has another name:
  critical by step [False, None] action not called
  assert_below_threshold passes, above_threshold False, all_passed False
the column has another name, a frame of pandas:
  critical by step [False, None] action not called
  assert_below_threshold passes, above_threshold False, all_passed False
the column holds texts:
  critical by step [False, None] action not called
  assert_below_threshold passes, above_threshold False, all_passed False
dataframely, good rows: returns the frame
dataframely, another name: SchemaError
dataframely, texts: SchemaError
EXPECTED
what="pointblank's thresholds pass a step that could not be evaluated"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
