"""The headers by which a record names its batch: with ``sink.batch.headers=true``, each record has them behind the
headers of its row. Pure.

Tasks of the JVM write the same (``java/exactlyonce/write/BatchHeaders.java``). A row may have headers with these names,
too: the last two headers are the sink's, and only in a part whose handle says that they are there
(:data:`exactly_once.participants.kafka.digest_scope.BATCH`).
"""

from __future__ import annotations

from collections.abc import Sequence

#: The sink's id, and the number of the micro-batch, both as text in UTF-8. A batch write has the number 0.
SINK, BATCH = "__exactly_once.sink", "__exactly_once.batch"

Header = tuple[str, bytes | None]


def pair_of(sink_id: str, batch_id: int) -> tuple[Header, Header]:
    """Return the headers of the records of a batch, in their order."""
    return (SINK, sink_id.encode()), (BATCH, str(batch_id).encode())


def own_headers(headers: Sequence[Header] | None) -> tuple[Sequence[Header], tuple[Header, ...]]:
    """Part the headers of a record: those of its row, and the sink's pair; () where the last two are no such pair."""
    found = headers or ()
    if [name for name, _ in found[-2:]] != [SINK, BATCH]:
        return found, ()
    return found[:-2], tuple(found[-2:])


def row_headers(headers: Sequence[Header] | None) -> tuple[Sequence[Header], tuple[Header, ...]]:
    """Return the headers of a record's row, and the sink's pair behind them, () without one. Headers that an agent in
    the producer's JVM has added behind the pair are in neither.
    """
    found = headers or ()
    ends = (end for end in range(len(found), 1, -1) if own_headers(found[:end])[1])
    return own_headers(found[: next(ends, len(found))])
