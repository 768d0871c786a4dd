"""How far a stream is, read from its checkpoint and its commit log: no Spark, no JVM, milliseconds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow.fs as pafs
from dagster import ConfigurableResource
from pydantic import Field

from exactly_once.checkpoint import Checkpoint, file_system, read_checkpoint, source_lines
from exactly_once.errors import CheckpointUnusable
from exactly_once.kafka.raw import Watermarks
from exactly_once.protocol.log_state import LogState

#: topic -> partition -> offset, as Spark writes it.
Offsets = Mapping[str, Mapping[int, int]]


@dataclass(frozen=True)
class Standing:
    """What checkpoint and commit log say together.

    Attributes
    ----------
    state : str
        ``unused``: neither has a batch. ``settled``: every planned batch is committed by Spark. ``in flight``: one is
        planned and not decided. ``in doubt``: one is decided, and Spark has not marked it; the next start drains it.
        ``checkpoint lost``: the log holds decisions that the checkpoint cannot have forgotten (it was deleted, restored
        or rewound); ``foreign``: the sink belongs to another query.
    open_decisions : tuple of int
        Batches that are decided and not yet proven committed.
    """

    state: str
    query_id: str | None
    last_planned: int | None
    last_committed: int | None
    last_decided: int | None
    open_decisions: tuple[int, ...]
    batch_started_ms: int | None

    def as_metadata(self) -> dict[str, Any]:
        """The standing as plain values, without those that are not known."""
        values = {**asdict(self), "open_decisions": list(self.open_decisions)}
        return {name: value for name, value in values.items() if value is not None}


def compare(checkpoint: Checkpoint, log: LogState) -> Standing:
    """Judge a checkpoint against the commit log of its sink."""
    last = log.last_decision(checkpoint.query_id) if checkpoint.query_id else None
    decided = last.batch_id if last else None
    bound = log.owner.query_id if log.owner else None
    if bound is not None and checkpoint.query_id is None:
        state = "checkpoint lost"
    elif bound is not None and bound != checkpoint.query_id:
        state = "foreign"
    elif decided is not None and decided > _number(checkpoint.last_offsets):
        state = "checkpoint lost"
    elif checkpoint.last_offsets is None:
        state = "unused"
    elif checkpoint.in_flight is None:
        state = "settled"
    else:
        state = "in doubt" if decided == checkpoint.in_flight else "in flight"
    return Standing(
        state,
        checkpoint.query_id,
        checkpoint.last_offsets,
        checkpoint.last_commit,
        decided,
        tuple(d.batch_id for d in log.open_decisions),
        checkpoint.batch_started_ms,
    )


def lag(committed: Offsets, topic: str, watermarks: Mapping[int, Watermarks]) -> int:
    """Offsets between what Spark has committed and what a read_committed reader could read (markers included)."""
    done = committed.get(topic, {})
    return sum(max(0, w.last_stable - max(w.low, done.get(p, 0))) for p, w in watermarks.items())


class CheckpointReader(ConfigurableResource):
    """Where checkpoints are, and how far they are."""

    root: str = Field(description="Folder (or URI) of all checkpoints: <root>/<cluster id>/<sink id>.")

    def location(self, cluster_id: str, sink_id: str) -> str:
        """The checkpoint location of a stream. It holds offsets of one cluster, so another cluster gets another one."""
        return f"{self.root.rstrip('/')}/{cluster_id}/{sink_id}"

    def read(self, location: str) -> Checkpoint:
        """The checkpoint at ``location``; see :func:`exactly_once.checkpoint.read_checkpoint`."""
        return read_checkpoint(location)

    def committed_offsets(self, location: str) -> Offsets:
        """The end offsets of the last batch that Spark committed, by topic and partition; empty before the first.

        Raises
        ------
        CheckpointUnusable
            When the checkpoint cannot be read.
        """
        checkpoint = read_checkpoint(location)
        if checkpoint.last_commit is None:
            return {}
        return parse_offsets(_read_text(location, f"offsets/{checkpoint.last_commit}"))

    def marked_ms(self, location: str, after: int) -> dict[int, int]:
        """When Spark marked each batch after ``after`` as done, in ms of the file system's clock."""
        files, root = file_system(location)
        marks = files.get_file_info(pafs.FileSelector(f"{root}/commits", allow_not_found=True))
        return {
            int(mark.base_name): mark.mtime_ns // 1_000_000
            for mark in marks
            if mark.base_name.isdigit() and int(mark.base_name) > after and mark.mtime_ns is not None
        }


def parse_offsets(text: str) -> Offsets:
    """The Kafka offsets in the text of one ``offsets/N`` file."""
    found: dict[str, dict[int, int]] = {}
    for line in source_lines(text):
        source = line if line.startswith("{") else line.partition(":")[2]
        if source.startswith("{"):
            for topic, partitions in json.loads(source).items():
                found[topic] = {int(p): int(offset) for p, offset in partitions.items()}
    return found


def _read_text(location: str, name: str) -> str:
    try:
        files, root = file_system(location)
        with files.open_input_stream(f"{root}/{name}") as stream:
            return bytes(stream.read()).decode()
    except (OSError, ValueError) as e:
        raise CheckpointUnusable(
            f"{name} of the checkpoint {location} cannot be read ({type(e).__name__}: {e})",
            "Check that the location exists and that this process may read it",
        ) from e


def _number(batch_id: int | None) -> int:
    return -1 if batch_id is None else batch_id
