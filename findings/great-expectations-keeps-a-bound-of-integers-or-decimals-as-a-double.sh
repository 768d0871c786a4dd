#!/usr/bin/env bash
# An expectation of GX keeps min_value and max_value as doubles, whether it is given an int or a Decimal, for the
# values of a column, their greatest and their sum. Beyond 2^53 the bound is another number: an id, a time in
# nanoseconds or a decimal above max_value passes, and one above min_value fails under strict_min. No error; a
# value_set of the same numbers tells them apart.
# Releases: great_expectations 1.24.1, pandas 2.3.3. Needs: bash, Python 3.11 or later with pip. Minutes: 1.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check great_expectations==1.24.1 pandas==2.3.3

cat >"$WORK/show.py" <<'PYTHON'
import importlib.metadata
import logging
from decimal import Decimal

import great_expectations as gx
import pandas as pd

logging.disable(logging.CRITICAL)
context = gx.get_context(mode="ephemeral")
source = context.data_sources.add_pandas("memory")
asset = source.add_dataframe_asset("rows")
definition = asset.add_batch_definition_whole_dataframe("whole")
CASES = {
    "ids": (9007199254740993, 9007199254740992),
    "64-bit ids": (1844674407370955200, 1844674407370955199),
    "nanoseconds": (1767225600123456789, 1767225600123456788),
    "decimals": (Decimal("12345678901234567.89"), Decimal("12345678901234567.88")),
    "small ids": (8, 7),
}
EXPECT = gx.expectations

print(*(f"{name} {importlib.metadata.version(name)}" for name in ("great_expectations", "pandas")))
for name, (value, bound) in CASES.items():
    batch = definition.get_batch({"dataframe": pd.DataFrame({"v": [value]})})
    kept = EXPECT.ExpectColumnValuesToBeBetween(column="v", max_value=bound).max_value
    print(f"{name}: the value {value}, the bound {bound} is kept as {kept!r}")
    for words, expectation in {
        "value <= bound": EXPECT.ExpectColumnValuesToBeBetween(column="v", max_value=bound),
        "value > bound": EXPECT.ExpectColumnValuesToBeBetween(column="v", min_value=bound, strict_min=True),
        "max <= bound": EXPECT.ExpectColumnMaxToBeBetween(column="v", max_value=bound),
        "sum <= bound": EXPECT.ExpectColumnSumToBeBetween(column="v", max_value=bound),
        "value in [bound]": EXPECT.ExpectColumnValuesToBeInSet(column="v", value_set=[bound]),
    }.items():
        print(f"  {words}:", "success" if batch.validate(expectation).success else "failure")
PYTHON
GX_ANALYTICS_ENABLED=false "$PY" "$WORK/show.py" >"$WORK/seen" 2>"$WORK/show.log"

cat >"$WORK/expected" <<'EXPECTED'
great_expectations 1.24.1 pandas 2.3.3
ids: the value 9007199254740993, the bound 9007199254740992 is kept as 9007199254740992.0
  value <= bound: success
  value > bound: failure
  max <= bound: success
  sum <= bound: success
  value in [bound]: failure
64-bit ids: the value 1844674407370955200, the bound 1844674407370955199 is kept as 1.8446744073709553e+18
  value <= bound: success
  value > bound: failure
  max <= bound: success
  sum <= bound: success
  value in [bound]: failure
nanoseconds: the value 1767225600123456789, the bound 1767225600123456788 is kept as 1.7672256001234568e+18
  value <= bound: success
  value > bound: failure
  max <= bound: success
  sum <= bound: success
  value in [bound]: failure
decimals: the value 12345678901234567.89, the bound 12345678901234567.88 is kept as 1.2345678901234568e+16
  value <= bound: success
  value > bound: failure
  max <= bound: success
  sum <= bound: success
  value in [bound]: failure
small ids: the value 8, the bound 7 is kept as 7.0
  value <= bound: failure
  value > bound: success
  max <= bound: failure
  sum <= bound: failure
  value in [bound]: failure
EXPECTED
what="GX keeps a bound of integers or decimals as a double"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
