#!/usr/bin/env bash
# dagster-pandera checks a frame by pandera's validate() and throws away the frame that it returns: with drop_invalid_rows the
# type check succeeds and the invalid rows go on to the next op, with coerce texts go on under int, with a default nulls do, and
# with strict="filter" the column that is to be taken away. The run succeeds. pandera itself returns what the schema says.
# Releases: dagster 1.13.27, dagster-pandera 0.29.27, pandera 0.35.0, pandas 2.3.3, polars 2.1.0.
# Needs: Python 3.11 or later with pip. Minutes: 0.5.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check dagster==1.13.27 dagster-pandera==0.29.27 pandera==0.35.0 \
    pandas==2.3.3 polars==2.1.0

cat >"$WORK/show.py" <<'PYTHON'
import importlib.metadata

import dagster
import pandas as pd
import pandera.pandas as pandas_schemas
import pandera.polars as polars_schemas
import polars as pl
from dagster_pandera import pandera_schema_to_dagster_type


def lists(frame):
    return frame.to_dict("list") if isinstance(frame, pd.DataFrame) else frame.to_dict(as_series=False)


def show(name, schema, frame):
    """Print what pandera makes of a frame, and what the next op gets of a frame that goes through dagster's type."""
    kind = pandera_schema_to_dagster_type(schema)
    got = []

    @dagster.op(out=dagster.Out(kind))
    def make():
        return frame

    @dagster.op(ins={"rows": dagster.In(kind)})
    def use(rows):
        got.append(lists(rows))

    @dagster.job
    def both():
        use(make())

    try:
        print(f"{name}: pandera returns", lists(schema.validate(frame.copy() if hasattr(frame, "copy") else frame.clone(), lazy=True)))
    except Exception as error:
        print(f"{name}: pandera raises", type(error).__name__)
    run = both.execute_in_process(raise_on_error=False)
    print(f"  dagster: success {run.success}, the next op gets", got)


for package in ("dagster", "dagster-pandera", "pandera", "pandas", "polars"):
    print(package, importlib.metadata.version(package))
positive = pandas_schemas.Check.gt(0)
Schema, Column = pandas_schemas.DataFrameSchema, pandas_schemas.Column
show("an invalid row", Schema({"a": Column(int, positive)}, name="invalid"), pd.DataFrame({"a": [1, -5, 3]}))
dropping = Schema({"a": Column(int, positive)}, drop_invalid_rows=True, name="dropping")
show("drop_invalid_rows", dropping, pd.DataFrame({"a": [1, -5, 3]}))
show("coerce", Schema({"a": Column(int)}, coerce=True, name="coercing"), pd.DataFrame({"a": ["1", "2"]}))
show("default", Schema({"a": Column(float, default=0.0)}, name="filling"), pd.DataFrame({"a": [1.0, None]}))
only = Schema({"a": Column(int)}, strict="filter", name="filtering")
show("strict='filter'", only, pd.DataFrame({"a": [1], "secret": ["x"]}))
of_polars = polars_schemas.DataFrameSchema({"a": polars_schemas.Column(pl.Int64)}, coerce=True, name="coercing_polars")
show("coerce, polars", of_polars, pl.DataFrame({"a": ["1", "2"]}))
dropping = polars_schemas.DataFrameSchema(
    {"a": polars_schemas.Column(pl.Int64, polars_schemas.Check.gt(0))}, drop_invalid_rows=True, name="dropping_polars"
)
show("drop_invalid_rows, polars", dropping, pl.DataFrame({"a": [1, -5, 3]}))
PYTHON
DAGSTER_HOME='' "$PY" "$WORK/show.py" >"$WORK/seen" 2>"$WORK/show.log"

cat >"$WORK/expected" <<'EXPECTED'
dagster 1.13.27
dagster-pandera 0.29.27
pandera 0.35.0
pandas 2.3.3
polars 2.1.0
an invalid row: pandera raises SchemaErrors
  dagster: success False, the next op gets []
drop_invalid_rows: pandera returns {'a': [1, 3]}
  dagster: success True, the next op gets [{'a': [1, -5, 3]}]
coerce: pandera returns {'a': [1, 2]}
  dagster: success True, the next op gets [{'a': ['1', '2']}]
default: pandera returns {'a': [1.0, 0.0]}
  dagster: success True, the next op gets [{'a': [1.0, nan]}]
strict='filter': pandera returns {'a': [1]}
  dagster: success True, the next op gets [{'a': [1], 'secret': ['x']}]
coerce, polars: pandera returns {'a': [1, 2]}
  dagster: success True, the next op gets [{'a': ['1', '2']}]
drop_invalid_rows, polars: pandera returns {'a': [1, 3]}
  dagster: success True, the next op gets [{'a': [1, -5, 3]}]
EXPECTED
what="dagster-pandera passes on the frame as it was, with the rows and types that its schema drops or changes"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
