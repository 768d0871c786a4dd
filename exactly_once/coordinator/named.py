"""Named sources at the plan of a batch: where the topics ended that the query no longer reads, and none read twice."""

from __future__ import annotations

import json
from collections.abc import Callable

from exactly_once.checkpoint import ended_before, repair_command
from exactly_once.errors import CheckpointRewound
from exactly_once.options import SinkOptions
from exactly_once.protocol.named_sources import Ends
from exactly_once.protocol.planning import Batch, history_consent
from exactly_once.protocol.records import Decision


def checked_ends(options: SinkOptions, batch: Batch, last: Decision | None, adopts: Callable[[], bool]) -> Ends | None:
    """Return where each topic ended that the query has read and ``batch``, which is not decided, does not; None where
    Spark counts the sources.

    The decision of the batch before says it. Where it does not (the first batch after one of an earlier version, or of
    a weaker guarantee) the checkpoint does, which has the offsets of the last hundred batches.

    Parameters
    ----------
    last : Decision or None
        The last decision of the query.
    adopts
        Whether the user consents to a topic of which nobody can tell whether it was read; asked only when that is
        needed.

    Raises
    ------
    CheckpointRewound
        When a source would read a topic again that an earlier batch has read.
    """
    if batch.named is None:
        return None
    if batch.batch_id == 0:
        before: Ends = {}
    elif last is not None and last.batch_id == batch.batch_id - 1 and last.ended is not None:
        before = last.ended
    else:
        before = ended_before(options.checkpoint, batch.batch_id)
    for topic in sorted(batch.named.joined.keys() & before.keys()):
        _check_returned(options, batch, topic, before, adopts)
    return batch.named.dropped(before)


def _check_returned(options: SinkOptions, batch: Batch, topic: str, before: Ends, adopts: Callable[[], bool]) -> None:
    """Refuse a source that does not begin where its topic ended."""
    assert batch.named is not None
    joined, ends = batch.named.joined[topic], before[topic]
    anew = f"make Spark plan the batch again: {repair_command(options.checkpoint, options.sink_id)} --plan-anew --apply"
    if joined.repeats(ends):
        wanted = json.dumps({topic: ends})
        raise CheckpointRewound(
            f"the source {joined.name} would read the topic {topic} again: an earlier batch had read it up to "
            f"{json.dumps(ends)}, and no source has read it since",
            f"Remove the source, or give it a new name and the startingOffsets {wanted}. Then {anew}",
        )
    if not ends and not adopts():
        raise CheckpointRewound(
            f"an earlier batch may have read the topic {topic}, which the source {joined.name} would read from where "
            "it began: neither the commit log nor the checkpoint says how far",
            f"If no batch has read it, set the option sink.adopt={history_consent(batch)} for one start. Otherwise "
            f"leave the source out, and {anew}",
        )
