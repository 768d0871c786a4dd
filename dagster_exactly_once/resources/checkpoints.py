"""The locations of the streams' checkpoints, and their progress: no Spark, no JVM, milliseconds."""

from __future__ import annotations

from dagster import ConfigurableResource
from pydantic import Field

from dagster_exactly_once.resources.kafka import KafkaTransactionalProducerFactory
from exactly_once.checkpoint import (
    Checkpoint,
    first_offsets,
    listed,
    read_checkpoint,
    read_text,
    torn_files,
    was_read,
)
from exactly_once.commitlog.commit_log import read_log
from exactly_once.inspection.progress import Offsets, StreamProgress, compare, lag, parse_offsets
from exactly_once.kafka.connection import Connection
from exactly_once.protocol.checkpoint_text import names_sources, state_ids_of, watermark_ms

__all__ = ["CheckpointReader", "Offsets", "StreamProgress", "compare", "lag", "parse_offsets"]

#: The line of ``offsets/N`` of a source that had nothing yet; where lines name their sources, it has none.
_NOTHING_YET = "-"


class CheckpointReader(ConfigurableResource):
    """Finds checkpoints, and reads their progress."""

    root: str = Field(description="Folder (or URI) of all checkpoints: <root>/<cluster id>/<sink id>.")

    def location(self, cluster_id: str, sink_id: str) -> str:
        """Return the checkpoint location of a stream on one cluster: a checkpoint holds offsets of that cluster."""
        return f"{self.root.rstrip('/')}/{cluster_id}/{sink_id}"

    def read(self, location: str) -> Checkpoint:
        """Read the checkpoint at ``location``; see :func:`exactly_once.checkpoint.read_checkpoint`."""
        return read_checkpoint(location)

    def committed_offsets(self, location: str) -> Offsets:
        """Return the end offsets of the last batch that Spark committed, by topic and partition. Before that batch:
        where the stream began; before the first start: empty. A topic that named sources have dropped has no partition.

        Raises
        ------
        CheckpointUnusable
            When the checkpoint cannot be read, or one of its files is torn.
        """
        checkpoint = read_checkpoint(location)
        if checkpoint.torn:
            raise torn_files(location, checkpoint.torn)
        if checkpoint.last_commit is None:
            return self.first_offsets(location)
        last = checkpoint.last_commit
        text = read_text(location, f"offsets/{last}")
        named, read = names_sources(text), parse_offsets(text)
        began = self.first_offsets(location) if named or _NOTHING_YET in text.splitlines() else {}
        others = {topic: at for topic, at in began.items() if topic not in read}
        return {t: {} if named and was_read(location, t, last) else at for t, at in others.items()} | dict(read)

    def first_offsets(self, location: str) -> Offsets:
        """Return where the stream's Kafka sources began, by topic and partition; empty before the first start.

        Spark fixes it once, before the first batch, and keeps it as long as the checkpoint.

        Raises CheckpointUnusable.
        """
        return first_offsets(location)

    def watermark_ms(self, location: str) -> int:
        """Return the watermark of the last batch that Spark committed, in ms since the epoch; 0 without one.

        Raises CheckpointUnusable.
        """
        last = read_checkpoint(location).last_commit
        return 0 if last is None else watermark_ms(read_text(location, f"offsets/{last}"))

    def keeps_state_ids(self, location: str) -> bool:
        """Return whether the last batch that Spark committed names its files of state (state format 2).

        Raises CheckpointUnusable.
        """
        last = read_checkpoint(location).last_commit
        return last is not None and state_ids_of(read_text(location, f"commits/{last}"))

    def marked_ms(self, location: str, after: int) -> dict[int, int]:
        """Return when Spark committed each batch after ``after``, in ms of the file system's clock.

        Raises CheckpointUnusable.
        """
        return {
            int(mark.base_name): mark.mtime_ns // 1_000_000
            for mark in listed(location, "commits")
            if mark.base_name.isdigit() and int(mark.base_name) > after and mark.mtime_ns is not None
        }


#: Seconds for each query of the brokers.
READ_BUDGET_S = 20.0


def checkpoint_of(
    connection: Connection, sink_id: str, kafka: KafkaTransactionalProducerFactory, checkpoints: CheckpointReader
) -> str:
    """Return the checkpoint of the sink's last claim; for a sink that was never used, its future location.

    Raises BrokerUnreachable, CommitLogDamaged or NotAuthorized.
    """
    owner = read_log(connection, sink_id, READ_BUDGET_S).owner
    if owner is not None and owner.checkpoint:
        return owner.checkpoint
    return checkpoints.location(kafka.cluster_id(), sink_id)
