#!/usr/bin/env bash
# Apache Paimon's package for Python takes a commit_identifier in its stream writer, as Java's does, where user and identifier
# tell after a crash what is committed. The Python package stores both in the snapshot and compares them with no later commit:
# an identifier that is committed is committed again, so is a smaller one, and the very messages whose files the table
# has make it list these files a second time. It has no counterpart of Java's filterAndCommit, and a writer that starts anew
# gets another user.
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
from collections import Counter

import pyarrow as pa
from pypaimon import CatalogFactory, Schema

SCHEMA = pa.schema([("id", pa.int64())])
catalog = CatalogFactory.create({"warehouse": sys.argv[1] + "/warehouse"})
catalog.create_database("d", True)
catalog.create_table("d.t", Schema.from_pyarrow_schema(SCHEMA), False)
table = catalog.get_table("d.t")


def prepare(builder, identifier, number):
    write = builder.new_write()
    write.write_arrow(pa.table({"id": [number]}, schema=SCHEMA))
    messages = write.prepare_commit(identifier)
    write.close()
    return messages


def state(what):
    builder = table.new_read_builder()
    splits = builder.new_scan().plan().splits()
    ids = sorted(builder.new_read().to_arrow(splits)["id"].to_pylist())
    files = Counter(file.file_name for split in splits for file in split.files)
    snapshot = table.snapshot_manager().get_latest_snapshot()
    print(f"{what}: snapshot {snapshot.id} of identifier {snapshot.commit_identifier}, rows {ids}")
    print(f"  the table lists one file up to {max(files.values())} times")
    return snapshot.commit_user


print("pypaimon", importlib.metadata.version("pypaimon"))
stream = table.new_stream_write_builder()
commit = stream.new_commit()
commit.commit(prepare(stream, 1, 100), 1)
messages = prepare(stream, 2, 200)
commit.commit(messages, 2)
user = state("identifiers 1 and 2")
commit.commit(prepare(stream, 2, 200), 2)
state("2 again, the row written again")
commit.commit(messages, 2)
state("2 again, the same messages")
commit.commit(prepare(stream, 1, 100), 1)
print("the user is the same:", state("1 again") == user)
print("methods that filter:", [name for name in dir(commit) if "filter" in name])
other = table.new_stream_write_builder()
other.new_commit().commit(messages, 2)
print("the user is the same:", state("2 by a new writer") == user)
PYTHON
"$PY" "$WORK/show.py" "$WORK" >"$WORK/seen" 2>"$WORK/show.log"

cat >"$WORK/expected" <<'EXPECTED'
pypaimon 2.1.0
identifiers 1 and 2: snapshot 2 of identifier 2, rows [100, 200]
  the table lists one file up to 1 times
2 again, the row written again: snapshot 3 of identifier 2, rows [100, 200, 200]
  the table lists one file up to 1 times
2 again, the same messages: snapshot 4 of identifier 2, rows [100, 200, 200, 200]
  the table lists one file up to 2 times
1 again: snapshot 5 of identifier 1, rows [100, 100, 200, 200, 200]
  the table lists one file up to 2 times
the user is the same: True
methods that filter: []
2 by a new writer: snapshot 6 of identifier 2, rows [100, 100, 200, 200, 200, 200]
  the table lists one file up to 3 times
the user is the same: False
EXPECTED
what="pypaimon's stream commit adds the rows of an identifier that is committed a second time"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
