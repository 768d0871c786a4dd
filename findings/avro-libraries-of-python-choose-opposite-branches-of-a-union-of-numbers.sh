#!/usr/bin/env bash
# A union that was widened over the years holds an integer branch and a floating one. For a Python int fastavro takes the first
# branch that it fits, Apache's package the last. So 2**53 + 1 (an order id, say) loses its last digit with fastavro in
# [null, double, long] and with avro in [null, long, double]: it is written as a double, with no error, and each library keeps
# what the other loses.
# Releases: fastavro 1.13.1, avro 1.12.1. Needs: bash, Python 3. Minutes: 0.5.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check avro==1.12.1 fastavro==1.13.1
"$PY" -m pip list 2>/dev/null | grep -i avro
cat >"$WORK/unions.py" <<'PYTHON'
import io
import json

import avro.io
import avro.schema
import fastavro


def by_avro(union, value):
    out = io.BytesIO()
    avro.io.DatumWriter(avro.schema.parse(json.dumps(union))).write(value, avro.io.BinaryEncoder(out))
    return out.getvalue()


def by_fastavro(union, value):
    out = io.BytesIO()
    fastavro.schemaless_writer(out, union, value)
    return out.getvalue()


for union, value in (
    (["null", "double", "long"], 2**53 + 1),
    (["null", "long", "double"], 2**53 + 1),
    (["null", "float", "long"], 2**24 + 1),
    (["null", "int", "float"], 2**24 + 1),
):
    for write in (by_avro, by_fastavro):
        written = write(union, value)
        back = fastavro.schemaless_reader(io.BytesIO(written), union)
        kept = "kept" if back == value else f"became {back!r}"
        print(f"{value} in {'|'.join(union)} {write.__name__}: {union[written[0] // 2]}, {kept}")
PYTHON
"$PY" "$WORK/unions.py" >"$WORK/seen" 2>"$WORK/unions.log"
cat >"$WORK/expected" <<'EXPECTED'
9007199254740993 in null|double|long by_avro: long, kept
9007199254740993 in null|double|long by_fastavro: double, became 9007199254740992.0
9007199254740993 in null|long|double by_avro: double, became 9007199254740992.0
9007199254740993 in null|long|double by_fastavro: long, kept
16777217 in null|float|long by_avro: long, kept
16777217 in null|float|long by_fastavro: float, became 16777216.0
16777217 in null|int|float by_avro: float, became 16777216.0
16777217 in null|int|float by_fastavro: int, kept
EXPECTED
what="each of the two libraries loses digits of an integer that the other keeps, by the branch of the union that it takes."
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
