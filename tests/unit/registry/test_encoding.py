"""Formats at a start: which schema encodes a column, under which subject, and what is refused without a registry."""

from __future__ import annotations

import json
from typing import Any

import pytest

from exactly_once.errors import InvalidSchema
from exactly_once.registry.encoding import Encoding, check, check_alone, encoding, with_schema
from exactly_once.registry.schema_options import Registry, Side

ORDER: dict[str, Any] = {
    "type": "struct",
    "fields": [{"name": "id", "type": "long", "nullable": False, "metadata": {}}],
}
TYPES = {"key": "string", "value": ORDER}
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


def test_a_column_of_which_json_has_nothing_is_encoded_all_the_same() -> None:
    """Guards against a stream that is refused for a form that its rows may never take."""
    pairs = {"type": "map", "keyType": "integer", "valueType": "long", "valueContainsNull": False}
    column = {"type": "struct", "fields": [{"name": "pairs", "type": pairs, "nullable": False, "metadata": {}}]}
    text = 'syntax = "proto3"; message M { map<int32, int64> pairs = 1; }'
    found = encoding(side(type="PROTOBUF"), {"value": column}, text)
    assert found.spare is None and found.plan["write"] == "message"


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
