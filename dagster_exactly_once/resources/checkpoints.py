"""The locations of the streams' checkpoints, and their progress: no Spark, no JVM, milliseconds."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow.fs as pafs
from dagster import ConfigurableResource
from pydantic import Field

from exactly_once.checkpoint import Checkpoint, file_system, kafka_offsets, read_checkpoint, torn_files
from exactly_once.errors import CheckpointUnusable
from exactly_once.ops.standing import Offsets, Standing, by_partition, compare, lag, parse_offsets

__all__ = ["CheckpointReader", "Offsets", "Standing", "compare", "lag", "parse_offsets"]

#: Spark keeps in sources/<n>/0 where the n-th source of a query began.
_SOURCES = "sources"
_BEGINNING = re.compile(rf"{_SOURCES}/\d+/0$")

#: In ``offsets/N``, the line of a source that had nothing yet.
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
        where the stream began; before the first start: empty.

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
        text = _read_text(location, f"offsets/{checkpoint.last_commit}")
        began = self.first_offsets(location) if _NOTHING_YET in text.splitlines() else {}
        return {**began, **parse_offsets(text)}

    def first_offsets(self, location: str) -> Offsets:
        """Return where the stream's Kafka sources began, by topic and partition; empty before the first start.

        Spark fixes it once, before the first batch, and keeps it as long as the checkpoint.

        Raises
        ------
        CheckpointUnusable
        """
        with _reading(location, _SOURCES):
            files, root = file_system(location)
            found = files.get_file_info(pafs.FileSelector(f"{root}/{_SOURCES}", allow_not_found=True, recursive=True))
        names = [match.group() for f in found if (match := _BEGINNING.search(f.path))]
        return kafka_offsets(_first(location, name) for name in sorted(names))

    def batch_ends(self, location: str) -> Iterator[tuple[int, Offsets]]:
        """Return the committed batches that the checkpoint still holds, newest first, with their end offsets.

        Raises
        ------
        CheckpointUnusable
        """
        planned = _listed(location, "offsets")
        last = read_checkpoint(location).last_commit
        numbers = sorted((int(f.base_name) for f in planned if f.base_name.isdigit()), reverse=True)
        for batch_id in numbers:
            if last is not None and batch_id <= last:
                yield batch_id, parse_offsets(_read_text(location, f"offsets/{batch_id}"))

    def marked_ms(self, location: str, after: int) -> dict[int, int]:
        """Return when Spark committed each batch after ``after``, in ms of the file system's clock.

        Raises
        ------
        CheckpointUnusable
        """
        return {
            int(mark.base_name): mark.mtime_ns // 1_000_000
            for mark in _listed(location, "commits")
            if mark.base_name.isdigit() and int(mark.base_name) > after and mark.mtime_ns is not None
        }


def _first(location: str, name: str) -> str:
    """Return the offsets in a file of :data:`_SOURCES`, as JSON."""
    text = _read_text(location, name)
    try:
        offsets = text[text.index("{") :]  # behind a zero byte and a version
        by_partition(json.loads(offsets))
    except ValueError as e:
        raise CheckpointUnusable(
            f"{name} of the checkpoint {location} does not say where the stream began ({e})",
            "Restore the checkpoint: only the checkpoint says which input the stream owns",
        ) from e
    return offsets


def _listed(location: str, folder: str) -> list[pafs.FileInfo]:
    with _reading(location, folder):
        files, root = file_system(location)
        return list(files.get_file_info(pafs.FileSelector(f"{root}/{folder}", allow_not_found=True)))


def _read_text(location: str, name: str) -> str:
    with _reading(location, name):
        files, root = file_system(location)
        with files.open_input_stream(f"{root}/{name}") as stream:
            return bytes(stream.read()).decode()


@contextmanager
def _reading(location: str, name: str) -> Iterator[None]:
    """An object store that does not answer, or refuses, is an error with a way out."""
    try:
        yield
    except (OSError, ValueError) as e:
        raise CheckpointUnusable(
            f"{name} of the checkpoint {location} cannot be read ({type(e).__name__}: {e})",
            "Check that the location exists and that this process may read it",
        ) from e
