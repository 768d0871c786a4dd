"""The progress of a stream, from its checkpoint and its commit log: no Spark, no JVM, milliseconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from exactly_once.checkpoint import Checkpoint, repair_command
from exactly_once.kafka.admin import Watermarks
from exactly_once.protocol.checkpoint_text import kafka_offsets, source_lines
from exactly_once.protocol.input_topics import advice, standing_of
from exactly_once.protocol.log_state import LogState

#: topic -> partition -> offset, as Spark writes it.
Offsets = Mapping[str, Mapping[int, int]]


@dataclass(frozen=True)
class StreamProgress:
    """The progress of a stream, by checkpoint and commit log together.

    Attributes
    ----------
    state : str
        ``unused``: neither has a batch. ``settled``: Spark has committed every planned batch. ``in flight``: a batch is
        planned but not decided. ``in doubt``: a batch is decided, but Spark has not committed it; the next start drains
        it. ``checkpoint lost``: the checkpoint lacks decided batches (it was deleted, restored or rewound).
        ``foreign``: the sink belongs to another query. ``torn``: the next start fails on a torn file.
    open_decisions : tuple of int
        Batches that are decided but not yet proven committed.
    """

    state: str
    query_id: str | None
    last_planned: int | None
    last_committed: int | None
    last_decided: int | None
    open_decisions: tuple[int, ...]
    batch_started_ms: int | None
    torn: tuple[str, ...] = ()

    def without_input(self, location: str, sink_id: str) -> tuple[str, str]:
        """Return what is missing in the output if Spark cannot read the input of the next batch any more, and what to
        do (:func:`~exactly_once.protocol.input_topics.advice`).
        """
        done = -1 if self.last_committed is None else self.last_committed
        batch = self.last_planned if self.state in ("in doubt", "in flight") else done + 1
        decided = () if self.last_decided is None else (self.last_decided,)
        standing = standing_of(batch or 0, decided, self.open_decisions)
        return advice(batch or 0, standing, repair_command(location, sink_id))

    def as_metadata(self) -> dict[str, Any]:
        """Return the values that are known, as plain ones."""
        values = {**asdict(self), "open_decisions": list(self.open_decisions), "torn": list(self.torn) or None}
        return {name: value for name, value in values.items() if value is not None}


def compare(checkpoint: Checkpoint, log: LogState) -> StreamProgress:
    """Compare a checkpoint with the commit log of its sink."""
    bound = log.owner.query_id if log.owner else None
    query_id = checkpoint.query_id or bound  # of a checkpoint that is gone: what it lacks
    last = log.last_decision(query_id) if query_id else None
    decided = last.batch_id if last else None
    if checkpoint.torn and (bound is None or checkpoint.query_id in (None, bound)):
        state = "torn"
    elif bound is not None and checkpoint.query_id is None:
        state = "checkpoint lost"
    elif bound is not None and bound != checkpoint.query_id:
        state = "foreign"
    elif decided is not None and decided > (-1 if checkpoint.last_offsets is None else checkpoint.last_offsets):
        state = "checkpoint lost"
    elif checkpoint.last_offsets is None:
        state = "unused"
    elif checkpoint.in_flight is None:
        state = "settled"
    else:
        state = "in doubt" if decided == checkpoint.in_flight else "in flight"
    return StreamProgress(
        state,
        checkpoint.query_id,
        last_planned=checkpoint.last_offsets,
        last_committed=checkpoint.last_commit,
        last_decided=decided,
        open_decisions=tuple(d.batch_id for d in log.open_decisions),
        batch_started_ms=checkpoint.batch_started_ms,
        torn=tuple(checkpoint.torn),
    )


def lag(committed: Offsets, topic: str, watermarks: Mapping[int, Watermarks]) -> int:
    """Count the offsets that a read_committed reader could read and Spark has not committed (markers included). None
    waits in a topic that is ``committed`` without a partition: the query reads it no more.
    """
    if topic in committed and not committed[topic]:
        return 0
    done = committed.get(topic, {})
    return sum(max(0, w.last_stable - max(w.low, done.get(p, 0))) for p, w in watermarks.items())


def parse_offsets(text: str) -> Offsets:
    """Return the Kafka offsets in the text of one ``offsets/N`` file."""
    return kafka_offsets(source_lines(text))
