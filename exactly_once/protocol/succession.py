"""A retired sink, and where its successor begins: pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from exactly_once.errors import SinkRetired
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.records import Retired

#: Topic -> partition -> the next offset to read.
Ends = Mapping[str, Mapping[int, int]]

#: The first offset that a partition still has, in Spark's ``startingOffsets``.
BEGINNING = -2


def check_not_retired(sink_id: str, state: LogState) -> None:
    """Raise SinkRetired, which names the successor, for a sink that has one."""
    if (retired := state.retired) is not None:
        raise SinkRetired(
            f"sink {sink_id!r} is retired: sink {retired.successor!r} continues after its batch {retired.batch_id}",
            f"Start the stream with sink.id={retired.successor} in place of this one. If the retirement was a mistake, "
            f"and {retired.successor} has written nothing, exactly-once log {sink_id} shows its record and how to undo "
            "it",
        )


def ends_of(retired: Retired) -> dict[str, dict[int, int]]:
    """Return where the input of the last decided batch ended."""
    return {topic: {int(p): offset for p, offset in ends.items()} for topic, ends in retired.offsets.items()}


def option(ends: Ends, sizes: Mapping[str, int], topics: Iterable[str] = ()) -> str:
    """Return Spark's ``startingOffsets`` for a query that continues at ``ends``.

    Spark wants every partition of every topic there, and no other one. A partition that was added after the last one
    of ``ends`` begins at its beginning, as in a query that goes on.

    Parameters
    ----------
    sizes : mapping
        Topic -> its number of partitions now; without a topic whose cluster cannot be asked.
    topics : iterable of str, optional
        The topics that the new query reads. One that the old query did not read begins at its beginning. Default: those
        of the old query.
    """
    found: dict[str, dict[str, int]] = {}
    for topic in sorted(set(topics) or ends):
        known = ends.get(topic, {})
        added = range(max(known, default=-1) + 1, sizes.get(topic, 0))
        found[topic] = {str(p): offset for p, offset in [*sorted(known.items()), *((p, BEGINNING) for p in added)]}
    return json.dumps(found, separators=(",", ":"))
