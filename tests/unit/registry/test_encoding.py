"""Formats at a start: which schema encodes a column, under which subject, and what is refused without a registry."""

from __future__ import annotations

import json
from typing import Any

import pytest

from exactly_once.errors import InvalidSchema
from exactly_once.formats.registry.encoding import check, check_alone, encoding, with_schema
from exactly_once.framing import Encoding
from exactly_once.schema_options import Registry, Side
from tests.unit.formats.samples import map_of, struct

TYPES: dict[str, Any] = {"key": "string", "value": struct(id="long")}
AVRO = json.dumps({"type": "record", "name": "shop.Order", "fields": [{"name": "id", "type": "long"}]})
OTHER = AVRO.replace("long", "string")


def side(**fields: Any) -> Side:
    return Side(**{"column": "value", "subject": "t-value", "type": "AVRO", "encodes": True, **fields})


def test_a_schema_is_made_of_the_columns_type_and_carries_the_name() -> None:
    """Guards against a schema of which the registry knows another name than the option's."""
    made = with_schema(side(register=True, name="shop.Order"), TYPES)
    assert json.loads(str(made.schema)) == json.loads(AVRO)


@pytest.mark.parametrize(("before", "subject"), [("", "shop.Order"), ("t-", "t-shop.Order")])
def test_a_subject_ends_with_the_records_name_where_the_strategy_says_so(before: str, subject: str) -> None:
    """Guards against a subject under which no reader looks."""
    found = with_schema(side(subject=before, schema=AVRO, by_record=True), TYPES)
    assert (found.subject, found.by_record) == (subject, False)


def test_a_plan_comes_with_json_for_rows_that_the_schema_refuses() -> None:
    """Guards against a dead letter that nobody can read."""
    found = encoding(side(), TYPES, AVRO)
    assert isinstance(found, Encoding)
    assert (found.format, found.plan["write"]) == ("AVRO", "record")
    assert found.spare is not None and found.spare["write"] == "object"


def test_a_row_of_any_type_has_json_for_the_dead_letter_topic() -> None:
    """Guards against a stream that is refused, or ends, for a form that its rows may never take."""
    column = struct(pairs=map_of("integer", "double"))
    text = 'syntax = "proto3"; message M { map<int32, double> pairs = 1; }'
    found = encoding(side(type="PROTOBUF"), {"value": column}, text)
    number = {"write": "number", "read": "double", "lenient": True}
    pairs = {"write": "entries", "key": "integer", "values": number, "null": True, "lenient": True}
    assert found.plan["write"] == "message" and found.spare["fields"][0]["node"] == pairs


def test_a_protobuf_field_keeps_its_number_when_another_comes_before_it_or_goes() -> None:
    """Guards against a reader that takes one field's values for another's: it knows fields by their numbers alone."""

    def made(names: str, previous: str | None = None) -> str:
        one = side(type="PROTOBUF", register=True, name="shop.Order")
        return str(with_schema(one, {"value": struct(**dict.fromkeys(names, "long"))}, previous).schema)

    second = made("abc", made("ac"))
    third = made("bcd", second)
    assert [line.strip() for line in second.splitlines() if "=" in line][1:] == [
        "int64 a = 1;",
        "int64 c = 2;",
        "int64 b = 3;",
    ]
    assert "reserved 1;" in third and 'reserved "a";' in third and "int64 d = 4;" in third
    assert made("dcb", third) == third, "the same version, and no new one"


@pytest.mark.parametrize("schema", [OTHER, AVRO.replace('"id"', '"number"'), "{"], ids=["type", "field", "text"])
def test_columns_that_do_not_fit_a_given_schema_are_refused_without_a_registry(schema: str) -> None:
    """Guards against a mistake that shows only when the first batch comes."""
    with pytest.raises(InvalidSchema):
        check(Registry("http://r", sides=(side(schema=schema),)), TYPES)


def test_what_only_the_registry_knows_is_left_to_the_start() -> None:
    """Guards against a check that refuses every stream that takes the latest version."""
    check(Registry("http://r", sides=(side(), Side("key", "t-key", "not parsed"))), TYPES)
    check(None, TYPES)


def test_a_latest_version_that_refers_to_other_subjects_is_refused() -> None:
    """Guards against rows encoded by half of a schema."""
    check_alone(side(), [])
    with pytest.raises(InvalidSchema, match="schemas of other subjects"):
        check_alone(side(), [object()])
