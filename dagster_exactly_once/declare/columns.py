"""The columns of an output, as Dagster shows them: from DDL, from Spark's StructType, or as they are; and from which
columns of the inputs each is made.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import dagster as dg

from dagster_exactly_once.declare.errors import BadDeclaration

#: The schema that a declaration takes: DDL like ``customer STRING, cents INT``, a StructType of Spark, or Dagster's
#: own.
ColumnSchema = Any

#: The columns of the inputs from which a column of the output is made; with several inputs, by the name of the
#: parameter.
Made = str | Sequence[str]
ColumnLineage = dg.TableColumnLineage | Mapping[str, Made | Mapping[str, Made]]

#: A column as Spark reads it: ``name TYPE``, then NOT NULL, then COMMENT '...'.
_COLUMN = re.compile(
    r"(?P<name>`(?:[^`]|``)+`|\w+)(?:\s*:\s*|\s+)(?P<type>\S.*?)"
    r"(?P<required>\s+NOT\s+NULL)?(?:\s+COMMENT\s+(?P<comment>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"))?",
    re.I | re.S,
)
#: A name or text in quotes, in which a comma ends no column, or a single character.
_TOKEN = re.compile(r"`(?:[^`]|``)*`|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|.", re.S)


def table_schema(schema: ColumnSchema, where: str) -> dg.TableSchema:
    """Return the columns for ``dagster/column_schema``. Reads DDL without Spark: a code location starts no JVM. Raises
    BadDeclaration, which names the argument (``where``), when ``schema`` is nothing of the three.
    """
    if isinstance(schema, dg.TableSchema):
        return schema
    if isinstance(schema, str):
        columns = [_column(text, where) for text in _split(schema)]
    elif hasattr(schema, "fields") and hasattr(schema, "simpleString"):
        columns = [
            _made(f.name, f.dataType.simpleString(), not f.nullable, (f.metadata or {}).get("comment"))
            for f in schema.fields
        ]
    else:
        raise BadDeclaration(f"{where}: {schema!r} is neither DDL nor a StructType nor a TableSchema")
    return dg.TableSchema(columns)


def arrow_columns(schema: Iterable[Any]) -> dg.TableSchema:
    """Return the columns of a schema of Arrow."""
    return dg.TableSchema([_made(f.name, str(f.type), not f.nullable, None) for f in schema])


def _split(ddl: str) -> Iterator[str]:
    """Yield the columns of ``ddl``, by the commas that are in no bracket and no quotes."""
    depth, column = 0, ""
    for token in _TOKEN.findall(ddl):
        depth += (token in "<(") - (token in ">)")
        if token == "," and depth == 0:
            yield column.strip()
            column = ""
        else:
            column += token
    yield column.strip()


def _column(text: str, where: str) -> dg.TableColumn:
    found = _COLUMN.fullmatch(text)
    if found is None:
        raise BadDeclaration(f"{where}: {text!r} is not a column. Write DDL like customer STRING NOT NULL, cents INT")
    name, comment = found["name"], found["comment"]
    if name.startswith("`"):
        name = name[1:-1].replace("``", "`")
    return _made(name, found["type"], bool(found["required"]), comment and comment[1:-1])


def _made(name: str, kind: str, required: bool, comment: str | None) -> dg.TableColumn:
    return dg.TableColumn(name, kind, comment, dg.TableColumnConstraints(nullable=not required))


def column_lineage_of(said: ColumnLineage, inputs: Mapping[str, dg.AssetKey], where: str) -> dg.TableColumnLineage:
    """Return the lineage for ``dagster/column_lineage``; ``inputs`` are the assets of the inputs, by parameter. Raises
    BadDeclaration, which names the argument (``where``), for what is no lineage or names none of several inputs.
    """
    if isinstance(said, dg.TableColumnLineage):
        return said
    if not isinstance(said, Mapping):
        raise BadDeclaration(f"{where}: {said!r} is neither a mapping from column to columns nor a TableColumnLineage")
    return dg.TableColumnLineage({column: list(_deps(made, inputs, where)) for column, made in said.items()})


def _deps(
    made: Made | Mapping[str, Made], inputs: Mapping[str, dg.AssetKey], where: str
) -> Iterator[dg.TableColumnDep]:
    if not isinstance(made, Mapping):
        if len(inputs) > 1:
            names = ", ".join(inputs)
            raise BadDeclaration(f"{where}: {made!r} does not say of which input. Write {{input: column}} ({names})")
        made = {next(iter(inputs)): made}
    for name, columns in made.items():
        if name not in inputs:
            raise BadDeclaration(f"{where}: {name} is not an input of the stream. Its inputs are: {', '.join(inputs)}")
        for column in [columns] if isinstance(columns, str) else columns:
            yield dg.TableColumnDep(inputs[name], column)
