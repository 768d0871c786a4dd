"""Avro: what is derived, what is refused, and that fastavro reads what a plan writes."""

from __future__ import annotations

import datetime as dt
import io
import json
import re
from decimal import Decimal
from typing import Any

import fastavro
import pytest

from exactly_once.errors import InvalidSchema
from exactly_once.formats import derive, full_name, plan
from tests.unit.formats.interpreter import Refused, encode
from tests.unit.formats.samples import EVERY, EVERY_ROW, array, map_of, struct

UTC = dt.UTC
NEW_YEAR = dt.datetime(1970, 1, 1)
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
LOCAL_MILLIS = {"type": "long", "logicalType": "local-timestamp-millis"}
NUMBER = {"logicalType": "decimal", "precision": 9, "scale": 3}


def read(schema: Any, type: Any, value: Any) -> Any:
    """What fastavro reads from a value that the plan wrote, to its last byte."""
    text = json.dumps(schema)
    written = io.BytesIO(encode("AVRO", plan("AVRO", type, text, "value"), value))
    found = fastavro.schemaless_reader(written, json.loads(text), None)
    assert written.read() == b""
    return found


def record(*fields: Any, **more: Any) -> dict[str, Any]:
    """A record of (name, type) or (name, type, default)."""
    made = [dict(zip(("name", "type", "default"), f, strict=False)) for f in fields]
    return {"type": "record", "name": "shop.Order", "fields": made, **more}


def refused(schema: Any, type: Any) -> str:
    with pytest.raises(InvalidSchema) as caught:
        plan("AVRO", type, json.dumps(schema), "value")
    return str(caught.value)


# -- derive -----------------------------------------------------------------------------------------------------------


def test_every_type_is_derived_and_comes_back() -> None:
    """Guards against a column that changes on its way to a reader, by the schema that nobody wrote by hand."""
    found = read(json.loads(derive("AVRO", EVERY, "shop.Order")), EVERY, EVERY_ROW)
    assert found == {
        "boolean": True,
        "byte": -128,
        "short": 300,
        "integer": -(2**31),
        "long": -(2**63),
        "float": 1.5,
        "double": -0.1,
        "string": "zwölf",
        "binary": b"\0\xff",
        "timestamp": dt.datetime(1969, 12, 31, 23, 59, 59, 999999, UTC),
        "text": "abc",
        "none": None,
        "inner": {"x": 7, "deep": {"y": "a"}},
        "list": [{"x": 1}, {"x": None}],
        "map": {"a": 1, "b": -1},
        "date": dt.date(1969, 12, 31),
        "timestamp_ntz": dt.datetime(2026, 1, 31, 12, 0, 0, 1),
        "decimal": Decimal("-123456789012345678901234567890.12345678"),
        "lists": [[1], []],
    }


def test_derived_records_have_names_of_their_own() -> None:
    """Guards against two records of one name: the registry refuses the schema, or a reader takes the wrong one."""
    inner = struct(b=struct(c="long"))
    text = derive("AVRO", struct(a=inner, a_b=struct(d="long"), e=array(struct(f="long"))), "shop.Order")
    names: dict[str, Any] = {}
    fastavro.parse_schema(json.loads(text), names)
    assert sorted(names) == [f"shop.Order{end}" for end in ("", "_a", "_a_b", "_a_b_2", "_e")]
    assert full_name("AVRO", text) == "shop.Order"


def test_what_is_nullable_is_derived_as_an_optional_field() -> None:
    """Guards against a null that fails a task, and against a field that can never be dropped from the schema."""
    type = struct(a="long", b=array("string", True))
    type["fields"][0]["nullable"] = True
    fields = json.loads(derive("AVRO", type, "Order"))["fields"]
    assert fields[0] == {"name": "a", "type": ["null", "long"], "default": None}
    assert fields[1] == {"name": "b", "type": {"type": "array", "items": ["null", "string"]}}
    assert derive("AVRO", "long", "Order") == '"long"'


@pytest.mark.parametrize(
    ("type", "said"),
    [
        (struct(a=struct(**{"zip-code": "long"})), "Order.a.zip-code has a name that Avro does not allow"),
        (struct(a=map_of("long", "long")), "the keys of Order.a are of type long"),
        (struct(a="interval day to second"), "Order.a is of type interval day to second"),
        (struct(a="void"), "Order.a is of type void"),
        (struct(a=array({"type": "udt", "class": "x"})), "Order.a.element is of type udt"),
        (struct(a="decimal(5,-2)"), "Cast Order.a to decimal(7,0)"),
    ],
)
def test_what_avro_does_not_have_is_refused_with_its_path(type: Any, said: str) -> None:
    """Guards against a refusal by the registry, whose words do not say which column it is."""
    with pytest.raises(InvalidSchema, match="What to do: ") as caught:
        derive("AVRO", type, "shop.Order")
    assert said in str(caught.value)


# -- plan -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "type", "value", "expected"),
    [
        ("float", "short", 3, 3.0),
        ("double", "integer", 3, 3.0),
        ("double", "float", 0.5, 0.5),
        (MILLIS, "timestamp", -1, dt.datetime(1969, 12, 31, 23, 59, 59, 999000, UTC)),
        (LOCAL_MILLIS, "timestamp_ntz", 1999, NEW_YEAR.replace(microsecond=1000)),
        ({"type": "long", "logicalType": "timestamp-micros"}, "integer", 5, dt.datetime(1970, 1, 1, 0, 0, 0, 5, UTC)),
        ({"type": "int", "logicalType": "time-millis"}, "integer", 1000, dt.time(0, 0, 1)),
        ({"type": "fixed", "name": "F", "size": 2}, "binary", b"ab", b"ab"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "string", "B", "B"),
        ({"type": "string", "logicalType": "custom"}, "string collate UTF8_LCASE", "x", "x"),
        ({"type": "fixed", "name": "D", "size": 9, **NUMBER}, "decimal(5,2)", Decimal("-1.25"), Decimal("-1.25")),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4}, "decimal(4,0)", Decimal(-128), Decimal(-128)),
        (["null", "int", "string"], "string", "x", "x"),
        (["string", "null"], "string", None, None),
        ({"type": "map", "values": ["null", "long"]}, map_of("varchar(9)", "long"), {"a": None}, {"a": None}),
    ],
)  # fmt: skip
def test_fastavro_reads_what_the_plan_writes(schema: Any, type: Any, value: Any, expected: Any) -> None:
    """Guards against bytes that another library reads as something else."""
    assert read(schema, type, value) == expected


def test_fields_are_found_by_name_and_written_in_the_order_of_the_schema() -> None:
    """Guards against two columns of one type that change places: no reader can tell."""
    type = struct(b="long", a="long")
    assert read(record(("a", "long"), ("b", "long")), type, (1, 2)) == {"a": 2, "b": 1}


@pytest.mark.parametrize(
    ("schema", "default", "expected"),
    [
        ("long", -1, -1),
        ("double", 2, 2.0),
        ("bytes", "\u00ff", b"\xff"),
        (["null", "string"], None, None),
        (["string", "null"], "x", "x"),
        (["bytes", "string"], "\u00ff", b"\xff"),
        ({"type": "fixed", "name": "F", "size": 2}, "ab", b"ab"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "B"),
        ({"type": "array", "items": ["null", "int"]}, [1, None], [1, None]),
        ({"type": "map", "values": "int"}, {"a": 1}, {"a": 1}),
        (record(("x", "int"), ("y", "bytes", "b"), name="In"), {"x": 1}, {"x": 1, "y": b"b"}),
        ({"type": "long", "logicalType": "timestamp-micros"}, 1, dt.datetime(1970, 1, 1, 0, 0, 0, 1, UTC)),
    ],
)
def test_a_field_without_a_column_is_written_as_its_default(schema: Any, default: Any, expected: Any) -> None:
    """Guards against a reader that loses its place in a row, and against a default that is read as another value."""
    assert read(record(("a", schema, default), ("z", "long")), struct(z="long"), (9,)) == {"a": expected, "z": 9}


@pytest.mark.parametrize(
    ("schema", "default"),
    [("int", 2**31), ({"type": "enum", "name": "E", "symbols": ["A"]}, "Z"), (["null", "long"], "x"), ("float", True)],
)
def test_a_default_that_does_not_fit_is_refused(schema: Any, default: Any) -> None:
    """Guards against a made-up value in every row."""
    assert "a" in refused(record(("a", schema, default)), struct())


def test_a_type_is_found_by_its_name_in_its_namespace() -> None:
    """Guards against a schema that names a type twice, as registries and code generators write it."""
    point = {"type": "record", "name": "Point", "namespace": "geo", "fields": [{"name": "x", "type": "long"}]}
    schema = record(("a", point), ("b", "geo.Point"), ("c", ["null", "Order"], None))
    type = struct(a=struct(x="long"), b=struct(x="long"), c=struct(a=struct(x="long"), b=struct(x="long")))
    assert read(schema, type, ((1,), (2,), ((3,), (4,))))["c"] == {"a": {"x": 3}, "b": {"x": 4}, "c": None}


@pytest.mark.parametrize(
    ("schema", "type", "said"),
    [
        (record(("a", "int")), struct(a="long"), "value.a is of type long, but the schema has int there"),
        (record(("a", "bytes")), struct(a="string"), "value.a is of type string, but the schema has bytes there"),
        (record(("a", "string")), struct(a="binary"), "value.a is of type binary, but the schema has string there"),
        (record(("a", "long")), struct(a="timestamp"), "unix_micros"),
        (record(("a", "int")), struct(a="date"), "value.a is of type date, but the schema has int there"),
        (
            record(("a", {"type": "long", "logicalType": "timestamp-micros"})),
            struct(a="timestamp_ntz"),
            "the schema has long with logicalType timestamp-micros there",
        ),
        (
            record(("a", {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 1})),
            struct(a="decimal(4,2)"),
            "Make value.a decimal(4,1)",
        ),
        (record(("a", "long"), ("b", "long")), struct(a="long"), "value has no field 'b', which the Avro record"),
        (record(("a", "long")), struct(a="long", b="long"), "the Avro record shop.Order has no field for value.b"),
        (record(("Zip", "long")), struct(zip="long"), "Rename value.zip to Zip"),
        (record(("a", ["null", record(("b", "int"), name="In")])), struct(a=struct(b="long")), "value.a.b is of type"),
        (record(("a", ["int", "string"])), struct(a="long"), "the schema has a union of int, string there"),
        (record(("a", "null")), struct(a="long"), "the schema has null there"),
        (record(("a", {"type": "array", "items": "int"})), struct(a=array("long")), "value.a.element is of type long"),
        (record(("a", {"type": "map", "values": "int"})), struct(a=map_of("string", "long")), "value.a.value is of"),
        (record(("a", {"type": "map", "values": "int"})), struct(a=map_of("long", "integer")), "keys of value.a"),
        (record(("a", ["long", "string"])), struct(a="variant"), "value.a is of type variant, which this sink"),
        ("long", struct(a="long"), "value is of type struct, but the schema has long there"),
        ({"type": "recrd"}, "long", "the text is no Avro schema"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_path(schema: Any, type: Any, said: str) -> None:
    """Guards against a number that is cut, a column that is left out, and bytes that nobody can read."""
    assert said in refused(schema, type)


def test_two_fields_of_one_name_are_refused() -> None:
    """Guards against one of two columns being lost: Spark allows both."""
    type = struct(a="long")
    type["fields"] *= 2
    assert re.search(r"value .*two fields named 'a'", refused(record(("a", "long")), type))


def test_a_schema_without_a_name_has_no_full_name() -> None:
    """Guards against a subject or lineage named after nothing."""
    with pytest.raises(InvalidSchema, match=r"Avro schema is string, .*no name"):
        full_name("AVRO", '"string"')


@pytest.mark.parametrize(
    ("schema", "type", "value", "path"),
    [
        (record(("a", "long")), struct(a="long"), (None,), "value.a is null"),
        ({"type": "array", "items": "long"}, array("long", True), [1, None], "value.element is null"),
        ({"type": "fixed", "name": "F", "size": 2}, "binary", b"abc", "value has 3 bytes"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "string", "Z", "value is 'Z'"),
    ],
)
def test_a_row_that_the_schema_cannot_hold_is_refused(schema: Any, type: Any, value: Any, path: str) -> None:
    """Guards against a null that is read as a zero: what only the row shows, the executor refuses."""
    with pytest.raises(Refused, match=path):
        read(schema, type, value)


@pytest.mark.parametrize(
    ("branches", "type", "branch"),
    [(["null", "double", "int"], "integer", 2), (["double", "long"], "long", 1), (["long", "float"], "byte", 0)],
)
def test_a_number_in_a_union_takes_the_branch_of_its_own_type(branches: list[str], type: str, branch: int) -> None:
    """Guards against whole numbers that readers get as fractions."""
    assert plan("AVRO", type, json.dumps(branches), "value")["branch"] == branch


@pytest.mark.parametrize(
    "branches", [["null", "double", "long"], ["null", "long", "double"], ["float", "long", "null"]]
)
def test_no_digit_of_a_long_is_lost_in_a_union_of_numbers(branches: list[str]) -> None:
    """Guards against ids that readers get rounded: above 2**53 a double has not every whole number."""
    for value in (2**53 + 1, 2**63 - 1, -(2**63)):
        assert read(branches, "long", value) == value
    assert "value" in refused([b for b in branches if b != "long"], "long")


def test_a_schema_is_not_named_like_a_type_of_avro() -> None:
    """Guards against a record that a reader takes for a string."""
    with pytest.raises(InvalidSchema, match=r"the schema string .*type of Avro"):
        derive("AVRO", struct(a="long"), "string")
