"""The options of a stream's sink that name a schema registry, and what follows from them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from exactly_once.registry.schema_options import REGISTRY_PREFIXES

_TOPIC = "schema.registry.topic"


def with_topic(options: Mapping[str, str], topics: Sequence[str]) -> dict[str, str]:
    """Return ``options``, by which subjects are named after the only one of ``topics``, as they are after the sink's
    option ``topic``: a stream has none, since its rows name their topics.
    """
    names = {option.lower() for option in options}
    if len(topics) != 1 or _TOPIC in names or not any(name.startswith(REGISTRY_PREFIXES) for name in names):
        return dict(options)
    return {**options, _TOPIC: topics[0]}


def without_registry(options: Mapping[str, str]) -> dict[str, str]:
    """Return ``options`` for records that have their final bytes: nothing encodes them, or puts a schema id before."""
    return {option: value for option, value in options.items() if not option.lower().startswith(REGISTRY_PREFIXES)}


def encodes_values(options: Mapping[str, str]) -> bool:
    """Return whether the sink encodes values by a schema: of a row that does not fit, the dead letter has JSON."""
    return any(option.lower() == "value.format" for option in options)
