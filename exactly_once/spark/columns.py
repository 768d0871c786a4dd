"""The columns of a Kafka record in a schema, by the rules of Spark's own Kafka sink, and what the sink adds to them:
``timestamp``, ``encoded_key`` and ``encoded_value`` (docs/reference.md, "Columns").

The sink ignores other columns, as Spark's sink does. Of two columns with one of these names Spark's sink takes the
first; this one refuses them. With a schema registry, it puts the id of the schema before each value (and key); a null
stays null. With ``value.format`` and ``key.format``, value and key may have any type that fits their schema.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from exactly_once.framing import SparkType
from exactly_once.protocol.row_schema import check_once

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: The headers of a trace: https://www.w3.org/TR/trace-context/
TRACEPARENT = "traceparent"
_TRACE = (TRACEPARENT, "tracestate")


def types_of(schema: StructType) -> dict[str, SparkType]:
    """Return the type of each column in Spark's JSON."""
    return {f.name: f.dataType.jsonValue() for f in schema.fields}


def check_names(df: DataFrame) -> None:
    """Refuse a DataFrame in which a name does not say which column is meant, as Spark's session tells names apart: all
    columns are asked for by their names. Raise InvalidSchema with the name.
    """
    check_once(df.columns, ignore_case=str(df.sparkSession.conf.get("spark.sql.caseSensitive")).lower() != "true")
    for field in df.schema.fields:
        _check_fields(field.dataType, field.name)


def _check_fields(type: DataType, path: str) -> None:
    """Refuse a struct with two fields of one name, which neither Arrow nor a table can hold."""
    if isinstance(type, StructType):
        check_once(type.names, path)
        for field in type.fields:
            _check_fields(field.dataType, f"{path}.{field.name}")
    elif isinstance(type, ArrayType):
        _check_fields(type.elementType, f"{path}.element")
    elif isinstance(type, MapType):
        _check_fields(type.keyType, f"{path}.key")
        _check_fields(type.valueType, f"{path}.value")


def record_of(df: DataFrame, columns: Iterable[str]) -> DataFrame:
    """Return the rows with these ``columns`` of a record alone, which it finds by their places: names of other columns
    may be those of two, or be written with a dot.
    """
    names = sorted(columns)
    numbered = df.toDF(*(str(at) for at in range(len(df.columns))))
    return numbered.select(*(numbered[str(df.columns.index(name))].alias(name) for name in names))


def trace_headers(column: str | Column) -> Column:
    """See :func:`exactly_once.trace_headers`: these headers of ``column``, in their order; null stays null."""
    return F.filter(column, lambda header: header["key"].isin(*_TRACE)).alias("headers")
