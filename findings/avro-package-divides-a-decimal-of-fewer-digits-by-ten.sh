#!/usr/bin/env bash
# Under the schema decimal(9, 2), the price 1.50 is given as Decimal("1.5"): the same number, as arithmetic and databases give it.
# Apache's own Python package writes the unscaled digits 15 with no regard to their exponent: every reader gets 0.15, without an
# error. fastavro (which confluent-kafka's serializer uses) writes 1.50. A decimal without a fraction becomes a hundredth.
# Releases: avro 1.12.1, fastavro 1.13.1. Needs: bash, Python 3. Minutes: 0.5.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check avro==1.12.1 fastavro==1.13.1
"$PY" -m pip list 2>/dev/null | grep -i avro
cat >"$WORK/prices.py" <<'PYTHON'
import io
import json
from decimal import Decimal

import avro.io
import avro.schema
import fastavro

SCHEMA = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}


def by_avro(value):
    out = io.BytesIO()
    avro.io.DatumWriter(avro.schema.parse(json.dumps(SCHEMA))).write(value, avro.io.BinaryEncoder(out))
    return out.getvalue()


def by_fastavro(value):
    out = io.BytesIO()
    fastavro.schemaless_writer(out, SCHEMA, value)
    return out.getvalue()


def read_by_avro(written):
    return avro.io.DatumReader(avro.schema.parse(json.dumps(SCHEMA))).read(avro.io.BinaryDecoder(io.BytesIO(written)))


def read_by_fastavro(written):
    return fastavro.schemaless_reader(io.BytesIO(written), SCHEMA)


for text in ("1.50", "1.5", "2", "3E+1"):
    for write in (by_avro, by_fastavro):
        try:
            written = write(Decimal(text))
        except Exception as error:
            print(f"{text} {write.__name__}: {type(error).__name__}")
            continue
        assert read_by_avro(written) == read_by_fastavro(written), "the two readers agree"
        print(f"{text} {write.__name__}: {read_by_fastavro(written)}")
PYTHON
"$PY" "$WORK/prices.py" >"$WORK/seen" 2>"$WORK/prices.log"
cat >"$WORK/expected" <<'EXPECTED'
1.50 by_avro: 1.50
1.50 by_fastavro: 1.50
1.5 by_avro: 0.15
1.5 by_fastavro: 1.50
2 by_avro: 0.02
2 by_fastavro: 2.00
3E+1 by_avro: 0.03
3E+1 by_fastavro: 30.00
EXPECTED
what="Apache's Python package writes a decimal of fewer digits than the scale as a smaller number, without an error."
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
