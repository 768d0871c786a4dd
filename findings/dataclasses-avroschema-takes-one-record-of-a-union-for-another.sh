#!/usr/bin/env bash
# Events of several kinds, as dataclasses-avroschema makes a union of their classes. Two classes have the same fields,
# as an order that is placed and one that is refunded have. In a list or a map the second is written as the first: no
# reader can tell it any more, neither fastavro below nor any other. In Avro's JSON encoding the data of a single
# event has the right name, "Refunded", and is read as the first class all the same; dataclasses lose a field that the
# first has not, where the base of pydantic keeps it. A single event in binary comes back as it was. No error.
# Releases: dataclasses-avroschema 0.71.1, fastavro 1.13.1. Needs: bash, Python 3.11 or later with pip. Minutes: 0.5.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
python3 -m venv "$WORK/venv"
PY=$WORK/venv/bin/python
"$PY" -m pip install --quiet --disable-pip-version-check 'dataclasses-avroschema[pydantic]==0.71.1' fastavro==1.13.1

cat >"$WORK/show.py" <<'PYTHON'
import dataclasses
import importlib.metadata
import io
import json
import typing

import fastavro
from dataclasses_avroschema import AvroModel
from dataclasses_avroschema.pydantic import AvroBaseModel


def models(kind, base):
    @kind
    class Placed(base):
        order: int
        amount: float

    @kind
    class Refunded(base):
        order: int
        amount: float

    @kind
    class Disputed(base):
        order: int
        amount: float
        reason: str = ""

    Event = typing.Union[Placed, Refunded, Disputed]

    @kind
    class Single(base):
        event: Event

    @kind
    class Batch(base):
        events: typing.List[Event]

    @kind
    class ByKey(base):
        events: typing.Dict[str, Event]

    given = (Placed(order=1, amount=5.0), Refunded(order=2, amount=5.0), Disputed(order=3, amount=5.0, reason="late"))
    yield from (Single(event=event) for event in given)
    yield Batch(events=list(given))
    yield ByKey(events={"x": given[1]})


def listed(held):
    return held if isinstance(held, list) else [held["x"]] if isinstance(held, dict) and "x" in held else [held]


def words(model):
    found = listed(getattr(model, "event", None) or model.events)
    return ", ".join(f"{type(event).__name__} {event.order} {getattr(event, 'reason', '')}".strip() for event in found)


def named(value):
    """The branches of the union as the data names them, for another reader."""
    found = listed(value.get("event") or value["events"])
    pairs = [next(iter(event.items())) if isinstance(event, dict) else event for event in found]
    return ", ".join(f"{name} {fields['order']} {fields.get('reason', '')}".strip() for name, fields in pairs)


print(*(f"{name} {importlib.metadata.version(name)}" for name in ("dataclasses-avroschema", "fastavro")))
for kind, base in ((dataclasses.dataclass, AvroModel), (lambda model: model, AvroBaseModel)):
    print(f"{base.__name__}:")
    for model in models(kind, base):
        print(f"  {type(model).__name__} of {words(model)}")
        data, text = model.serialize(), model.serialize(serialization_type="avro-json")
        schema = fastavro.parse_schema(type(model).avro_schema_to_python())
        other = fastavro.schemaless_reader(io.BytesIO(data), schema, None, return_record_name=True)
        print(f"    binary, data: {named(other)}; read: {words(type(model).deserialize(data))}")
        back = type(model).deserialize(text, serialization_type="avro-json")
        print(f"    JSON, data: {named(json.loads(text))}; read: {words(back)}")
PYTHON
"$PY" "$WORK/show.py" >"$WORK/seen" 2>"$WORK/show.log"

cat >"$WORK/expected" <<'EXPECTED'
dataclasses-avroschema 0.71.1 fastavro 1.13.1
AvroModel:
  Single of Placed 1
    binary, data: Placed 1; read: Placed 1
    JSON, data: Placed 1; read: Placed 1
  Single of Refunded 2
    binary, data: Refunded 2; read: Refunded 2
    JSON, data: Refunded 2; read: Placed 2
  Single of Disputed 3 late
    binary, data: Disputed 3 late; read: Disputed 3 late
    JSON, data: Disputed 3 late; read: Placed 3
  Batch of Placed 1, Refunded 2, Disputed 3 late
    binary, data: Placed 1, Placed 2, Disputed 3 late; read: Placed 1, Placed 2, Disputed 3 late
    JSON, data: Placed 1, Placed 2, Disputed 3 late; read: Placed 1, Placed 2, Placed 3
  ByKey of Refunded 2
    binary, data: Placed 2; read: Placed 2
    JSON, data: Placed 2; read: Placed 2
AvroBaseModel:
  Single of Placed 1
    binary, data: Placed 1; read: Placed 1
    JSON, data: Placed 1; read: Placed 1
  Single of Refunded 2
    binary, data: Refunded 2; read: Refunded 2
    JSON, data: Refunded 2; read: Placed 2
  Single of Disputed 3 late
    binary, data: Disputed 3 late; read: Disputed 3 late
    JSON, data: Disputed 3 late; read: Disputed 3 late
  Batch of Placed 1, Refunded 2, Disputed 3 late
    binary, data: Placed 1, Placed 2, Disputed 3 late; read: Placed 1, Placed 2, Disputed 3 late
    JSON, data: Placed 1, Placed 2, Disputed 3 late; read: Placed 1, Placed 2, Disputed 3 late
  ByKey of Refunded 2
    binary, data: Placed 2; read: Placed 2
    JSON, data: Placed 2; read: Placed 2
EXPECTED
what="dataclasses-avroschema takes one record of a union for another one of the same fields"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
