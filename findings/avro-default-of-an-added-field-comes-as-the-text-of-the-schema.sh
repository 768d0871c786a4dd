#!/usr/bin/env bash
# A reader's schema adds fields with defaults, which is the compatible change that every registry accepts. For records written
# before the change fastavro returns the default as it stands in the JSON of the schema: "\u0000" (a str) for a decimal, 0 for a
# timestamp, a str for bytes, {} for a record whose own fields have defaults; confluent-kafka's AvroDeserializer, too. Records
# written after it give Decimal, datetime, bytes and whole records. Apache's package encodes bytes as UTF-8, where the
# specification says one byte a character.
# Releases: fastavro 1.13.1, avro 1.12.1, confluent-kafka 2.16.1. Needs: bash, Python 3. Minutes: 0.5.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check 'confluent-kafka[avro,schemaregistry]==2.16.1' fastavro==1.13.1 avro==1.12.1
"$PY" -m pip list 2>/dev/null | grep -i -E 'avro|kafka'
cat >"$WORK/defaults.py" <<'PYTHON'
import io
import json
from datetime import datetime, timezone
from decimal import Decimal

import avro.io
import avro.schema
import fastavro
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

OLD = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
TIME = {"type": "long", "logicalType": "timestamp-micros"}
NOTE = {"type": "record", "name": "Note", "fields": [{"name": "stars", "type": "int", "default": 5}]}
NEW = {
    **OLD,
    "fields": OLD["fields"]
    + [
        {"name": "price", "type": MONEY, "default": "\u0000"},
        {"name": "paid", "type": TIME, "default": 0},
        {"name": "mark", "type": "bytes", "default": "\u00ff"},
        {"name": "note", "type": NOTE, "default": {}},
    ],
}
FULL = {
    "id": 2, "price": Decimal("1.50"), "paid": datetime(2026, 1, 1, tzinfo=timezone.utc), "mark": b"\xff", "note": {"stars": 4}
}


def write(schema, value):
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, value)
    return out.getvalue()


def by_fastavro(written, schema):
    return fastavro.schemaless_reader(io.BytesIO(written), schema, NEW)


def by_avro(written, schema):
    schemas = [avro.schema.parse(json.dumps(s)) for s in (schema, NEW)]
    return avro.io.DatumReader(*schemas).read(avro.io.BinaryDecoder(io.BytesIO(written)))


def by_confluent(written, schema):
    client = SchemaRegistryClient.new_client({"url": "mock://defaults"})
    context = SerializationContext("orders", MessageField.VALUE)
    value = {"id": 1} if schema is OLD else FULL
    framed = AvroSerializer(client, json.dumps(schema))(value, context)
    return AvroDeserializer(client, json.dumps(NEW))(framed, context)


for read in (by_fastavro, by_confluent, by_avro):
    for when, schema, value in (("before", OLD, {"id": 1}), ("after", NEW, FULL)):
        row = read(write(schema, value), schema)
        shown = {name: row[name] if name in ("mark", "note") else type(row[name]).__name__ for name in row if name != "id"}
        print(f"{read.__name__}, written {when}: {shown}")
PYTHON
"$PY" "$WORK/defaults.py" >"$WORK/seen" 2>"$WORK/defaults.log"
cat >"$WORK/expected" <<'EXPECTED'
by_fastavro, written before: {'price': 'str', 'paid': 'int', 'mark': 'ÿ', 'note': {}}
by_fastavro, written after: {'price': 'Decimal', 'paid': 'datetime', 'mark': b'\xff', 'note': {'stars': 4}}
by_confluent, written before: {'price': 'str', 'paid': 'int', 'mark': 'ÿ', 'note': {}}
by_confluent, written after: {'price': 'Decimal', 'paid': 'datetime', 'mark': b'\xff', 'note': {'stars': 4}}
by_avro, written before: {'price': 'bytes', 'paid': 'int', 'mark': b'\xc3\xbf', 'note': {'stars': 5}}
by_avro, written after: {'price': 'Decimal', 'paid': 'datetime', 'mark': b'\xff', 'note': {'stars': 4}}
EXPECTED
what="for a record that was written before a field was added, Python's Avro readers return a default of another type than the field's."
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
