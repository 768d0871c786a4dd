"""What Confluent's deserializers for Python do with the sink's frames, on which docs/formats.md leans."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

pytest.importorskip("fastavro", reason="this environment has no fastavro")

from confluent_kafka.schema_registry import Schema
from confluent_kafka.schema_registry._sync.mock_schema_registry_client import MockSchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from confluent_kafka.schema_registry.serde import SchemaId
from confluent_kafka.serialization import MessageField, SerializationContext, SerializationError
from fastavro import schemaless_writer
from google.protobuf.timestamp_pb2 import Timestamp

from exactly_once.formats.registry.schema_registry import prefix


def record(name: str, **fields: str) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": n, "type": t} for n, t in fields.items()]}


ORDER, NOTE = record("Order", order="long", customer="string"), record("Note", id="long", note="string")


@pytest.fixture
def registry() -> Any:
    return MockSchemaRegistryClient({"url": "mock://"})


def register(registry: Any, subject: str, schema: Any, kind: str) -> SchemaId:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    made = registry.register_schema_full_response(subject, Schema(text, kind))
    return SchemaId(kind, made.schema_id, str(made.guid))


def context(**headers: bytes) -> SerializationContext:
    return SerializationContext("t", MessageField.VALUE, list(headers.items()))


def framed_note(schema: SchemaId) -> bytes:
    out = io.BytesIO(prefix(schema.id, "AVRO"))
    out.seek(0, io.SEEK_END)
    schemaless_writer(out, NOTE, {"id": 42, "note": "hi"})
    return out.getvalue()


def test_a_forwarded_header_beats_the_id_before_the_payload_and_no_error_tells(registry: Any) -> None:
    """Wrong rows at readers: the sink refuses such a header beside bytes that it frames."""
    order, note = (register(registry, n, s, "AVRO") for n, s in (("o", ORDER), ("n", NOTE)))
    reader, value = AvroDeserializer(registry), framed_note(note)
    assert reader(value, context()) == {"id": 42, "note": "hi"}
    assert reader(value, context(__value_schema_id=order.guid_to_bytes())) != {"id": 42, "note": "hi"}


def test_the_protobuf_deserializer_does_not_compare_the_type_that_the_frame_names(registry: Any) -> None:
    """Wrong rows at readers: whoever names the wrong class gets a message of it, without an error."""
    value = Timestamp(seconds=7).SerializeToString()
    reader = ProtobufDeserializer(Timestamp, {"use.deprecated.format": False})
    for path in ((0,), (3,), (1, 2)):
        assert reader(prefix(9, "PROTOBUF", path) + value, context()) == Timestamp(seconds=7)


def test_the_json_deserializer_validates_values_unless_it_is_told_not_to(registry: Any) -> None:
    """Wedge of a reader: the sink does not check ranges, so such a value raises in the reader at each try."""
    schema = {"type": "object", "properties": {"qty": {"type": "integer", "minimum": 0}}}
    found = register(registry, "j", schema, "JSON")
    value = prefix(found.id, "JSON") + b'{"qty": -1}'
    with pytest.raises(SerializationError, match="minimum"):
        JSONDeserializer(None, schema_registry_client=registry)(value, context())
    lax = JSONDeserializer(None, schema_registry_client=registry, conf={"validate": False})
    assert lax(value, context()) == {"qty": -1}
