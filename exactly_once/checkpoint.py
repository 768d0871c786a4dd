"""A Spark checkpoint, read without Spark: which query, which batch, where it stands.

Layout (Spark 4.2, HDFSMetadataLog): ``metadata`` holds the query id; ``offsets/N`` is written before batch N runs and
``commits/N`` after it. Other names in these folders (checksums, temporary files) are not batches.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlparse

import pyarrow.fs as pafs

from exactly_once.errors import CheckpointUnusable, UnsupportedMode
from exactly_once.protocol.planning import Batch


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where a checkpoint stands.

    Attributes
    ----------
    query_id : str or None
        None when there is no checkpoint yet.
    last_offsets, last_commit : int or None
        The highest batch id in ``offsets/`` and in ``commits/``.
    batch_started_ms : int or None
        The driver's clock when the last batch was planned.
    source_offsets : tuple of str
        The sources' end offsets of the last batch, as Spark wrote them.
    """

    location: str
    query_id: str | None = None
    last_offsets: int | None = None
    last_commit: int | None = None
    batch_started_ms: int | None = None
    source_offsets: tuple[str, ...] = ()

    @property
    def in_flight(self) -> int | None:
        """The batch that is planned and not yet committed by Spark."""
        return self.last_offsets if self.last_offsets != self.last_commit else None


def read_checkpoint(location: str) -> Checkpoint:
    """Read the checkpoint at ``location``: a path, or a URI of a file system that pyarrow knows (file, hdfs, s3, gs,
    abfs).

    Returns
    -------
    Checkpoint
        With ``query_id`` None when nothing is there yet.

    Raises
    ------
    CheckpointUnusable
        When the location cannot be read.
    """
    return _Reader(location).checkpoint()


def batch_in_flight(location: str) -> Batch:
    """The micro-batch that Spark is about to write.

    Spark writes ``offsets/N`` before it plans batch N, and ``commits/N`` after it: in a micro-batch query there is
    always exactly one such batch at this point. In continuous and in real-time mode there is none.

    Raises
    ------
    CheckpointUnusable
        When the location cannot be read.
    UnsupportedMode
        When no batch is in flight.
    """
    reader = _Reader(location)
    checkpoint = reader.checkpoint()
    if checkpoint.query_id is None:
        raise CheckpointUnusable(
            f"there is no checkpoint at {location}, although the query runs",
            "Use a location that driver and executors reach under the same name, and that the driver's Python can read",
        )
    if checkpoint.in_flight is None:
        raise UnsupportedMode(
            "Spark has planned no micro-batch in the checkpoint: the query runs in continuous or real-time mode, "
            "where a batch "
            "does not name a fixed range of input",
            "Use trigger(processingTime=...) or trigger(availableNow=True)",
        )
    sources = source_lines(reader.text(f"offsets/{checkpoint.in_flight}"))
    digest = hashlib.sha256("\n".join(sources).encode()).hexdigest()
    return Batch(checkpoint.query_id, checkpoint.in_flight, digest, tuple(sources))


def kafka_offsets(sources: Iterable[str]) -> dict[str, dict[int, int]]:
    """Topic -> partition -> next offset to read, from the source lines of an ``offsets/N``, with or without a source's
    number before them; other sources have none.

    Where two sources read one partition, the one that is behind counts.
    """
    found: dict[str, dict[int, int]] = {}
    for line in sources:
        try:
            topics = json.loads(line if line.startswith("{") else line.partition(":")[2])
            read = {t: {int(p): int(o) for p, o in partitions.items()} for t, partitions in topics.items()}
        except (ValueError, TypeError, AttributeError):
            continue
        for topic, offsets in read.items():
            known = found.setdefault(topic, {})
            known |= {p: min(o, known.get(p, o)) for p, o in offsets.items()}
    return found


def source_lines(offsets: str) -> list[str]:
    """The lines of an ``offsets/N`` file that name the input: one for each source, behind version and settings."""
    return offsets.rstrip("\n").split("\n")[2:]


def file_system(location: str) -> tuple[pafs.FileSystem, str]:
    """The file system of a location, and the path in it, without a slash at its end."""
    if not urlparse(location).scheme:
        return pafs.LocalFileSystem(), location.rstrip("/")
    # Hadoop writes file:/path and file:///path; pyarrow knows only the second
    uri = re.sub(r"^file:/(?!/)", "file:///", location)
    uri = re.sub(r"^s3[an]:", "s3:", uri)  # Hadoop's names of the same thing
    files, root = pafs.FileSystem.from_uri(uri)
    return files, root.rstrip("/")


class _Reader:
    def __init__(self, location: str):
        self._location = location
        try:
            self._fs, self._root = file_system(location)
        except Exception as e:
            raise self._unusable(e) from e

    def checkpoint(self) -> Checkpoint:
        try:
            if self._fs.get_file_info(f"{self._root}/metadata").type == pafs.FileType.NotFound:
                return Checkpoint(self._location)
            query_id = json.loads(self.text("metadata"))["id"]
            last_offsets, last_commit = self._highest("offsets"), self._highest("commits")
            if last_offsets is None:
                return Checkpoint(self._location, query_id)
            _, head, *sources = self.text(f"offsets/{last_offsets}").rstrip("\n").split("\n")
            return Checkpoint(
                self._location,
                query_id,
                last_offsets,
                last_commit,
                json.loads(head).get("batchTimestampMs"),
                tuple(sources),
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
            raise self._unusable(e) from e

    def text(self, name: str) -> str:
        with self._fs.open_input_stream(f"{self._root}/{name}") as f:
            return bytes(f.read()).decode()

    def _highest(self, folder: str) -> int | None:
        found = self._fs.get_file_info(pafs.FileSelector(f"{self._root}/{folder}", allow_not_found=True))
        return max((int(i.base_name) for i in found if i.base_name.isdigit()), default=None)

    def _unusable(self, e: Exception) -> CheckpointUnusable:
        return CheckpointUnusable(
            f"the checkpoint location {self._location} cannot be read by the driver's Python ({type(e).__name__}: {e})",
            "Use a path, or a file system that pyarrow knows (file, hdfs, s3, gs, abfs) with its settings in the "
            "environment",
        )
