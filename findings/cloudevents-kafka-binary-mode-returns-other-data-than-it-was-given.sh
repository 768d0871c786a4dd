#!/usr/bin/env bash
# The CloudEvents SDK for Python, Kafka binding: data and attributes go to a record and come back from it. In binary mode False
# under application/json is written as Python's word False, which is no JSON, and comes back as a text, which is true; "7"
# comes back as the number 7. Bytes, as an Avro or Protobuf serializer makes them, come back as a str whenever they happen to be
# UTF-8, and as bytes else, in spite of their content type. An extension that is True goes out as "True", where CloudEvents
# says "true", and comes back as a text. No error anywhere; in structured mode each value comes back as it was.
# Release: cloudevents 2.2.0. Needs: bash, Python 3.11 or later with pip. Minutes: 0.5.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check cloudevents==2.2.0

cat >"$WORK/show.py" <<'PYTHON'
import importlib.metadata
import struct

from cloudevents.core.bindings.kafka import from_kafka_event, to_binary_event, to_structured_event
from cloudevents.core.v1.event import CloudEvent

BASE = {"id": "1", "source": "/orders", "type": "order", "specversion": "1.0"}
JSON, AVRO = "application/json", "application/avro"
CASES = [
    (JSON, {"paid": False}), (JSON, False), (JSON, True), (JSON, "7"), (JSON, "true"), (JSON, "paid"), (JSON, ""),
    (AVRO, struct.pack(">q", 127)), (AVRO, struct.pack(">q", 128)), (AVRO, b""),
]

print("cloudevents", importlib.metadata.version("cloudevents"))
for kind, data in CASES:
    event = CloudEvent({**BASE, "datacontenttype": kind}, data)
    record = to_binary_event(event)
    binary, structured = (from_kafka_event(message).get_data() for message in (record, to_structured_event(event)))
    same = "the same" if structured == data and type(structured) is type(data) else repr(structured)
    print(f"{kind} {data!r}: binary has {record.value!r} and returns {binary!r}, structured returns {same}")
event = CloudEvent({**BASE, "express": True, "rank": 5, "datacontenttype": JSON}, {})
record = to_binary_event(event)
print("extensions True, 5: the headers are", record.headers["ce_express"], record.headers["ce_rank"])
for message in (record, to_structured_event(event)):
    attributes = from_kafka_event(message).get_attributes()
    print(f"  returned: {attributes['express']!r}, {attributes['rank']!r}")
PYTHON
"$PY" "$WORK/show.py" >"$WORK/seen" 2>"$WORK/show.log"

cat >"$WORK/expected" <<'EXPECTED'
cloudevents 2.2.0
application/json {'paid': False}: binary has b'{"paid": false}' and returns {'paid': False}, structured returns the same
application/json False: binary has b'False' and returns 'False', structured returns the same
application/json True: binary has b'True' and returns 'True', structured returns the same
application/json '7': binary has b'7' and returns 7, structured returns the same
application/json 'true': binary has b'true' and returns True, structured returns the same
application/json 'paid': binary has b'paid' and returns 'paid', structured returns the same
application/json '': binary has b'' and returns None, structured returns the same
application/avro b'\x00\x00\x00\x00\x00\x00\x00\x7f': binary has b'\x00\x00\x00\x00\x00\x00\x00\x7f' and returns '\x00\x00\x00\x00\x00\x00\x00\x7f', structured returns the same
application/avro b'\x00\x00\x00\x00\x00\x00\x00\x80': binary has b'\x00\x00\x00\x00\x00\x00\x00\x80' and returns b'\x00\x00\x00\x00\x00\x00\x00\x80', structured returns the same
application/avro b'': binary has b'' and returns None, structured returns the same
extensions True, 5: the headers are b'True' b'5'
  returned: 'True', '5'
  returned: True, 5
EXPECTED
what="the Kafka binding of the CloudEvents SDK returns other data in binary mode than it was given"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
