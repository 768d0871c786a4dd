#!/usr/bin/env bash
# datacompy compares two data frames by key, for pandas and for Polars, here with its default tolerances, which are 0.
# It compares columns of numbers as doubles: two integers that differ match if both are beyond 2^53, as ids of 64 bits
# and nanoseconds are, and so do two decimals that differ beyond the digits of a double. The report says that each row
# compares as equal. The frames' own equals() tells them apart, and so does datacompy if the same digits stand in
# texts.
# Releases: datacompy 1.1.0, pandas 3.0.6, polars 1.44.2. Needs: bash, Python 3.11 or later with pip. Minutes: 0.5.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check datacompy==1.1.0 pandas==3.0.6 polars==1.44.2 pyarrow==26.0.1

cat >"$WORK/show.py" <<'PYTHON'
import importlib.metadata
import re
from decimal import Decimal

import datacompy
import pandas as pd
import polars as pl

PAIRS = {
    "ids": (9007199254740992, 9007199254740993),
    "64-bit ids": (1844674407370955161, 1844674407370955200),
    "nanoseconds": (1767225600123456700, 1767225600123456789),
    "small ids": (1, 2),
    "decimals": (Decimal("12345678901234567.89"), Decimal("12345678901234567.88")),
    "texts": ("9007199254740992", "9007199254740993"),
}

print(*(f"{name} {importlib.metadata.version(name)}" for name in ("datacompy", "pandas", "polars")))
for name, values in PAIRS.items():
    print(f"{name}: {values[0]} and {values[1]}")
    for library, frame, compare in (("pandas", pd, datacompy.PandasCompare), ("polars", pl, datacompy.PolarsCompare)):
        left, right = (frame.DataFrame({"key": [1, 2], "value": [value, value]}) for value in values)
        compared = compare(left, right, join_columns="key")
        equal = re.search(r"all compared columns equal: ([\d,]+)", compared.report())
        print(f"  {library}: matches {compared.matches()}, rows equal in the report: {equal and equal[1]};", end=" ")
        print("equals():", left.equals(right))
PYTHON
"$PY" "$WORK/show.py" >"$WORK/seen" 2>"$WORK/show.log"

cat >"$WORK/expected" <<'EXPECTED'
datacompy 1.1.0 pandas 3.0.6 polars 1.44.2
ids: 9007199254740992 and 9007199254740993
  pandas: matches True, rows equal in the report: 2; equals(): False
  polars: matches True, rows equal in the report: 2; equals(): False
64-bit ids: 1844674407370955161 and 1844674407370955200
  pandas: matches True, rows equal in the report: 2; equals(): False
  polars: matches True, rows equal in the report: 2; equals(): False
nanoseconds: 1767225600123456700 and 1767225600123456789
  pandas: matches True, rows equal in the report: 2; equals(): False
  polars: matches True, rows equal in the report: 2; equals(): False
small ids: 1 and 2
  pandas: matches False, rows equal in the report: 0; equals(): False
  polars: matches False, rows equal in the report: 0; equals(): False
decimals: 12345678901234567.89 and 12345678901234567.88
  pandas: matches True, rows equal in the report: 2; equals(): False
  polars: matches True, rows equal in the report: 2; equals(): False
texts: 9007199254740992 and 9007199254740993
  pandas: matches False, rows equal in the report: 0; equals(): False
  polars: matches False, rows equal in the report: 0; equals(): False
EXPECTED
what="datacompy finds numbers equal that differ beyond the digits of a double"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
