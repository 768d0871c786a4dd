#!/usr/bin/env bash
# A field is renamed with an alias, as the specification describes, and has a default. fastavro finds the old value under the
# alias. Apache's own Python package does not look at aliases: it returns the default for every record that was written before
# the rename, without an error. (Without a default it raises.)
# Releases: avro 1.12.1, fastavro 1.13.1. Needs: bash, Python 3. Minutes: 0.5.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check avro==1.12.1 fastavro==1.13.1
"$PY" -m pip list 2>/dev/null | grep -i avro
cat >"$WORK/renamed.py" <<'PYTHON'
import io
import json

import avro.io
import avro.schema
import fastavro

ID = {"name": "id", "type": "long"}
OLD = {"type": "record", "name": "Order", "fields": [ID, {"name": "qty", "type": "long"}]}
RENAMED = {"name": "quantity", "aliases": ["qty"], "type": "long"}


def by_avro(written, new):
    schemas = [avro.schema.parse(json.dumps(s)) for s in (OLD, new)]
    return avro.io.DatumReader(*schemas).read(avro.io.BinaryDecoder(io.BytesIO(written)))


def by_fastavro(written, new):
    return fastavro.schemaless_reader(io.BytesIO(written), OLD, new)


out = io.BytesIO()
fastavro.schemaless_writer(out, OLD, {"id": 1, "qty": 7})
for what, field in (("with a default", {**RENAMED, "default": 0}), ("without one", RENAMED)):
    for read in (by_fastavro, by_avro):
        try:
            answer = read(out.getvalue(), {**OLD, "fields": [ID, field]})
        except avro.errors.SchemaResolutionException as error:
            answer = type(error).__name__
        print(f"{what}, {read.__name__}: {answer}")
PYTHON
"$PY" "$WORK/renamed.py" >"$WORK/seen" 2>"$WORK/renamed.log"
cat >"$WORK/expected" <<'EXPECTED'
with a default, by_fastavro: {'id': 1, 'quantity': 7}
with a default, by_avro: {'id': 1, 'quantity': 0}
without one, by_fastavro: {'id': 1, 'quantity': 7}
without one, by_avro: SchemaResolutionException
EXPECTED
what="Apache's Python package gives a renamed field its default, although an alias names the old field, and fastavro the value."
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
