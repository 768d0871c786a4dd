#!/usr/bin/env bash
# Apache Paimon's package for Python writes a table with merge-engine=first-row (the one that drops repeated events) or with
# deletion-vectors.enabled: the commit succeeds, the snapshot counts the records, their files lie in the table, and every read
# of the package returns no row. The same rows in a table with another merge engine come back at once.
# Release: pypaimon 2.1.0. Needs: bash, Python 3.11 or later with pip. Minutes: 0.5.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check pypaimon==2.1.0 pyarrow==19.0.1 pandas==2.3.3

cat >"$WORK/show.py" <<'PYTHON'
import importlib.metadata
import sys

import pyarrow as pa
from pypaimon import CatalogFactory, Schema

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("word", pa.string())])
catalog = CatalogFactory.create({"warehouse": sys.argv[1] + "/warehouse"})
catalog.create_database("d", True)


def rows(*pairs):
    return pa.Table.from_pylist([{"id": number, "word": word} for number, word in pairs], schema=SCHEMA)


def append(table, data):
    builder = table.new_batch_write_builder()
    write, commit = builder.new_write(), builder.new_commit()
    write.write_arrow(data)
    commit.commit(write.prepare_commit())
    write.close()
    commit.close()


def read(table, **filters):
    builder = table.new_read_builder()
    for name, value in filters.items():
        builder = builder.with_filter(builder.new_predicate_builder().equal(name, value))
    found = builder.new_read().to_arrow(builder.new_scan().plan().splits())
    return sorted((row["id"], row["word"]) for row in found.to_pylist())


print("pypaimon", importlib.metadata.version("pypaimon"))
for name, options in {
    "deduplicate": {},
    "partial-update": {"merge-engine": "partial-update"},
    "first-row": {"merge-engine": "first-row"},
    "deletion vectors": {"deletion-vectors.enabled": "true"},
}.items():
    table_name = "d." + name.replace(" ", "_").replace("-", "_")
    schema = Schema.from_pyarrow_schema(SCHEMA, primary_keys=["id"], options={"bucket": "1", **options})
    catalog.create_table(table_name, schema, False)
    table = catalog.get_table(table_name)
    append(table, rows((1, "first"), (2, "two")))
    append(table, rows((1, "again"), (3, "three")))
    table = catalog.get_table(table_name)
    snapshot = table.snapshot_manager().get_latest_snapshot()
    print(f"{name}: snapshot {snapshot.id} counts {snapshot.total_record_count} records")
    print(f"  read: {read(table)}; with id = 3: {read(table, id=3)}")
PYTHON
"$PY" "$WORK/show.py" "$WORK" >"$WORK/seen" 2>"$WORK/show.log"

cat >"$WORK/expected" <<'EXPECTED'
pypaimon 2.1.0
deduplicate: snapshot 2 counts 4 records
  read: [(1, 'again'), (2, 'two'), (3, 'three')]; with id = 3: [(3, 'three')]
partial-update: snapshot 2 counts 4 records
  read: [(1, 'again'), (2, 'two'), (3, 'three')]; with id = 3: [(3, 'three')]
first-row: snapshot 2 counts 4 records
  read: []; with id = 3: []
deletion vectors: snapshot 2 counts 4 records
  read: []; with id = 3: []
EXPECTED
what="pypaimon commits rows to a first-row table and to one with deletion vectors, and reads none of them"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
