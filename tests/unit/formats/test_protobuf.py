"""Protobuf: what is derived, what is refused, and that Google's library reads what a plan writes."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.unknown_fields import UnknownFieldSet

from exactly_once.errors import ExtraMissing, InvalidOption, InvalidSchema
from exactly_once.formats import derive, full_name, plan, protobuf
from tests.unit.formats.interpreter import Refused, encode
from tests.unit.formats.samples import COMMON, COMMON_ROW, array, map_of, optional, struct

PROTO3 = 'syntax = "proto3"; package shop; import "google/protobuf/timestamp.proto"; '


def read(text: str, type: Any, row: Any, indexes: tuple[int, ...] = (0,)) -> Any:
    """The message that Google's library reads from a row that the plan wrote."""
    found = GetMessageClass(protobuf.message_of(text, indexes))()
    found.ParseFromString(encode("PROTOBUF", plan("PROTOBUF", type, text, "value", indexes), row))
    assert len(UnknownFieldSet(found)) == 0
    return found


def as_dict(message: Any) -> dict[str, Any]:
    found: dict[str, Any] = MessageToDict(message, preserving_proto_field_name=True)
    return found


def order(*fields: str, inside: str = "") -> str:
    """A file whose first message has these fields."""
    return f"{PROTO3} message Order {{ {inside} {' '.join(fields)} }} message In {{ int64 x = 1; }}"


def refused(text: str, type: Any, indexes: tuple[int, ...] = (0,)) -> str:
    with pytest.raises(InvalidSchema) as caught:
        plan("PROTOBUF", type, text, "value", indexes)
    return str(caught.value)


# -- derive -----------------------------------------------------------------------------------------------------------


def test_every_type_is_derived_and_comes_back() -> None:
    """Guards against a column that changes on its way to a reader, by the schema that nobody wrote by hand."""
    text = derive("PROTOBUF", COMMON, "shop.Order")
    found = read(text, COMMON, COMMON_ROW)
    assert found.DESCRIPTOR.full_name == full_name("PROTOBUF", text) == "shop.Order"
    assert as_dict(found) == {
        "boolean": True,
        "byte": -128,
        "short": 300,
        "integer": -(2**31),
        "long": str(-(2**63)),
        "float": 1.5,
        "double": -0.1,
        "string": "zwölf",
        "binary": "AP8=",
        "timestamp": "1969-12-31T23:59:59.999999Z",
        "text": "abc",
        "inner": {"x": "7", "deep": {"y": "a"}},
        "list": [{"x": "1"}, {}],
        "map": {"a": "1", "b": "-1"},
    }
    assert not found.HasField("none")


def test_a_derived_file_reads_like_one_that_a_person_wrote() -> None:
    """Guards against a schema that changes with a release: its text is what the registry compares."""
    type = optional(struct(id="long", ship_to=struct(zip="string"), tags=array("string", True)), "id", "ship_to")
    assert derive("PROTOBUF", type, "shop.v1.Order").splitlines() == [
        'syntax = "proto3";',
        "package shop.v1;",
        "",
        "message Order {",
        "  optional int64 id = 1;",
        "  message ShipTo {",
        "    string zip = 1;",
        "  }",
        "  ShipTo ship_to = 2;",
        "  repeated string tags = 3;",
        "}",
    ]


def test_derived_messages_have_names_of_their_own() -> None:
    """Guards against a file that protoc, or the Java that it makes, refuses."""
    one = struct(x="long")
    type = struct(Order=one, Item=one, item=one, _=one, m=map_of("integer", one), m_entry=one, deep=struct(deep=one))
    text = derive("PROTOBUF", type, "Order")
    nested = [m.name for m in protobuf.message_of(text, (0,)).nested_types if not m.GetOptions().map_entry]
    assert nested == ["OrderValue", "ItemValue", "ItemValue_2", "Value", "M", "MEntryValue", "Deep"]
    assert full_name("PROTOBUF", text, (0, 6, 0)) == "Order.Deep.DeepValue"
    assert plan("PROTOBUF", type, text, "value")["width"] == 7


@pytest.mark.parametrize(
    ("type", "said"),
    [
        ("long", "Wrap the column in a struct"),
        (struct(a="decimal(9,2)"), "Cast Order.a to string or double"),
        (struct(a="timestamp_ntz"), "Order.a is of type timestamp_ntz"),
        (struct(a=struct(b="date")), "Cast Order.a.b to string or timestamp"),
        (struct(a=array(array("long"))), "Order.a.element is of type array"),
        (struct(a=map_of("string", array("long"))), "Order.a.value is of type array"),
        (struct(a=map_of("double", "long")), "the keys of Order.a are of type double"),
        (struct(**{"a b": "long"}), "Order.a b has a name that Protobuf does not allow"),
        (struct(ship_to="long", shipTo="long"), "ship_to and shipTo, whose names collide in Protobuf"),
    ],
)
def test_what_protobuf_does_not_have_is_refused_with_its_path(type: Any, said: str) -> None:
    """Guards against protoc's own words, about a line of a text that the user never saw."""
    with pytest.raises(InvalidSchema, match="What to do: ") as caught:
        derive("PROTOBUF", type, "shop.Order")
    assert said in str(caught.value)


# -- plan -------------------------------------------------------------------------------------------------------------


def test_every_number_is_read_as_it_was() -> None:
    """Guards against a number in the wrong of Protobuf's nine encodings: it is read as another number."""
    names = ("int32", "int64", "sint32", "sint64", "sfixed32", "sfixed64", "uint32", "uint64", "fixed32", "fixed64")
    text = order(*(f"{t} f_{t} = {n};" for n, t in enumerate(names, 1)))
    small = ("int32", "sint32", "sfixed32")
    type = struct(**{f"f_{t}": "integer" if t in small else "long" for t in names})
    for low in (True, False):
        row = tuple(
            -(2 ** (31 if "32" in t else 63)) if low and not t.startswith(("u", "f")) else 2**31 - 1 for t in names
        )
        found = read(text, type, row)
        assert tuple(getattr(found, f"f_{t}") for t in names) == row


def test_repeated_fields_are_packed_as_the_schema_says() -> None:
    """Guards against a reader that takes only one of the two forms."""
    text = order(
        "repeated int32 a = 1;", "repeated int32 b = 2 [packed=false];", "repeated string c = 3;", "repeated E d = 4;",
        inside="enum E { A = 0; B = 1; }",
    )  # fmt: skip
    type = struct(a=array("integer"), b=array("short"), c=array("string"), d=array("string"))
    assert [f.get("packed") for f in plan("PROTOBUF", type, text, "value")["fields"]] == [True, False, False, True]
    found = read(text, type, ([1, -1], [300], ["x", ""], ["B", "A"]))
    assert (list(found.a), list(found.b), list(found.c), list(found.d)) == ([1, -1], [300], ["x", ""], [1, 0])
    proto2 = 'syntax = "proto2"; message M { repeated int32 a = 1; repeated int32 b = 2 [packed=true]; }'
    type = struct(a=array("integer"), b=array("integer"))
    assert [f["packed"] for f in plan("PROTOBUF", type, proto2, "value")["fields"]] == [False, True]


def test_a_message_is_chosen_by_numbers_that_count_what_is_written() -> None:
    """Guards against rows in another message's form: protoc's own entries of maps are not counted."""
    text = (
        f"{PROTO3} message A {{ }} "
        "message B { map<string, In> m = 1; message In { int64 x = 1; } oneof o { string s = 2; In i = 3; } }"
    )
    assert full_name("PROTOBUF", text) == "shop.A"
    assert full_name("PROTOBUF", text, (1, 0)) == "shop.B.In"
    assert read(text, struct(x="integer"), (5,), (1, 0)).x == 5
    found = read(text, struct(i=struct(x="long"), m=map_of("string", struct(x="long"))), ((1,), {"k": (2,)}), (1,))
    assert as_dict(found) == {"i": {"x": "1"}, "m": {"k": {"x": "2"}}}
    assert "has no message 1,1: there are 1 in shop.B" in refused(text, struct(), (1, 1))
    assert "has no message 2: there are 2 in shop," in refused(text, struct(), (2,))


def test_a_field_that_proto2_requires_must_be_a_column_and_never_null() -> None:
    """Guards against rows that no reader can parse at all."""
    text = 'syntax = "proto2"; message M { required int64 a = 2; optional int64 b = 1; }'
    assert re.search(r"value has no field 'a', .*message M demands", refused(text, struct(b="long")))
    type = struct(a="long", b="long")
    assert [f["name"] for f in plan("PROTOBUF", type, text, "value")["fields"]] == ["b", "a"]
    assert read(text, type, (1, None)).a == 1
    with pytest.raises(Refused, match=r"value\.a is null"):
        read(text, type, (None, 1))


@pytest.mark.parametrize(
    ("field", "type", "said"),
    [
        ("int32 a = 1;", "long", "value.a is of type long, but the schema has int32 there"),
        ("float a = 1;", "double", "Make value.a float"),
        ("string a = 1;", "binary", "the schema has string there"),
        ("bytes a = 1;", "string", "the schema has bytes there"),
        ("double a = 1;", "decimal(9,2)", "value.a is of type decimal(9,2)"),
        ("In a = 1;", "long", "the schema has message shop.In there"),
        ("google.protobuf.Timestamp a = 1;", "date", "Make value.a timestamp"),
        ("E a = 1;", "integer", "the schema has enum shop.Order.E there"),
        ("repeated int64 a = 1;", "long", "the schema has a repeated int64 there"),
        ("repeated In a = 1;", array(struct(y="long")), "has no field for value.a.element.y"),
        ("int64 a = 1;", array("long"), "value.a is of type array"),
        ("map<int32, In> a = 1;", map_of("long", struct(x="long")), "value.a.key is of type long"),
        ("map<int32, In> a = 1;", map_of("integer", struct(x="string")), "value.a.value.x is of type string"),
        ("map<int32, In> a = 1;", struct(x="long"), "the schema has a map there"),
        ("int64 A = 1;", "long", "Rename value.a to A"),
        ("int64 other = 1;", "long", "Drop value.a from the struct"),
        ("int64 a = 1", "long", "the text is not a valid Protobuf schema (schema.proto:1:"),
        ("Unknown a = 1;", "long", '"Unknown" is not defined'),
    ],
)
def test_what_does_not_fit_is_refused_with_its_path(field: str, type: Any, said: str) -> None:
    """Guards against a number that is cut, a column that is left out, and bytes that nobody can read."""
    assert said in refused(order(field, inside="enum E { A_ = 0; }"), struct(a=type))


def test_groups_are_refused() -> None:
    """Guards against a message between the wrong marks: a reader of the row fails."""
    assert "value.g is a group" in refused(
        'syntax = "proto2"; message M { optional group G = 1 { } }', struct(g=struct())
    )


@pytest.mark.parametrize(
    ("field", "type", "value", "said"),
    [
        ("uint32 a = 1;", "long", -1, "value.a is -1, which is out of range"),
        ("fixed32 a = 1;", "long", 2**32, "out of range"),
        ("repeated int64 a = 1;", array("long", True), [None], "value.a.element is null"),
        ("map<string, int64> a = 1;", map_of("string", "long", True), {"k": None}, "value.a.value is null"),
        ("E a = 1;", "string", "Z", "value.a is 'Z'"),
    ],
)
def test_a_row_that_the_schema_cannot_hold_is_refused(field: str, type: Any, value: Any, said: str) -> None:
    """Guards against a null that is read as a zero: what only the row shows, the executor refuses."""
    with pytest.raises(Refused, match=said):
        read(order(field, inside="enum E { A_ = 0; }"), struct(a=type), (value,))


def test_protoc_that_is_missing_or_does_not_run_is_no_fault_of_the_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against an hour with a correct schema, when it is the driver that lacks a package."""
    monkeypatch.setitem(sys.modules, "grpc_tools", None)
    with pytest.raises(ExtraMissing, match=r"\[formats\]"):
        full_name("PROTOBUF", order())
    monkeypatch.undo()
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(InvalidOption, match="protoc does not run"):
        full_name("PROTOBUF", order("int64 never_compiled_before = 1;"))


def test_protoc_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against a start that hangs for ever."""

    def late(*_: Any, **__: Any) -> Any:
        raise subprocess.TimeoutExpired("protoc", 60)

    monkeypatch.setattr(subprocess, "run", late)
    with pytest.raises(InvalidSchema, match="within 60 s"):
        full_name("PROTOBUF", order("int64 never_compiled_either = 1;"))
