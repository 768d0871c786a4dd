#!/usr/bin/env bash
# pandera with drop_invalid_rows, which drops the rows that fail, hides for Polars what is no fault of a row: a frame
# that lacks a column of the schema, has one too many under strict, is in another order under ordered, or has a column
# of another type is returned as it is, without an error. So are rows that break the schema's own unique. The backend
# for pandas raises for the first three and drops those rows. Of a LazyFrame, whose rows pandera does not look at by
# default, no row is dropped, and its schema's errors are hidden as well.
# Releases: pandera 0.35.0, polars 2.1.0, pandas 3.0.6. Needs: bash, Python 3.11 or later with pip. Minutes: 0.5.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check pandera==0.35.0 polars==2.1.0 pandas==3.0.6 pyarrow==26.0.1

cat >"$WORK/show.py" <<'PYTHON'
import importlib.metadata

import pandas as pd
import pandera.pandas
import pandera.polars
import polars as pl

BACKENDS = {
    "pandas": (pandera.pandas, "Int64", str, pd.DataFrame),
    "polars": (pandera.polars, pl.Int64, pl.String, pl.DataFrame),
    "polars, lazy": (pandera.polars, pl.Int64, pl.String, pl.LazyFrame),
}
ROWS = {"id": [1, 1, 2], "price": [5, 5, 7]}
CASES = {
    "a column is missing": (ROWS, lambda m, i, s: ({"id": i, "price": i, "shop": i}, {})),
    "a column too many under strict": (ROWS, lambda m, i, s: ({"id": i}, {"strict": True})),
    "another order under ordered": (ROWS, lambda m, i, s: ({"price": i, "id": i}, {"ordered": True})),
    "price is a text in the schema": (ROWS, lambda m, i, s: ({"id": i, "price": s}, {})),
    "rows that come twice, under unique": (ROWS, lambda m, i, s: ({"id": i, "price": i}, {"unique": ["id", "price"]})),
    "a null": ({"id": [1, None, 3]}, lambda m, i, s: ({"id": i}, {})),
    "a negative value": ({"id": [1, -2, 3]}, lambda m, i, s: ({"id": m.Column(i, m.Check.ge(0))}, {})),
}

print(*(f"{name} {importlib.metadata.version(name)}" for name in ("pandera", "polars", "pandas")))
for case, (rows, schema_of) in CASES.items():
    print(case + ":")
    for name, (module, integer, text, frame_of) in BACKENDS.items():
        columns, settings = schema_of(module, integer, text)
        columns = {k: v if isinstance(v, module.Column) else module.Column(v) for k, v in columns.items()}
        frame = frame_of(rows)
        if name == "pandas":
            frame = frame.astype("Int64")
        schema = module.DataFrameSchema(columns, drop_invalid_rows=True, **settings)
        try:
            valid = schema.validate(frame, lazy=True)
        except module.errors.SchemaErrors:
            print(f"  {name}: SchemaErrors")
            continue
        valid = valid.collect() if isinstance(valid, pl.LazyFrame) else valid
        print(f"  {name}: {valid.to_dict('list') if name == 'pandas' else valid.to_dict(as_series=False)}")
PYTHON
"$PY" "$WORK/show.py" >"$WORK/seen" 2>"$WORK/show.log"

cat >"$WORK/expected" <<'EXPECTED'
pandera 0.35.0 polars 2.1.0 pandas 3.0.6
a column is missing:
  pandas: SchemaErrors
  polars: {'id': [1, 1, 2], 'price': [5, 5, 7]}
  polars, lazy: {'id': [1, 1, 2], 'price': [5, 5, 7]}
a column too many under strict:
  pandas: SchemaErrors
  polars: {'id': [1, 1, 2], 'price': [5, 5, 7]}
  polars, lazy: {'id': [1, 1, 2], 'price': [5, 5, 7]}
another order under ordered:
  pandas: SchemaErrors
  polars: {'id': [1, 1, 2], 'price': [5, 5, 7]}
  polars, lazy: {'id': [1, 1, 2], 'price': [5, 5, 7]}
price is a text in the schema:
  pandas: {'id': [], 'price': []}
  polars: {'id': [1, 1, 2], 'price': [5, 5, 7]}
  polars, lazy: {'id': [1, 1, 2], 'price': [5, 5, 7]}
rows that come twice, under unique:
  pandas: {'id': [2], 'price': [7]}
  polars: {'id': [1, 1, 2], 'price': [5, 5, 7]}
  polars, lazy: {'id': [1, 1, 2], 'price': [5, 5, 7]}
a null:
  pandas: {'id': [1, 3]}
  polars: {'id': [1, 3]}
  polars, lazy: {'id': [1, None, 3]}
a negative value:
  pandas: {'id': [1, 3]}
  polars: {'id': [1, 3]}
  polars, lazy: {'id': [1, -2, 3]}
EXPECTED
what="pandera's drop_invalid_rows returns Polars frames that break their schema"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
