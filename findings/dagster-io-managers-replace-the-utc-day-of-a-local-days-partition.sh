#!/usr/bin/env bash
# Daily partitions with timezone="Europe/Berlin" over events whose times are in UTC, with the DuckDB and the Iceberg I/O manager:
# both take the wall clock of the partition's two ends, without its zone, as the limits of the rows that they replace and read.
# An asset of the second day does not get that day's first hour, which the table has. When the first day runs a second time, its
# own first hour stands twice and the second day's is gone. Each run succeeds, and all that it returned lies in its partition.
# Releases: dagster 1.13.27, dagster-duckdb-pandas 0.29.27, dagster-iceberg 0.3.14, pyiceberg 0.11.1, duckdb 2.0.1.
# Needs: bash, Python 3.11 or later with pip. Minutes: 1.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
export DAGSTER_HOME=$WORK/home DAGSTER_DISABLE_TELEMETRY=1
mkdir "$DAGSTER_HOME"
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check dagster==1.13.27 dagster-duckdb-pandas==0.29.27 dagster-iceberg==0.3.14 \
    'pyiceberg[pyarrow,pyiceberg-core,sql-sqlite]==0.11.1' duckdb==2.0.1 pandas==2.3.3 pyarrow==26.0.1

cat >"$WORK/show.py" <<'PYTHON'
import importlib.metadata
import sys

import dagster as dg
import duckdb
import pandas as pd
from dagster_duckdb_pandas import DuckDBPandasIOManager
from dagster_iceberg.config import IcebergCatalogConfig
from dagster_iceberg.io_manager.pandas import PandasIcebergIOManager
from pyiceberg.catalog.sql import SqlCatalog

WORK = sys.argv[1]
days = dg.DailyPartitionsDefinition(start_date="2026-01-01", timezone="Europe/Berlin")
settings = {"partitions_def": days, "key_prefix": "s", "metadata": {"partition_expr": "time"}}


@dg.asset(**settings)
def events(context) -> pd.DataFrame:
    """An event at 00, 08 and 16 o'clock of the day in Berlin, with its time in UTC."""
    start, end = context.partition_time_window
    hours = pd.date_range(start, end, freq="8h", inclusive="left")
    times = hours.tz_convert("UTC").tz_localize(None).astype("datetime64[us]")
    return pd.DataFrame({"time": times, "event": [f"{hour:%d. %H h}" for hour in hours]})


@dg.asset(**settings)
def report(context, events: pd.DataFrame) -> pd.DataFrame:
    print(f"  the report of {context.partition_key} gets:", *sorted(events.event), sep=" | ")
    return events


def run(manager, read, assets, day):
    success = dg.materialize(assets, partition_key=day, resources={"io_manager": manager}, selection=[assets[-1]]).success
    if assets[-1] is events:
        print(f"  events of {day}: success {success}, table:", *sorted(read()), sep=" | ")


def show(name, manager, read):
    print(name)
    run(manager, read, [events], "2026-01-01")
    run(manager, read, [events], "2026-01-02")
    run(manager, read, [events, report], "2026-01-02")
    run(manager, read, [events], "2026-01-01")


def from_duckdb():
    with duckdb.connect(WORK + "/x.duckdb", read_only=True) as connection:
        return [row[0] for row in connection.sql("select event from s.events").fetchall()]


print(*(f"{name} {importlib.metadata.version(name)}" for name in ("dagster", "dagster-duckdb-pandas", "dagster-iceberg", "duckdb")))
show("DuckDB", DuckDBPandasIOManager(database=WORK + "/x.duckdb"), from_duckdb)
place = {"uri": f"sqlite:///{WORK}/catalog.db", "warehouse": f"file://{WORK}/warehouse"}
catalog = SqlCatalog("c", **place)
catalog.create_namespace("s")
manager = PandasIcebergIOManager(name="c", config=IcebergCatalogConfig(properties={"type": "sql", **place}), namespace="s")
show("Iceberg", manager, lambda: catalog.load_table("s.events").scan().to_arrow()["event"].to_pylist())
PYTHON
"$PY" "$WORK/show.py" "$WORK" >"$WORK/seen" 2>"$WORK/show.log"

cat >"$WORK/expected" <<'EXPECTED'
dagster 1.13.27 dagster-duckdb-pandas 0.29.27 dagster-iceberg 0.3.14 duckdb 2.0.1
DuckDB
  events of 2026-01-01: success True, table: | 01. 00 h | 01. 08 h | 01. 16 h
  events of 2026-01-02: success True, table: | 01. 00 h | 01. 08 h | 01. 16 h | 02. 00 h | 02. 08 h | 02. 16 h
  the report of 2026-01-02 gets: | 02. 08 h | 02. 16 h
  events of 2026-01-01: success True, table: | 01. 00 h | 01. 00 h | 01. 08 h | 01. 16 h | 02. 08 h | 02. 16 h
Iceberg
  events of 2026-01-01: success True, table: | 01. 00 h | 01. 08 h | 01. 16 h
  events of 2026-01-02: success True, table: | 01. 00 h | 01. 08 h | 01. 16 h | 02. 00 h | 02. 08 h | 02. 16 h
  the report of 2026-01-02 gets: | 02. 08 h | 02. 16 h
  events of 2026-01-01: success True, table: | 01. 00 h | 01. 00 h | 01. 08 h | 01. 16 h | 02. 08 h | 02. 16 h
EXPECTED
what="Dagster's DuckDB and Iceberg I/O managers replace and read a partition of a local day by the limits of the UTC day"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
