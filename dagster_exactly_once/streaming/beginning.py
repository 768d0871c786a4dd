"""The starting offsets of a stream's sources: those that a person gives, or behind what another sink has decided."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import count

import exactly_once
from dagster_exactly_once.declare.inputs import KafkaTopic
from dagster_exactly_once.declare.start import EARLIEST
from dagster_exactly_once.declare.stream import Stream
from dagster_exactly_once.resources.checkpoints import Offsets
from dagster_exactly_once.streaming.source import offsets_json, source_name
from exactly_once.checkpoint import Checkpoint, beginning_of, source_names
from exactly_once.errors import CheckpointUnusable
from exactly_once.protocol.named_sources import Ends

Sources = Mapping[str, KafkaTopic]


def check_begun(begun: Offsets, stream: Stream, found: Checkpoint) -> None:
    """Refuse other topics than those that the checkpoint began with: Spark's own error speaks of lost input.

    Named sources may be added and dropped. Before its first planned batch Spark may know only some of the sources.
    """
    wanted = set(stream.source_topics)
    if found.last_offsets is None:
        fits = begun.keys() <= wanted
    else:
        fits = found.names_sources or not begun or begun.keys() == wanted
    if not fits:
        raise CheckpointUnusable(
            f"the checkpoint {found.location} began with the topics {', '.join(sorted(begun))}, but the stream "
            f"{stream.name} reads {', '.join(stream.source_topics)}",
            "Name the topics of the checkpoint in source=, or give the stream a new sink_id, with which it begins "
            "again from the start",
            "Nothing was started",
        )


def as_said(sources: Sources, start_from: str, begun: Offsets) -> dict[str, KafkaTopic]:
    """Return the sources with their starts: where the run or the declaration says, if the checkpoint has none yet."""
    return {
        name: replace(topic, start_from=EARLIEST if topic.name in begun else start_from or topic.start_from)
        for name, topic in sources.items()
    }


def named(sources: Sources, location: str, ended: Ends) -> tuple[dict[str, KafkaTopic], dict[str, str]]:
    """Return the sources, and the names of topics by which Spark keeps their offsets.

    A source keeps its name as long as the query reads it. Spark forgets where a topic ``ended`` that the query has
    dropped: it returns under a name that is new, and begins where it ended.
    """
    known = source_names(location)
    names = {t.name: known.get(t.name, source_name(t.name)) for t in sources.values()}
    back = [topic for topic in names if topic not in known and ended.get(topic)]
    for topic in back:
        names[topic] = _unused(location, topic, ended[topic], {*names.values(), *known.values()})
    begins = {topic: offsets_json(topic, ended[topic]) for topic in back}
    return {
        name: replace(t, options={**t.options, "startingOffsets": begins[t.name]}) if t.name in begins else t
        for name, t in sources.items()
    }, names


def _unused(location: str, topic: str, ends: Mapping[int, int], taken: Collection[str]) -> str:
    """Return a name under which no source has read another part of the topic."""
    for n in count(2):
        name = f"{source_name(topic)}_{n}"
        began = beginning_of(location, name)
        if name not in taken and (not began or began.get(topic, {}).items() >= ends.items()):
            return name
    raise AssertionError("unreachable")


def after_older(sources: Sources, stream: Stream, options: Mapping[str, str], begun: bool) -> tuple[Sources, str]:
    """Return the sources of a stream that takes the place of another sink, or reads along with one, and a sentence for
    its log; with a checkpoint (``begun``) they are as they were. Each begins where that sink's last decided batch ends.

    Raises Refused while the sink whose place it takes is not retired for this one, also with a checkpoint: one that has
    read along so far would write beside it.
    """
    old = stream.continues or stream.beside
    if begun:
        if stream.continues:
            exactly_once.starting_offsets(options, old)
        return sources, ""

    def begins(topic: KafkaTopic) -> KafkaTopic:
        at = exactly_once.starting_offsets(options, old, topic.name, beside=bool(stream.beside))
        return replace(topic, start_from=EARLIEST, options={**topic.options, "startingOffsets": at})

    found = {name: begins(topic) for name, topic in sources.items()}
    said = "continues" if stream.continues else "reads along with"
    return found, f"The stream {said} sink {old}, after its last decided batch."
