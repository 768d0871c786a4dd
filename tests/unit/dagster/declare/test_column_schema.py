"""The columns of an output on its asset, read without Spark, and the columns of the inputs that they come from."""

import dagster as dg
import pytest

from dagster_exactly_once import BadDeclaration, exactly_once_stream, observed_stream
from dagster_exactly_once.declare.columns import table_schema
from tests.unit.dagster.test_component import Prefixed


def shown(schema):
    return [
        (c.name, c.type, c.description, c.constraints.nullable) for c in table_schema(schema, "column_schema").columns
    ]


@pytest.mark.parametrize(
    ("ddl", "columns"),
    [
        ("customer STRING, cents INT", [("customer", "STRING", None, True), ("cents", "INT", None, True)]),
        ("id BIGINT NOT NULL", [("id", "BIGINT", None, False)]),
        ("id: int not null COMMENT 'who, when'", [("id", "int", "who, when", False)]),
        ("sum DECIMAL(10, 2), x INT", [("sum", "DECIMAL(10, 2)", None, True), ("x", "INT", None, True)]),
        (
            "`the, name` ARRAY<STRUCT<a: INT, B: STRING>>, m MAP<STRING, INT>",
            [
                ("the, name", "ARRAY<STRUCT<a: INT, B: STRING>>", None, True),
                ("m", "MAP<STRING, INT>", None, True),
            ],
        ),
    ],
)
def test_ddl_is_read_as_spark_reads_it(ddl, columns):
    """Guards against columns cut at a comma of a type, a name or a comment."""
    assert shown(ddl) == columns


def test_a_struct_type_and_a_table_schema_are_shown_as_they_are():
    from pyspark.sql.types import IntegerType, StringType, StructField, StructType

    struct = StructType(
        [StructField("customer", StringType(), False), StructField("cents", IntegerType(), True, {"comment": "net"})]
    )
    assert shown(struct) == [("customer", "string", None, False), ("cents", "int", "net", True)]
    theirs = dg.TableSchema([dg.TableColumn("x", "date")])
    assert table_schema(theirs, "column_schema") is theirs


@pytest.mark.parametrize("wrong", ["", "customer", "a INT,, b INT", "a INT,", 7])
def test_what_is_no_schema_is_refused_when_the_code_loads(wrong):
    """Guards against an asset that shows columns which nobody wrote."""
    with pytest.raises(BadDeclaration, match="column_schema"):
        table_schema(wrong, "s: column_schema")


def declared(outputs, column_schema):
    return exactly_once_stream(name="s", source="raw", outputs=outputs, column_schema=column_schema)(
        lambda events: events
    )


def columns_of(spec):
    found = spec.metadata.get("dagster/column_schema")
    return found and [c.name for c in found.columns]


def test_each_output_has_its_own_columns():
    assert columns_of(declared(["out"], "a INT").outputs[0]) == ["a"]
    two = declared(["shop/one", "two"], {"one": "a INT"})
    assert [columns_of(spec) for spec in two.outputs] == [["a"], None]


@pytest.mark.parametrize(
    ("said", "says"), [("a INT", "which of the 2 outputs"), ({"three": "a INT"}, "names three, which is not")]
)
def test_columns_of_no_known_output_are_refused(said, says):
    with pytest.raises(BadDeclaration, match=says):
        declared(["one", "two"], said)


def made(column_lineage, source="raw", outputs="out", **more):
    """The lineage on each output of a stream."""
    stream = observed_stream("s", source=source, outputs=outputs, column_lineage=column_lineage, **more)
    found = [spec.metadata.get("dagster/column_lineage") for spec in stream.outputs]
    return [
        each
        and {
            column: [(dep.asset_key.to_user_string(), dep.column_name) for dep in deps]
            for column, deps in each.deps_by_column.items()
        }
        for each in found
    ]


def test_the_lineage_of_columns_names_the_assets_of_the_inputs_as_the_translator_calls_them():
    """Guards against a lineage that leads to an asset which does not exist."""
    assert made(None) == [None]
    said = {"cents": ["price", "amount"], "who": "customer"}
    wanted = {"cents": [("kafka/raw", "amount"), ("kafka/raw", "price")], "who": [("kafka/raw", "customer")]}
    assert made(said, translator=Prefixed()) == [wanted]
    theirs = dg.TableColumnLineage({"a": [dg.TableColumnDep(dg.AssetKey("b"), "c")]})
    assert made(theirs) == [{"a": [("b", "c")]}]


def test_the_lineage_of_several_inputs_and_outputs_is_by_parameter_and_by_topic():
    two = {"bought": "shop.orders", "back": "refunds"}
    assert made({"cents": {"bought": "price", "back": ["paid"]}}, two) == [
        {"cents": [("refunds", "paid"), ("shop.orders", "price")]}
    ]
    assert made({"two": {"a": "x"}}, outputs=["one", "two"], rejected="bad") == [None, {"a": [("raw", "x")]}, None]
    assert made({"a": "x"}, rejected="bad") == [{"a": [("raw", "x")]}, None]


@pytest.mark.parametrize(
    ("said", "more", "says"),
    [
        (7, {}, "neither a mapping"),
        ({"a": {"other": "x"}}, {}, r"other is not an input .* inputs are: raw"),
        ({"a": "x"}, {"source": ["raw", "more"]}, "of which input"),
        ({"a": "x"}, {"outputs": ["one", "two"]}, "which of the 2 outputs"),
    ],
)
def test_a_lineage_that_names_nothing_is_refused_when_the_code_loads(said, more, says):
    with pytest.raises(BadDeclaration, match=says):
        made(said, **more)
