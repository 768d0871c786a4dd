#!/usr/bin/env bash
# vortex-data gives its files to Polars and to pyarrow as a lazy frame and as a dataset, and their filters are handed down to the
# file, which compares floating-point numbers by another order: the documentation of its Rust crate says of what kind, and nothing
# tells a user of Polars or pyarrow. A filter for 0 misses -0.0, which a rounded -0.4 and a product with -1 are; >= 0 misses it,
# too, and < 0 returns it. A NaN with a minus sign, as 0.0 / 0.0 is on x86, is below all numbers: < 0 and < -1000 return it. None of
# this raises an error. Polars and pyarrow by themselves, and over a Parquet file of the same rows, take -0.0 as equal to 0, and no
# NaN as less than a number.
# Releases: vortex-data 0.93.0, polars 2.1.0, pyarrow 26.0.1. Needs: bash, Python 3.11 or later with pip. Minutes: 0.5.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check vortex-data==0.93.0 polars==2.1.0 pyarrow==26.0.1

cat >"$WORK/show.py" <<'PYTHON'
import importlib.metadata
import sys

import polars
import pyarrow
import pyarrow.compute
import pyarrow.dataset
import pyarrow.parquet
import vortex
import vortex.expr

WORK = sys.argv[1]
NAN = float("nan")
table = pyarrow.table({"row": ["one", "zero", "minus zero", "minus one", "nan", "minus nan"], "x": [1.0, 0.0, -0.0, -1.0, NAN, -NAN]})
print(*(f"{name} {importlib.metadata.version(name)}" for name in ("vortex-data", "polars", "pyarrow")))
vortex.io.write(table, f"{WORK}/rows.vortex")
pyarrow.parquet.write_table(table, f"{WORK}/rows.parquet")
file = vortex.open(f"{WORK}/rows.vortex")
print("the file has", file.scan().read_all().to_arrow_table().column("x").to_pylist())
frames = {
    "Polars": polars.from_arrow(table).lazy(),
    "Polars over Parquet": polars.scan_parquet(f"{WORK}/rows.parquet"),
    "Polars over Vortex": file.to_polars(),
}
sets = {
    "pyarrow": pyarrow.dataset.dataset(table),
    "pyarrow over Parquet": pyarrow.dataset.dataset(f"{WORK}/rows.parquet"),
    "pyarrow over Vortex": file.to_dataset(),
}
FILTERS = {
    "x == 0": lambda x: x == 0.0, "x < 0": lambda x: x < 0.0, "x >= 0": lambda x: x >= 0.0, "x < -1000": lambda x: x < -1000.0,
}


def listed(names):
    """Return names in one text."""
    return ", ".join(names.to_pylist()) or "no row"


for name, make in FILTERS.items():
    print(f"{name}:")
    found = file.scan(["row"], expr=make(vortex.expr.column("x"))).read_all().to_arrow_table()
    print("  vortex:", listed(found.column("row")))
    for label, frame in frames.items():
        print(f"  {label}:", listed(frame.filter(make(polars.col("x"))).collect().to_arrow().column("row")))
    for label, data in sets.items():
        found = data.to_table(columns=["row"], filter=make(pyarrow.compute.field("x")))
        print(f"  {label}:", listed(found.column("row")))
PYTHON
"$PY" "$WORK/show.py" "$WORK" >"$WORK/seen" 2>"$WORK/show.log"

cat >"$WORK/expected" <<'EXPECTED'
vortex-data 0.93.0 polars 2.1.0 pyarrow 26.0.1
the file has [1.0, 0.0, -0.0, -1.0, nan, nan]
x == 0:
  vortex: zero
  Polars: zero, minus zero
  Polars over Parquet: zero, minus zero
  Polars over Vortex: zero
  pyarrow: zero, minus zero
  pyarrow over Parquet: zero, minus zero
  pyarrow over Vortex: zero
x < 0:
  vortex: minus zero, minus one, minus nan
  Polars: minus one
  Polars over Parquet: minus one
  Polars over Vortex: minus zero, minus one, minus nan
  pyarrow: minus one
  pyarrow over Parquet: minus one
  pyarrow over Vortex: minus zero, minus one, minus nan
x >= 0:
  vortex: one, zero, nan
  Polars: one, zero, minus zero, nan, minus nan
  Polars over Parquet: one, zero, minus zero, nan, minus nan
  Polars over Vortex: one, zero, nan
  pyarrow: one, zero, minus zero
  pyarrow over Parquet: one, zero, minus zero
  pyarrow over Vortex: one, zero, nan
x < -1000:
  vortex: minus nan
  Polars: no row
  Polars over Parquet: no row
  Polars over Vortex: minus nan
  pyarrow: no row
  pyarrow over Parquet: no row
  pyarrow over Vortex: minus nan
EXPECTED
what="over a Vortex file filters of Polars and pyarrow miss -0.0"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
