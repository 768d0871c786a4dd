"""The options of a stream's sink that follow from its declaration, for dead letters and for a schema registry. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import dagster as dg

from dagster_exactly_once.declare.errors import BadDeclaration
from dagster_exactly_once.declare.outputs import topic_of
from dagster_exactly_once.declare.rejected import DeadLetters
from exactly_once.options import Guarantee
from exactly_once.protocol.dead_letters import IN_HEADER, ORIGIN
from exactly_once.schema_options import REGISTRY_PREFIXES

if TYPE_CHECKING:
    from dagster_exactly_once.declare.stream import Stream


_OPTION = "sink.dead.letter.topic"
_ONCE = Guarantee.EXACTLY_ONCE.value


def sink_options(
    options: Mapping[str, str], dead: DeadLetters | None, topics: Sequence[dg.AssetSpec], origin: str, stream: str
) -> dict[str, str]:
    """Return the options of the sink, with those of the dead letters, whose topic is the last of ``topics``; these name
    their input where ``origin`` is a header. Raises BadDeclaration where ``options`` sets what follows from them.
    """
    if dead is None:
        return dict(options)
    ours = dead.options(topic_of(topics[-1]))
    if origin.startswith(IN_HEADER):
        ours[ORIGIN] = origin
    if twice := sorted(option for option in options if option.lower() in ours):
        raise BadDeclaration(f"{stream}: options names {twice[0]}, which dead_letters sets. Remove it from options")
    return {**options, **ours}


def check_dead_letters(stream: Stream) -> None:
    """Refuse dead letters, also those of ``options`` alone, that the sink would refuse when the stream starts.

    Raises BadDeclaration.
    """
    options = {option.lower(): value for option, value in stream.options.items()}
    topic = stream.dead_topic or options.get(_OPTION)
    if topic is None:
        return
    said = _OPTION if stream.dead_letters is None else DeadLetters.argument
    if stream.dead_letters is None and topic == stream.rejected_topic:  # the first rejected row would stop the stream
        raise BadDeclaration(f"{stream.name}: rejected and {_OPTION} both name {topic}. Name two topics")
    if others := "outputs names a table" if stream.tables else "participants is set" if stream.participants else "":
        raise BadDeclaration(
            f"{stream.name}: {said} is for a stream that writes to Kafka alone, since a row that Kafka cannot take "
            f"would be in the other outputs, and {others}. Leave one of the two out"
        )
    if stream.dead_letters is None:
        return
    if options.get("sink.guarantee", _ONCE).lower() != _ONCE:
        raise BadDeclaration(
            f"{stream.name}: dead_letters needs sink.guarantee={_ONCE}, since under a weaker one a row could be in "
            "both topics or in none. Remove sink.guarantee or dead_letters"
        )


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
