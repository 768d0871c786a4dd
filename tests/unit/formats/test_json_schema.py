"""JSON Schema: what is derived, what is refused, and that what a plan writes is valid by the schema."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import jsonschema
import pytest

from exactly_once.errors import InvalidSchema
from exactly_once.formats import derive, full_name, plan
from tests.unit.formats.interpreter import Refused, encode
from tests.unit.formats.samples import EVERY, EVERY_ROW, array, map_of, optional, struct

DRAFT_07 = "http://json-schema.org/draft-07/schema#"


def read(schema: Any, type: Any, value: Any) -> Any:
    """What json reads from a value that the plan wrote, once the schema has found it valid."""
    written = encode("JSON", plan("JSON", type, json.dumps(schema), "value"), value)
    found = json.loads(written, parse_float=Decimal)
    jsonschema.validate(json.loads(written), schema)
    return found


def closed(*required: str, **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def refused(schema: Any, type: Any) -> str:
    with pytest.raises(InvalidSchema) as caught:
        plan("JSON", type, schema if isinstance(schema, str) else json.dumps(schema), "value")
    return str(caught.value)


# -- derive -----------------------------------------------------------------------------------------------------------


def test_every_type_is_derived_and_comes_back() -> None:
    """Guards against a column that changes on its way to a reader, by the schema that nobody wrote by hand."""
    schema = json.loads(derive("JSON", EVERY, "shop.Order"))
    jsonschema.Draft7Validator.check_schema(schema)
    assert read(schema, EVERY, EVERY_ROW) == {
        "boolean": True,
        "byte": -128,
        "short": 300,
        "integer": -(2**31),
        "long": -(2**63),
        "float": Decimal("1.5"),
        "double": Decimal("-0.1"),
        "string": "zwölf",
        "binary": "AP8=",
        "timestamp": "1969-12-31T23:59:59.999999Z",
        "text": "abc",
        "inner": {"x": 7, "deep": {"y": "a"}},
        "list": [{"x": 1}, {}],
        "map": {"a": 1, "b": -1},
        "date": "1969-12-31",
        "timestamp_ntz": "2026-01-31T12:00:00.000001",
        "decimal": Decimal("-123456789012345678901234567890.12345678"),
        "lists": [[1], []],
    }


def test_derived_objects_are_closed_and_what_is_nullable_is_optional() -> None:
    """Guards against a schema that the registry never lets grow."""
    text = derive("JSON", optional(struct(a="long", b=array("string", True)), "a"), "shop.Order")
    assert json.loads(text) == {
        "$schema": DRAFT_07,
        "title": "shop.Order",
        "type": "object",
        "properties": {
            "a": {"type": ["integer", "null"]},
            "b": {"type": "array", "items": {"type": ["string", "null"]}},
        },
        "required": ["b"],
        "additionalProperties": False,
    }
    assert full_name("JSON", text) == "shop.Order"


@pytest.mark.parametrize(
    ("type", "said"),
    [
        (struct(a=map_of("long", "long")), "the keys of Order.a are of type long"),
        (struct(a=map_of("string", "variant")), "Order.a.value is of type variant"),
    ],
)
def test_what_json_does_not_have_is_refused_with_its_path(type: Any, said: str) -> None:
    """Guards against a key that comes back as a string."""
    with pytest.raises(InvalidSchema, match="What to do: ") as caught:
        derive("JSON", type, "shop.Order")
    assert said in str(caught.value)


# -- plan -------------------------------------------------------------------------------------------------------------

REFS = {
    "title": "Order",
    "$ref": "#/$defs/order",
    "$defs": {
        "order": closed("a", a={"$ref": "#/definitions/x~1y"}, next={"anyOf": [{"$ref": "#"}, {"type": "null"}]}),
    },
    "definitions": {"x/y": {"type": "integer"}},
}


@pytest.mark.parametrize(
    ("schema", "type", "value", "expected"),
    [
        (True, struct(a="long"), (1,), {"a": 1}),
        ({"properties": {"a": {"minimum": 1}}}, struct(a="long", b="string"), (1, "x"), {"a": 1, "b": "x"}),
        ({"type": "object"}, map_of("string", "boolean", True), {"ü": None, "b": True}, {"ü": None, "b": True}),
        (closed(a={"type": "number"}), struct(a="long"), (1,), {"a": 1}),
        ({"type": "integer"}, "decimal(38,0)", Decimal(10) ** 37, 10**37),
        ({"type": "number"}, "decimal(9,8)", Decimal("1E-8"), Decimal("1E-8")),
        ({"$schema": DRAFT_07, "items": [{"type": "string"}]}, array("string", True), ["x", None], ["x", None]),
        (closed("a", a={"type": ["null", "string"]}), struct(a="string"), (None,), {"a": None}),
        (closed(a={"oneOf": [{"type": "null"}, {"type": "integer"}]}), struct(a="long"), (None,), {}),
        ({"oneOf": [{"type": "string"}, closed("a", a={})]}, struct(a="long"), (1,), {"a": 1}),
        (
            {"type": "object", "properties": {"a": {}, "b": {}}, "anyOf": [{"required": ["b"]}, {"required": ["a"]}]},
            struct(a="long"), (1,), {"a": 1},
        ),
        (REFS, struct(next=struct(a="long"), a="integer"), ((2,), 1), {"next": {"a": 2}, "a": 1}),
        ({"additionalProperties": {"type": "string"}}, struct(a="timestamp"), (0,), {"a": "1970-01-01T00:00:00Z"}),
    ],
)  # fmt: skip
def test_what_the_plan_writes_is_valid_by_the_schema(schema: Any, type: Any, value: Any, expected: Any) -> None:
    """Guards against records that a reader who validates refuses."""
    assert read(schema, type, value) == expected


@pytest.mark.parametrize(
    ("type", "micros", "expected"),
    [
        ("timestamp", 0, "1970-01-01T00:00:00Z"),
        ("timestamp", 1_500_000, "1970-01-01T00:00:01.500Z"),
        ("timestamp_ntz", 60_000_000, "1970-01-01T00:01:00"),
        ("timestamp_ntz", -1, "1969-12-31T23:59:59.999999"),
    ],
)
def test_a_time_has_its_seconds_and_no_more_digits_than_it_needs(type: str, micros: int, expected: str) -> None:
    """Guards against a time that a reader of RFC 3339 refuses: 12:00 is none."""
    assert read({"type": "string"}, type, micros) == expected


def test_the_plan_of_a_decimal_says_how_spark_holds_it() -> None:
    """Guards against a number that is read without its scale: a hundred times too large."""
    assert plan("JSON", "decimal(9,2)", "{}", "value") == {"write": "number", "read": "decimal", "from": [9, 2]}


@pytest.mark.parametrize(
    ("schema", "type", "said"),
    [
        (closed(a={"type": "integer"}), struct(a="double"), "value.a is of type double, but the schema has integer"),
        (closed(a={"type": "integer"}), struct(a="decimal(9,2)"), "Make value.a byte or short or integer or long"),
        (closed(a={"type": ["string", "null"]}), struct(a="long"), "the schema has string or null there"),
        (closed(a={}), struct(a="long", b="long"), "the JSON Schema, which allows no others, has no field for value.b"),
        (closed("b", a={}, b={}), struct(a="long"), "value has no field 'b', which the JSON Schema demands"),
        (closed(a=False), struct(a="long"), "value.a is of type long, but the schema has nothing that fits there"),
        (closed(a={"items": {"type": "string"}}), struct(a=array("long")), "value.a.element is of type long"),
        (
            closed(a={"anyOf": [{"type": "null"}, closed(b={"type": "string"})]}),
            struct(a=struct(b="long")),
            "value.a.b is of type long, but the schema has string there",
        ),
        (closed("b", b={}), map_of("string", "long"), "value is a map, but the JSON Schema demands the property 'b'"),
        (closed(), map_of("string", "long"), "an object without additionalProperties"),
        (closed(b={}), map_of("string", "long"), "an object with properties of its own"),
        ({"allOf": [{"properties": {"a": {"type": "integer"}}}]}, struct(a="string"), "uses allOf"),
        ({"$ref": "#order"}, struct(a="string"), "refers to '#order'"),
        ({"additionalProperties": {"type": "string"}}, map_of("string", "long"), "value.value is of type long"),
        ({"type": "object"}, map_of("long", "long"), "the keys of value are of type long"),
        (closed(a={"$ref": "other.json#/a"}), struct(a="long"), "refers to 'other.json#/a'"),
        ({"$ref": "#"}, "long", "nothing that fits"),
        ({"anyOf": [{"$ref": "#"}, {"type": "string"}]}, "long", "the schema has string there"),
        ({}, "interval", "value is of type interval, which this sink does not encode"),
        ("{", "long", "the text is no JSON Schema ("),
        ("[]", "long", "it is a JSON list"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_path(schema: Any, type: Any, said: str) -> None:
    """Guards against a column that is left out, and records that a reader who validates refuses."""
    assert said in refused(schema, type)


def test_a_schema_without_a_title_has_no_full_name() -> None:
    """Guards against a subject or lineage named after nothing."""
    assert full_name("JSON", json.dumps(REFS)) == "Order"
    assert full_name("JSON", '{"$ref": "#/$defs/a", "$defs": {"a": {"title": "A"}}}') == "A"
    with pytest.raises(InvalidSchema, match="has no title"):
        full_name("JSON", "true")


@pytest.mark.parametrize(
    ("schema", "type", "value", "said"),
    [
        (closed("a", a={"type": "integer"}), struct(a="long"), (None,), "value.a is null"),
        ({"items": {"type": "integer"}}, array("long", True), [None], "value.element is null"),
        ({}, "double", float("nan"), "value is nan"),
    ],
)
def test_a_row_that_the_schema_cannot_hold_is_refused(schema: Any, type: Any, value: Any, said: str) -> None:
    """Guards against text that is no JSON, or not of the schema: what only the row shows, the executor refuses."""
    with pytest.raises(Refused, match=said):
        read(schema, type, value)
