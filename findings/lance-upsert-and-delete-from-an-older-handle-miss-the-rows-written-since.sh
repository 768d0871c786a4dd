#!/usr/bin/env bash
# A handle on a dataset of Lance keeps the version that it was opened at, and what it writes is committed behind the
# newest one. merge_insert on a handle from before another writer's rows does not see their keys: it inserts a key
# that is there, and the table has it twice, for each later upsert as well. update and delete leave the rows that
# match and were appended since. All return as usual; deltalake refuses the same upsert. Where the schema names an
# unenforced primary key, merge_insert looks again, and the other two do not.
# Releases: pylance 14.0.2, deltalake 1.6.6, pyarrow 26.0.1. Needs: bash, Python 3.11 or later with pip. Minutes: 0.5.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check pylance==14.0.2 deltalake==1.6.6 pyarrow==26.0.1

cat >"$WORK/show.py" <<'PYTHON'
import importlib.metadata
import os
import sys

import deltalake
import lance
import pyarrow as pa


def schema(key=None):
    return pa.schema([pa.field("id", pa.int64(), nullable=False, metadata=key), ("word", pa.string())])


def rows(*pairs, key=None):
    return pa.Table.from_pylist([{"id": number, "word": word} for number, word in pairs], schema=schema(key))


def show(words, table):
    print(f"  {words}:", sorted((row["id"], row["word"]) for row in table.to_pylist()))


def upsert(handle, *pairs, key=None):
    merge = handle.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    return merge.execute(rows(*pairs, key=key))


def upsert_delta(handle, *pairs):
    merge = handle.merge(rows(*pairs), "old.id = new.id", source_alias="new", target_alias="old")
    return merge.when_matched_update_all().when_not_matched_insert_all().execute()


print(*(f"{name} {importlib.metadata.version(name)}" for name in ("pylance", "deltalake")))
for name, key in {"lance": None, "lance with a primary key": {"lance-schema:unenforced-primary-key": "true"}}.items():
    path = f"{sys.argv[1]}/{name}"
    lance.write_dataset(rows((1, "one"), key=key), path)
    older, other = lance.dataset(path), lance.dataset(path)
    upsert(other, (2, "two"), key=key)
    print(f"{name}: a handle of version 1, and another writer has inserted 2")
    print("  upsert of 2:", upsert(older, (2, "again"), key=key))
    show("the table", lance.dataset(path).to_table())
    upsert(lance.dataset(path), (2, "new"), key=key)
    show("after an upsert of 2 by a new handle", lance.dataset(path).to_table())
    updater, deleter = lance.dataset(path), lance.dataset(path)
    lance.write_dataset(rows((3, "three"), key=key), path, mode="append")
    print("  two handles, and another writer has appended 3")
    print("  update of 3:", updater.update({"word": "'changed'"}, where="id = 3"))
    print("  delete of 3:", deleter.delete("id = 3"))
    show("the table", lance.dataset(path).to_table())

path = f"{sys.argv[1]}/delta"
deltalake.write_deltalake(path, rows((1, "one")))
older, other = deltalake.DeltaTable(path), deltalake.DeltaTable(path)
upsert_delta(other, (2, "two"))
print("deltalake: a handle of version 0, and another writer has inserted 2")
try:
    print("  upsert of 2:", upsert_delta(older, (2, "again")))
except deltalake.exceptions.CommitFailedError as error:
    print("  upsert of 2:", type(error).__name__)
show("the table", deltalake.DeltaTable(path).to_pyarrow_table())
sys.stdout.flush()
os._exit(0)  # without waiting for the threads of the library
PYTHON
"$PY" "$WORK/show.py" "$WORK" >"$WORK/seen" 2>"$WORK/show.log"

cat >"$WORK/expected" <<'EXPECTED'
pylance 14.0.2 deltalake 1.6.6
lance: a handle of version 1, and another writer has inserted 2
  upsert of 2: {'num_inserted_rows': 1, 'num_updated_rows': 0, 'num_deleted_rows': 0}
  the table: [(1, 'one'), (2, 'again'), (2, 'two')]
  after an upsert of 2 by a new handle: [(1, 'one'), (2, 'new'), (2, 'new')]
  two handles, and another writer has appended 3
  update of 3: {'num_rows_updated': 0}
  delete of 3: {'num_deleted_rows': 0}
  the table: [(1, 'one'), (2, 'new'), (2, 'new'), (3, 'three')]
lance with a primary key: a handle of version 1, and another writer has inserted 2
  upsert of 2: {'num_inserted_rows': 0, 'num_updated_rows': 1, 'num_deleted_rows': 0}
  the table: [(1, 'one'), (2, 'again')]
  after an upsert of 2 by a new handle: [(1, 'one'), (2, 'new')]
  two handles, and another writer has appended 3
  update of 3: {'num_rows_updated': 0}
  delete of 3: {'num_deleted_rows': 0}
  the table: [(1, 'one'), (2, 'new'), (3, 'three')]
deltalake: a handle of version 0, and another writer has inserted 2
  upsert of 2: CommitFailedError
  the table: [(1, 'one'), (2, 'two')]
EXPECTED
what="Lance's upsert and delete from an older handle miss the rows written since"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
