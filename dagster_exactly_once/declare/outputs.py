"""The outputs of a stream, as the declaration says them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import dagster as dg

from dagster_exactly_once.declare.columns import ColumnLineage, ColumnSchema, arrow_columns, table_schema
from dagster_exactly_once.declare.errors import BadDeclaration
from dagster_exactly_once.declare.inputs import check_topic
from dagster_exactly_once.declare.rejected import Rejected, SideTopic, spec_of
from dagster_exactly_once.private import check_valid_name
from exactly_once.participant import Participant

#: The metadata of an output's AssetSpec that names its topic, where that is not the last part of the asset's key.
TOPIC = "exactly_once/topic"


@dataclass(frozen=True)
class Table:
    """A table beside the topics, an asset too: every batch goes to it under the topics' decision, with all columns.

    Attributes
    ----------
    asset : AssetSpec or str
        A string is the asset's key.
    participant : callable
        Makes the output, such as ``lambda: DeltaParticipant("lake", "/lake/orders")``. Runs, recoveries and checks call
        it, loading the code location does not. Where its output counts its rows (``row_count``), the asset shows them.
    column_schema, column_lineage
        As of a topic (:func:`exactly_once_stream`), for the columns of the table. Each run shows the columns that the
        table has, where its output says them (``table_schema``) and nothing is declared.
    """

    asset: dg.AssetSpec | str
    participant: Callable[[], Participant[Any]]
    column_schema: ColumnSchema | None = None
    column_lineage: ColumnLineage | None = None

    @property
    def spec(self) -> dg.AssetSpec:
        """The asset."""
        return spec_of(self.asset)

    def row_count(self) -> int | None:
        """Return the number of rows in the table now; None where the output does not count them."""
        count: int | None = self._asked("row_count")
        return count

    def columns(self) -> dg.TableSchema | None:
        """Return the columns of the table now; None where the output does not say them."""
        schema = self._asked("table_schema")
        return None if schema is None else arrow_columns(schema)

    def _asked(self, question: str) -> Any:
        made = self.participant()
        try:
            return getattr(made, question)() if hasattr(made, question) else None
        finally:
            made.close()


#: The outputs that a declaration takes: a topic or a table.
Output = dg.AssetSpec | str | Table
Outputs = Output | Sequence[Output]

#: The metadata in which Dagster looks for the columns of an asset.
COLUMNS = "dagster/column_schema"
#: The metadata in which it looks for the columns of the inputs that they are made from.
LINEAGE = "dagster/column_lineage"


def outputs_of(
    outputs: Outputs,
    stream: str,
    described: str,
    group_name: str | None,
    owners: Sequence[str] | None,
    tags: Mapping[str, str] | None,
    column_schema: ColumnSchema | Mapping[str, ColumnSchema] | None,
    side_topics: Sequence[SideTopic] = (),
) -> tuple[tuple[dg.AssetSpec, ...], tuple[Table, ...]]:
    """Return the spec of each topic, those of ``side_topics`` last, and the tables, completed with what the declaration
    says of all.

    Raises
    ------
    BadDeclaration
        No output, a topic that Kafka does not take, one that is named twice, or columns of no output.
    """
    if isinstance(outputs, Output):  # a string is a sequence too, of letters
        outputs = [outputs]
    tables = [o for o in outputs if isinstance(o, Table)]
    specs = [spec_of(o) for o in outputs if not isinstance(o, Table)]
    if not specs:
        raise BadDeclaration(f"{stream}: outputs is empty. Name the topics that the stream writes")
    if tables and any(isinstance(its, Rejected) for its in side_topics):
        raise BadDeclaration(
            f"{stream}: the table {tables[0].spec.key.to_user_string()} would get the rejected records too: every row "
            "goes to every output other than Kafka. Leave out rejected, or write the table in a stream that reads "
            f"{topic_of(specs[0])}"
        )
    named = len(specs)
    specs += [its.spec(stream) for its in side_topics]
    counts = Counter(check_topic(topic_of(spec), f"{stream}: outputs") for spec in specs)
    if twice := [topic for topic, count in counts.items() if count > 1]:
        raise BadDeclaration(f"{stream}: outputs names the topic {twice[0]} twice. Name it once")
    columns = _columns(column_schema, list(counts)[:named], stream)

    def complete(spec: dg.AssetSpec, kind: str, metadata: Mapping[str, Any]) -> dg.AssetSpec:
        return spec.replace_attributes(
            group_name=spec.group_name or group_name or ...,
            owners=spec.owners or owners or ...,
            tags={**(tags or {}), **spec.tags},
            kinds=spec.kinds | {kind, "spark"},
            description=spec.description or described,
            metadata={**metadata, **spec.metadata},
            skippable=True,  # a run that is stopped or rotated has completed nothing
        )

    return (
        tuple(complete(s, "kafka", {TOPIC: topic_of(s), **columns.get(topic_of(s), {})}) for s in specs),
        tuple(replace(table, asset=complete(table.spec, "table", _of_table(table, stream))) for table in tables),
    )


def topic_of(spec: dg.AssetSpec) -> str:
    """Return the topic of an output."""
    return str(spec.metadata.get(TOPIC, spec.key.path[-1]))


def check_keys(keys: Iterable[dg.AssetKey], stream: str) -> None:
    """Refuse assets that Dagster does not take, or cannot tell apart: it names inputs and results of an op after them.

    Raises BadDeclaration.
    """
    way_out = f'Give it another key: AssetSpec("...", metadata={{"{TOPIC}": ...}}) for an output, or a translator'
    seen: dict[str, dg.AssetKey] = {}
    for key in keys:
        name, said = key.to_python_identifier(), key.to_user_string()
        try:
            check_valid_name(name)
        except dg.DagsterInvalidDefinitionError as error:
            raise BadDeclaration(f"{stream}: Dagster does not allow the asset key {said}: {error} {way_out}") from error
        other = seen.setdefault(name, key)
        if other is not key:
            raise BadDeclaration(
                f"{stream}: Dagster does not distinguish the assets {other.to_user_string()} and {said}. {way_out}"
            )


def lineage_of(lineage: Any, specs: Sequence[dg.AssetSpec], stream: str) -> dict[str, ColumnLineage]:
    """Return what is said of the columns of each output, by topic: of the only one, or of several by topic.

    Raises BadDeclaration.
    """
    topics = [topic_of(spec) for spec in specs]
    if lineage is None:
        return {}
    if len(topics) == 1:
        return {topics[0]: lineage}
    if not isinstance(lineage, Mapping) or set(lineage) - set(topics):
        raise _of_which("column_lineage", topics, stream)
    return dict(lineage)


def _of_which(argument: str, topics: Sequence[str], stream: str) -> BadDeclaration:
    return BadDeclaration(
        f"{stream}: {argument} does not say which of the {len(topics)} outputs it describes. Name the topic: "
        f"{argument}={{'{topics[0]}': ...}}"
    )


def _of_table(table: Table, stream: str) -> dict[str, Any]:
    if table.column_schema is None:
        return {}
    return {COLUMNS: table_schema(table.column_schema, f"{stream}: column_schema of {table.spec.key.to_user_string()}")}


def _columns(
    schemas: ColumnSchema | Mapping[str, ColumnSchema] | None, topics: Sequence[str], stream: str
) -> dict[str, dict[str, Any]]:
    """Return the metadata of the columns, by topic."""
    if schemas is None:
        return {}
    if not isinstance(schemas, Mapping):
        if len(topics) > 1:
            raise _of_which("column_schema", topics, stream)
        schemas = {topics[0]: schemas}
    if unknown := sorted(set(schemas) - set(topics)):
        raise BadDeclaration(
            f"{stream}: column_schema names {unknown[0]}, which is not an output of the stream. Its "
            f"outputs are: {topics}"
        )
    where = f"{stream}: column_schema"
    return {topic: {COLUMNS: table_schema(schema, where)} for topic, schema in schemas.items()}
