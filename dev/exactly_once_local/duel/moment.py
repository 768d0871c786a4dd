"""Find out when both queries are in the middle of a batch: by their checkpoints, and by the brokers' answers."""

from __future__ import annotations

from pathlib import Path

from kafka import TopicPartition
from kafka.admin import KafkaAdminClient, OffsetSpec

from exactly_once_local.duel.kills import InBatch
from exactly_once_local.duel.sinks import OURS, PARTITIONS, SPARKS, Sink, checkpoint


class Moment:
    """A context manager; :meth:`come` looks.

    Parameters
    ----------
    folder : Path
        The driver's.
    """

    def __init__(self, brokers: str, folder: Path):
        self._folder, self._sparks = folder, InBatch()
        self._admin = KafkaAdminClient(bootstrap_servers=brokers)

    def __enter__(self) -> Moment:
        return self

    def __exit__(self, *error: object) -> None:
        self._admin.close()

    def come(self) -> bool:
        """Return whether both have planned a batch that is not committed, and records of it are in their topics.

        Those of Spark's own sink are visible at once; those of ours lie in open transactions, where the last stable
        offset is below the high watermark.
        """
        sparks = self._sparks.seen(*self._batches(SPARKS), self._ends(SPARKS, "read_uncommitted"))
        planned, committed = self._batches(OURS)
        return sparks and planned > committed and self._ends(OURS, "read_committed") < self._ends(OURS)

    def _batches(self, sink: Sink) -> tuple[int, int]:
        """Return the last batch that Spark has planned, and the last that it has committed."""
        return last_batch(self._folder, sink, "offsets"), last_batch(self._folder, sink, "commits")

    def _ends(self, sink: Sink, isolation: str = "read_uncommitted") -> int:
        asked = {TopicPartition(sink.topic, p): OffsetSpec.LATEST for p in range(PARTITIONS)}
        found = self._admin.list_partition_offsets(asked, isolation_level=isolation)
        return sum(int(answer.offset) for answer in found.values())


def last_batch(folder: Path, sink: Sink, log: str) -> int:
    """Return the highest batch in ``offsets`` or ``commits`` of a sink's checkpoint; -1 without one."""
    names = [path.name for path in (checkpoint(folder, sink) / log).glob("*")]
    return max((int(name) for name in names if name.isdigit()), default=-1)
