"""The outputs of a stream, as the declaration says them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import dagster as dg

from dagster_exactly_once.declare.columns import ColumnSchema, table_schema
from dagster_exactly_once.declare.errors import BadDeclaration
from dagster_exactly_once.declare.inputs import check_topic
from dagster_exactly_once.private import check_valid_name

#: On an output's AssetSpec: its topic, where that is not the last part of the asset's key.
TOPIC = "exactly_once/topic"

#: What a declaration takes: an output, or several.
Outputs = dg.AssetSpec | str | Sequence[dg.AssetSpec | str]

#: Where Dagster looks for the columns of an asset.
COLUMNS = "dagster/column_schema"


def outputs_of(
    outputs: Outputs,
    stream: str,
    described: str,
    group_name: str | None,
    owners: Sequence[str] | None,
    tags: Mapping[str, str] | None,
    column_schema: ColumnSchema | Mapping[str, ColumnSchema] | None,
) -> tuple[dg.AssetSpec, ...]:
    """Return the spec of each output, completed with what the declaration says of all.

    Raises
    ------
    BadDeclaration
        No output, a topic that Kafka does not take, one that is named twice, or columns of no output.
    """
    if isinstance(outputs, dg.AssetSpec | str):  # a string is a sequence too, of letters
        outputs = [outputs]
    specs = [o if isinstance(o, dg.AssetSpec) else dg.AssetSpec(dg.AssetKey.from_user_string(o)) for o in outputs]
    if not specs:
        raise BadDeclaration(f"{stream}: outputs is empty. Name the topics that the stream writes")
    counts = Counter(check_topic(topic_of(spec), f"{stream}: outputs") for spec in specs)
    if twice := [topic for topic, count in counts.items() if count > 1]:
        raise BadDeclaration(f"{stream}: outputs names the topic {twice[0]} twice. Name it once")
    columns = _columns(column_schema, list(counts), stream)
    return tuple(
        spec.replace_attributes(
            group_name=spec.group_name or group_name or ...,
            owners=spec.owners or owners or ...,
            tags={**(tags or {}), **spec.tags},
            kinds=spec.kinds | {"kafka", "spark"},
            description=spec.description or described,
            metadata={TOPIC: topic_of(spec), **columns.get(topic_of(spec), {}), **spec.metadata},
            skippable=True,  # a run that is stopped or rotated has completed nothing
        )
        for spec in specs
    )


def topic_of(spec: dg.AssetSpec) -> str:
    """Return the topic of an output."""
    return str(spec.metadata.get(TOPIC, spec.key.path[-1]))


def check_keys(keys: Iterable[dg.AssetKey], stream: str) -> None:
    """Refuse assets that Dagster does not take, or cannot tell apart: it names inputs and results of an op after them.

    Raises
    ------
    BadDeclaration
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


def _columns(
    said: ColumnSchema | Mapping[str, ColumnSchema] | None, topics: Sequence[str], stream: str
) -> dict[str, dict[str, Any]]:
    """Return the metadata of the columns, by topic."""
    if said is None:
        return {}
    if not isinstance(said, Mapping):
        if len(topics) > 1:
            raise BadDeclaration(
                f"{stream}: column_schema does not say which of the {len(topics)} outputs it describes. Name the "
                f"topic: column_schema={{'{topics[0]}': ...}}"
            )
        said = {topics[0]: said}
    if unknown := sorted(set(said) - set(topics)):
        raise BadDeclaration(
            f"{stream}: column_schema names {unknown[0]}, which is not an output of the stream. Its "
            f"outputs are: {topics}"
        )
    where = f"{stream}: column_schema"
    return {topic: {COLUMNS: table_schema(schema, where)} for topic, schema in said.items()}
