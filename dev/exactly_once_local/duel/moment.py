"""Find out when both queries are in the middle of a batch: by their checkpoints, and by the brokers' answers."""

from __future__ import annotations

from pathlib import Path

from kafka.admin import KafkaAdminClient

from exactly_once_local.duel.kills import InBatch
from exactly_once_local.duel.reader import ends, places_of
from exactly_once_local.duel.sinks import OURS, SPARKS, Sink, checkpoint


class Moment:
    """Looks whether the moment has :meth:`come`, until it is closed.

    Parameters
    ----------
    folder : Path
        The driver's.
    """

    def __init__(self, brokers: str, folder: Path):
        self._folder, self._sparks = folder, InBatch()
        self._admin = KafkaAdminClient(bootstrap_servers=brokers)

    def close(self) -> None:
        """Close its connections."""
        self._admin.close()

    def come(self) -> bool:
        """Return whether both have planned a batch that is not committed, and records of it are in their topics.

        Those of Spark's own sink are visible at once; those of ours lie in open transactions, where the last stable
        offset is below the high watermark.
        """
        sparks = self._sparks.seen(*self._batches(SPARKS), self._end(SPARKS))
        planned, committed = self._batches(OURS)
        return sparks and planned > committed and self._end(OURS, "read_committed") < self._end(OURS)

    def _batches(self, sink: Sink) -> tuple[int, int]:
        """Return the last batch that Spark has planned, and the last that it has committed."""
        return last_batch(self._folder, sink, "offsets"), last_batch(self._folder, sink, "commits")

    def _end(self, sink: Sink, isolation: str = "read_uncommitted") -> int:
        return sum(ends(self._admin, places_of(sink.topic), isolation).values())


def last_batch(folder: Path, sink: Sink, log: str) -> int:
    """Return the highest batch in ``offsets`` or ``commits`` of a sink's checkpoint; -1 without one."""
    names = [path.name for path in (checkpoint(folder, sink) / log).glob("*")]
    return max((int(name) for name in names if name.isdigit()), default=-1)
