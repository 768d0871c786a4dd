#!/usr/bin/env bash
# A topic with records of several Protobuf messages of one file, as confluent-kafka's own ProtobufSerializer writes them: each
# record carries the id of its schema and the index of its message in it. ProtobufDeserializer reads both, and parses the record
# as the message that it was made for, whichever it is: a Refund comes as an Order, a Transfer's sint64 of 20 as an int64 of 40, a
# Note's text as an order's id, and what the other message has beside that is unknown fields. There is no error, with a client of
# the registry, which knows the message that was written, and without.
# Release: confluent-kafka 2.16.1 with its mock registry. Needs: bash, Python 3.11 or later with pip. Minutes: 0.5.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check 'confluent-kafka[protobuf,schemaregistry]==2.16.1'

cat >"$WORK/show.py" <<'PYTHON'
import importlib.metadata

from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

# shop.proto: each message with its fields, numbered from 1.
MESSAGES = {
    "Order": {"id": "STRING", "amount": "INT64"},
    "Refund": {"id": "STRING", "amount": "INT64"},
    "Transfer": {"id": "STRING", "amount": "SINT64", "account": "STRING"},
    "Note": {"text": "STRING"},
}
VALUES = {
    "Order": {"id": "o-1", "amount": 20}, "Refund": {"id": "r-1", "amount": 20},
    "Transfer": {"id": "t-1", "amount": 20, "account": "a-1"}, "Note": {"text": "call back"},
}
file = FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
for name, fields in MESSAGES.items():
    message = file.message_type.add(name=name)
    for number, (field, kind) in enumerate(fields.items(), 1):
        message.field.add(name=field, number=number, type=getattr(FieldDescriptorProto, f"TYPE_{kind}"), label=1)
pool = DescriptorPool()
pool.Add(file)
classes = {name: GetMessageClass(pool.FindMessageTypeByName(f"shop.{name}")) for name in MESSAGES}

print("confluent-kafka", importlib.metadata.version("confluent-kafka"))
registry = SchemaRegistryClient.new_client({"url": "mock://"})
settings = {"use.deprecated.format": False}
place = SerializationContext("shop", MessageField.VALUE)
readers = {
    "with the registry": ProtobufDeserializer(classes["Order"], settings, registry),
    "without": ProtobufDeserializer(classes["Order"], settings),
}
for name, fields in VALUES.items():
    record = ProtobufSerializer(classes[name], registry, settings)(classes[name](**fields), place)
    print(f"{name} {fields}, written with the index {record[5:-len(classes[name](**fields).SerializeToString())].hex()}")
    for words, reader in readers.items():
        found = reader(record, place)
        print(f"  read {words}: {type(found).__name__}", {field.name: value for field, value in found.ListFields()})
PYTHON
"$PY" "$WORK/show.py" >"$WORK/seen" 2>"$WORK/show.log"

cat >"$WORK/expected" <<'EXPECTED'
confluent-kafka 2.16.1
Order {'id': 'o-1', 'amount': 20}, written with the index 00
  read with the registry: Order {'id': 'o-1', 'amount': 20}
  read without: Order {'id': 'o-1', 'amount': 20}
Refund {'id': 'r-1', 'amount': 20}, written with the index 0202
  read with the registry: Order {'id': 'r-1', 'amount': 20}
  read without: Order {'id': 'r-1', 'amount': 20}
Transfer {'id': 't-1', 'amount': 20, 'account': 'a-1'}, written with the index 0204
  read with the registry: Order {'id': 't-1', 'amount': 40}
  read without: Order {'id': 't-1', 'amount': 40}
Note {'text': 'call back'}, written with the index 0206
  read with the registry: Order {'id': 'call back'}
  read without: Order {'id': 'call back'}
EXPECTED
what="confluent-kafka's ProtobufDeserializer returns a record of another message as its own"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
