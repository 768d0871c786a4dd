#!/usr/bin/env bash
# An asset of Optional[DataFrame] that returns None is materialized, with "missing" in its metadata. The I/O managers of
# dagster-polars write nothing then, as they say in a warning, and leave what an earlier run wrote: the asset that reads it, in the
# same run, gets the rows of the earlier run, without an error. It gets the None that was returned only if no run has ever written a
# frame. A partition is served in the same way, in a file of its own or in a Delta table that is partitioned by a column. An empty
# frame replaces the earlier one, and Dagster's own file manager returns None.
# Releases: dagster 1.13.29, dagster-polars 0.27.12, polars 1.44.2, deltalake 1.6.6. Needs: bash, Python 3.11 or later with pip.
# Minutes: 0.5.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check \
    dagster==1.13.29 dagster-polars==0.27.12 polars==1.44.2 deltalake==1.6.6 pyarrow==26.0.1

cat >"$WORK/show.py" <<'PYTHON'
import importlib.metadata
import sys
from pathlib import Path
from typing import Optional

import polars
from dagster import AssetKey, DagsterInstance, FilesystemIOManager, StaticPartitionsDefinition, asset, materialize, mem_io_manager
from dagster_polars import PolarsDeltaIOManager, PolarsParquetIOManager

WORK = Path(sys.argv[1])
SHOPS = StaticPartitionsDefinition(["north", "south"])
ORDERS = polars.DataFrame({"shop": ["north"], "amount": [10]})


def show(number, title, manager, partitions=None, metadata=None):
    """Materialize orders and its reader once for each of the outputs, and print what the reader got and what is recorded."""
    outputs, got = [], []

    @asset(io_manager_key="files", partitions_def=partitions, metadata=metadata)
    def orders() -> Optional[polars.DataFrame]:
        return outputs[-1]

    @asset(io_manager_key="memory", partitions_def=partitions)
    def reader(orders: Optional[polars.DataFrame]) -> None:
        got.append(None if orders is None else orders.rows())

    instance = DagsterInstance.ephemeral()
    resources = {"files": manager(base_dir=str(WORK / str(number))), "memory": mem_io_manager}
    key = "north" if partitions else None
    print(f"{title}:")
    for name, output in (("None", None), ("a row", ORDERS), ("None", None), ("an empty frame", ORDERS.clear())):
        outputs.append(output)
        result = materialize([orders, reader], instance=instance, resources=resources, partition_key=key)
        events = [event for event in result.get_asset_materialization_events() if event.asset_key == AssetKey("orders")]
        missing = events[0].materialization.metadata.get("missing")
        print(f"  returned {name}: success {result.success}, missing {missing and missing.value}, the reader got {got[-1]}")


print(*(f"{name} {importlib.metadata.version(name)}" for name in ("dagster", "dagster-polars", "polars", "deltalake")))
show(1, "Parquet", PolarsParquetIOManager)
show(2, "Parquet, a partition", PolarsParquetIOManager, SHOPS)
show(3, "Delta", PolarsDeltaIOManager)
show(4, "Delta, a partition", PolarsDeltaIOManager, SHOPS, {"partition_by": "shop"})
show(5, "Dagster's file manager", FilesystemIOManager)
PYTHON
DAGSTER_DISABLE_TELEMETRY=1 "$PY" "$WORK/show.py" "$WORK" >"$WORK/seen" 2>"$WORK/show.log"

cat >"$WORK/expected" <<'EXPECTED'
dagster 1.13.29 dagster-polars 0.27.12 polars 1.44.2 deltalake 1.6.6
Parquet:
  returned None: success True, missing True, the reader got None
  returned a row: success True, missing None, the reader got [('north', 10)]
  returned None: success True, missing True, the reader got [('north', 10)]
  returned an empty frame: success True, missing None, the reader got []
Parquet, a partition:
  returned None: success True, missing True, the reader got None
  returned a row: success True, missing None, the reader got [('north', 10)]
  returned None: success True, missing True, the reader got [('north', 10)]
  returned an empty frame: success True, missing None, the reader got []
Delta:
  returned None: success True, missing True, the reader got None
  returned a row: success True, missing None, the reader got [('north', 10)]
  returned None: success True, missing True, the reader got [('north', 10)]
  returned an empty frame: success True, missing None, the reader got []
Delta, a partition:
  returned None: success True, missing True, the reader got None
  returned a row: success True, missing None, the reader got [('north', 10)]
  returned None: success True, missing True, the reader got [('north', 10)]
  returned an empty frame: success True, missing None, the reader got []
Dagster's file manager:
  returned None: success True, missing None, the reader got None
  returned a row: success True, missing None, the reader got [('north', 10)]
  returned None: success True, missing None, the reader got None
  returned an empty frame: success True, missing None, the reader got []
EXPECTED
what="an output of None leaves the last frame of dagster-polars for its readers"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
