"""A table beside the topic, declared in one line: its asset, its rows, on a real broker and a real Spark."""

from __future__ import annotations

import time

import dagster as dg
import pyarrow as pa
import pytest

pytest.importorskip("deltalake", reason="needs the extra delta")

from deltalake import DeltaTable, Schema, write_deltalake

from testkit import oracle
from testkit.lake import ORDERS, PAID
from testkit.processes import kill_session, until

pytestmark = pytest.mark.long  # three starts of Spark

COLUMNS = pa.schema([("key", pa.binary()), ("value", pa.binary())])


def run(site, *orders):
    """Run the stream over so many more orders, in a process of its own, which ends when it has caught up."""
    send(site, *orders)
    succeeded, said = site.finished("testkit.lake")
    assert succeeded, said[-5000:]


def send(site, *orders):
    site.kafka.create_topics({ORDERS: 2})
    site.send(ORDERS, *(f"order{n}" for n in orders))


def newest(site, key, name, since=0.0):
    """The newest value of a number on an asset, of its materializations and observations after a time."""
    with dg.DagsterInstance.from_config(str(site.home)) as instance:
        asset = dg.AssetKey(key)
        events = [
            *instance.fetch_materializations(asset, limit=20).records,
            *instance.fetch_observations(asset, limit=20).records,
        ]
        found = [
            (record.timestamp, happened.metadata[name].value)
            for record in events
            for happened in [record.asset_materialization or record.asset_observation]
            if name in happened.metadata and record.timestamp > since
        ]
    return max(found)[1] if found else None


def columns_of_the_table(site, since=0.0):
    """The names of its columns, and what they are made from, as the run has said it."""
    said = (newest(site, ["lake", "orders"], f"dagster/column_{name}", since) for name in ("schema", "lineage"))
    schema, lineage = said
    return schema and [column.name for column in schema.columns], lineage and lineage.deps_by_column


def test_a_table_beside_the_topic_is_an_asset_with_its_rows(site):
    """Guards against a table that nobody sees in the UI, against rows that are those of the topic, not its own, and
    against columns that the topic's materialization does not show.
    """
    lake = str(site.folder / "lake")
    DeltaTable.create(lake, Schema.from_arrow(COLUMNS))
    write_deltalake(lake, pa.table([[b"k"], [b"somebody else's"]], schema=COLUMNS), mode="append")
    run(site, *range(50))
    assert newest(site, ["lake", "orders"], "dagster/row_count") == 51
    assert newest(site, ["lake", "orders"], "records_committed") == 50
    assert newest(site, [PAID], "dagster/row_count") == 50
    assert [column.name for column in newest(site, [PAID], "dagster/column_schema").columns] == ["order"]
    made_from = dg.TableColumnDep(dg.AssetKey([ORDERS]), "order")
    assert newest(site, [PAID], "dagster/column_lineage").deps_by_column == {"order": [made_from]}
    assert columns_of_the_table(site) == (["key", "value"], {"value": [made_from]})

    run(site, *range(50, 70))
    assert newest(site, ["lake", "orders"], "dagster/row_count") == 71
    rows = DeltaTable(lake).to_pyarrow_table().to_pylist()
    wanted = sorted(f"order{n}" for n in range(70))
    assert sorted(row["value"].decode() for row in rows if row["key"] != b"k") == wanted
    assert sorted(m.value for m in oracle.read(site.connection, [PAID])) == wanted


def test_a_run_that_does_not_end_says_once_which_columns_its_outputs_have(site):
    """Guards against columns and lineage that nobody sees, since only a run that has caught up materializes."""
    lake, began = str(site.folder / "lake"), time.time()
    DeltaTable.create(lake, Schema.from_arrow(COLUMNS), mode="ignore")
    send(site, *range(5))
    log = site.folder / "stream.log"
    run = site.launch("testkit.lake", "until_stopped", log=log)
    try:
        for key in (["lake", "orders"], [PAID]):
            until("a report", lambda key=key: newest(site, key, "dagster/row_count", began), 200, every_s=0.5)
        made_from = dg.TableColumnDep(dg.AssetKey([ORDERS]), "order")
        assert newest(site, [PAID], "dagster/column_lineage", began).deps_by_column == {"order": [made_from]}
        assert columns_of_the_table(site, began) == (["key", "value"], {"value": [made_from]})
        assert run.poll() is None, log.read_text()[-5000:]
    finally:
        kill_session(run.pid)
