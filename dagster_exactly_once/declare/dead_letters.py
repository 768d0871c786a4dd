"""The sink's dead letters in a declaration: the options that follow, and what refuses them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import dagster as dg

from dagster_exactly_once.declare.errors import BadDeclaration
from dagster_exactly_once.declare.outputs import topic_of
from dagster_exactly_once.declare.rejected import DeadLetters
from exactly_once.options import Guarantee
from exactly_once.protocol.dead_letters import IN_HEADER, ORIGIN

if TYPE_CHECKING:
    from dagster_exactly_once.declare.stream import Stream

_OPTION = "sink.dead.letter.topic"
_ONCE = Guarantee.EXACTLY_ONCE.value


def sink_options(
    said: Mapping[str, str], dead: DeadLetters | None, topics: Sequence[dg.AssetSpec], origin: str, stream: str
) -> dict[str, str]:
    """Return the options of the sink, with those of the dead letters, whose topic is the last of ``topics``; these name
    their input where ``origin`` is a header.

    Raises
    ------
    BadDeclaration
        ``dead_letters`` is declared, and ``options`` sets what follows from it.
    """
    if dead is None:
        return dict(said)
    ours = dead.options(topic_of(topics[-1]))
    if origin.startswith(IN_HEADER):
        ours[ORIGIN] = origin
    if twice := sorted(option for option in said if option.lower() in ours):
        raise BadDeclaration(f"{stream}: options names {twice[0]}, which dead_letters sets. Remove it from options")
    return {**said, **ours}


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
