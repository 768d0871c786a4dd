"""The starting offsets of a stream's sources: those that a person gives, or behind what another sink has decided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import exactly_once
from dagster_exactly_once.declare.inputs import KafkaTopic
from dagster_exactly_once.declare.start import EARLIEST
from dagster_exactly_once.declare.stream import Stream
from dagster_exactly_once.resources.checkpoints import Offsets
from exactly_once.errors import CheckpointUnusable

Sources = Mapping[str, KafkaTopic]


def check_begun(begun: Offsets, stream: Stream, checkpoint: str, counted: bool) -> None:
    """Refuse other topics than those that the checkpoint began with: Spark's own error speaks of lost input.

    Only where Spark has ``counted`` the sources may there be no further one: before its first planned batch it may know
    only some of them, and named sources may be added.
    """
    wanted = set(stream.source_topics)
    if not begun.keys() <= wanted or (counted and begun and begun.keys() != wanted):
        raise CheckpointUnusable(
            f"the checkpoint {checkpoint} began with the topics {', '.join(sorted(begun))}, but the stream "
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
