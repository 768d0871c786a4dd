"""Reads a Spark checkpoint without Spark: its query, its batches, its torn files.

Layout (Spark 4.2, HDFSMetadataLog): ``metadata`` holds the query id; Spark writes ``offsets/N`` before it runs batch N
and ``commits/N`` after it. Other names in these folders (checksums, temporary files) are not batches.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from exactly_once import hdfs, s3
from exactly_once import location as locations
from exactly_once.errors import CheckpointAway, CheckpointRewound, CheckpointUnusable, ExactlyOnceError, UnsupportedMode
from exactly_once.protocol.checkpoint_text import (
    digest_of,
    fault_of,
    kafka_offsets,
    names_sources,
    query_id_of,
    source_lines,
    state_ids_of,
)
from exactly_once.protocol.named_sources import NamedSources, compared, of_first, readers
from exactly_once.protocol.planning import Batch

if TYPE_CHECKING:
    import pyarrow.fs as pafs

#: Bytes of ``offsets/N`` up to which a decision keeps the text. It has 2 KB of settings and some 20 bytes for each
#: input partition, so three thousand partitions fit; and the log's 64 decisions stay below 4 MiB.
LONGEST_KEPT_OFFSETS = 64 * 1024

#: Addition to an error about a location without a scheme, where a process cannot ask Spark's session.
OR_ELSEWHERE = "; where Spark's default file system (fs.defaultFS) is another one, write the location with its scheme"

#: Errors of reading a file; RuntimeError is that of hdfs-native, for whatever a server says.
_UNREADABLE = (OSError, ValueError, RuntimeError)

#: Folder in which Spark keeps, as <number or name>/0, where a source of a query began.
_SOURCES = "sources"
_STATE_VERSION = re.compile(r"/(\d+)(?:_[0-9a-f-]+)?\.(?:delta|snapshot|zip|changelog)$")
_BEGINNING = re.compile(rf"{_SOURCES}/[A-Za-z0-9_]+/0$")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state of a checkpoint.

    ``query_id`` is None when there is no checkpoint yet, or when ``metadata`` is torn. ``last_offsets`` is the highest
    batch id in ``offsets/``, ``last_commit`` that of a whole file in ``commits/``; between its first and last file
    there lack ``commits_lack``. Of the last batch are the driver's clock when it was planned, the sources' end offsets
    as Spark wrote them, and whether it names its sources, so that the query may get one more. ``torn`` has the faults
    of files on which the next start would fail.
    """

    location: str
    query_id: str | None = None
    last_offsets: int | None = None
    last_commit: int | None = None
    batch_started_ms: int | None = None
    source_offsets: tuple[str, ...] = ()
    torn: Mapping[str, str] = field(default_factory=dict)
    names_sources: bool = False
    commits_lack: int = 0

    @property
    def in_flight(self) -> int | None:
        """The batch that Spark has planned and not yet committed."""
        return self.last_offsets if self.last_offsets != self.last_commit else None


def read_checkpoint(location: str) -> Checkpoint:
    """Read the checkpoint at ``location``: a path on the local disk, or a location on a file system that pyarrow knows
    (file, hdfs, viewfs, s3, gs, abfs), as Hadoop's ``Path`` reads it; its ``query_id`` is None when nothing is there
    yet, and ``torn`` names torn files.

    Raise CheckpointUnusable when the location cannot be read, CheckpointAway when its file system does not answer.
    """
    return _Reader(location).checkpoint()


def check_whole(location: str, sink_id: str) -> None:
    """Raise CheckpointUnusable, with the command that repairs them, if a file that Spark reads at a start is torn:
    Spark's own errors name no way out. Leaves a location that this process cannot read to the first batch.
    """
    try:
        torn = read_checkpoint(location).torn
    except (CheckpointUnusable, CheckpointAway):
        return
    if torn:
        raise torn_files(location, torn, sink_id)


def check_state(location: str, sink_id: str, query_id: str | None) -> None:
    """Raise CheckpointUnusable if the checkpoint of this query has the state of its next batch, whose ``offsets/N`` are
    gone: Spark plans the batch anew, and later loads the snapshot of the plan that is gone, without an error.

    Leaves a checkpoint that is torn, rewound or of another query to others, and one that this process cannot read.
    """
    try:
        reader = _Reader(location)
        version, newest = reader.newest_state()  # first: a live driver writes a batch's offsets before its state
        if version < 0:
            return
        checkpoint = reader.checkpoint()
        batch = 0 if checkpoint.last_offsets is None else checkpoint.last_offsets + 1
        known = checkpoint.query_id == query_id and not checkpoint.torn
        if not known or version != batch + 1 or reader.names_state(checkpoint):
            return
    except (CheckpointUnusable, CheckpointAway):
        return
    raise CheckpointUnusable(
        f"in the checkpoint {location}, offsets/{batch} is gone, but {newest}, the state of batch {batch}, is there "
        "(usually after a power failure, or because somebody deleted offsets)",
        _way_out(location, sink_id),
    )


def state_version(name: str) -> int:
    """Return the version to which a file below ``state/`` brings its store, -1 for any other file. Batch N reads
    version N and writes version N + 1.
    """
    version = _STATE_VERSION.search(name)
    return int(version[1]) if version else -1


def batch_in_flight(location: str, sink_id: str = "", after: Batch | None = None) -> Batch:
    """Return the micro-batch that Spark is about to write.

    Spark writes ``offsets/N`` before it plans batch N, and ``commits/N`` after it: at this point a micro-batch query
    always has exactly one such batch. In continuous and in real-time mode it has none: UnsupportedMode. Behind the
    batch ``after``, which this run of the query has finished, it is the next one: then only its file is read, since on
    an object store each look takes a batch's time.

    Raise CheckpointUnusable or CheckpointAway when the location cannot be read, or one of its files is torn;
    CheckpointRewound when a source has another name than in the batch before: then it would read again what it has
    read.
    """
    reader = _Reader(location)
    if after is not None and (text := reader.planned(after.batch_id + 1, sink_id)):
        return _batch(reader, after.query_id, after.batch_id + 1, text, sink_id, after.offsets)
    checkpoint = reader.checkpoint(running=True)
    if checkpoint.torn:
        raise torn_files(location, checkpoint.torn, sink_id)
    if checkpoint.query_id is None:
        raise CheckpointUnusable(
            f"there is no checkpoint at {shown(location)}, although the query is running: it has another "
            "checkpointLocation, or none, or this process does not see the one that Spark does",
            "Give the query and the sink the same checkpointLocation, which the driver's Python process can read"
            f"{OR_ELSEWHERE if locations.is_on(location, '') else ''}",
        )
    if checkpoint.in_flight is None:
        raise UnsupportedMode(
            "Spark has planned no micro-batch in the checkpoint: the query runs in continuous or real-time mode, "
            "where a batch does not name a fixed range of input",
            "Use trigger(processingTime=...) or trigger(availableNow=True)",
        )
    text = reader.text(f"offsets/{checkpoint.in_flight}")
    return _batch(reader, checkpoint.query_id, checkpoint.in_flight, text, sink_id)


def _batch(reader: _Reader, query_id: str, batch_id: int, text: str, sink_id: str, before: str = "") -> Batch:
    """Return the batch whose ``offsets/N`` has this ``text``; ``before`` is that of the batch before, if known."""
    named = reader.named(batch_id, text, before) if names_sources(text) else None
    _check_names(reader.location, named, sink_id)
    kept = text if len(text.encode()) <= LONGEST_KEPT_OFFSETS else ""
    sources = tuple(
        line
        for number, line in enumerate(source_lines(text))
        if _is_kafka(reader.location, query_id, line.partition(":")[0] if names_sources(text) else str(number))
    )
    return Batch(query_id, batch_id, digest_of(text), sources, kept, named)


@lru_cache(maxsize=256)
def _is_kafka(location: str, query_id: str, source: str) -> bool:
    """Return whether a source of this query is Spark's Kafka source: no other one keeps where it began behind a zero
    byte (SPARK-19517). The shape of its offsets does not tell.
    """
    reader = _Reader(location)
    return reader.begins_with(f"{_SOURCES}/{source}/0", b"\0")


def _check_names(location: str, named: NamedSources | None, sink_id: str) -> None:
    """Refuse a batch with a source that has another name than in the batch before."""
    for topic, old, new in named.renamed if named is not None else ():
        raise CheckpointRewound(
            f"the source {new} would read the topic {topic} from the beginning, although the source {old} has "
            "read it so far: the source was renamed",
            f"Give the source its old name again, .name({old!r}), and make Spark plan the batch again: "
            f"{repair_command(location, sink_id)} --plan-anew --apply",
        )


def source_names(location: str) -> dict[str, str]:
    """Return topic -> name of the source that read it in one of the two last batches: Spark goes on by that name. Raise
    CheckpointUnusable or CheckpointAway, as do all functions here that read a location.
    """
    reader = _Reader(location)
    last = reader.checkpoint().last_offsets
    found: dict[str, str] = {}
    for batch in () if last is None else (last - 1, last):
        text = reader.text_if_any(f"offsets/{batch}")
        found |= {topic: min(names) for topic, names in readers(text).items()}
    return found


def beginning_of(location: str, source: str) -> dict[str, dict[int, int]]:
    """Return where the source of this name began, by topic and partition; empty before its first start."""
    return _Reader(location).beginning(source)


def ended_before(location: str, batch: int) -> dict[str, dict[int, int]]:
    """Return where each topic ended that named sources read before ``batch``, and not in the batch before it, as far as
    the checkpoint tells: a topic has no partition when Spark may have deleted its last offsets.
    """
    reader = _Reader(location)
    has_all, found = bool(reader.text_if_any("offsets/0")), {}
    for topic in first_offsets(location):
        last, text = reader.last_with(topic, batch)
        if last >= 0 or not has_all:
            found[topic] = kafka_offsets(source_lines(text)).get(topic, {})
        if last == batch - 1:
            del found[topic]
    return found


def was_read(location: str, topic: str, before: int) -> bool:
    """Return whether named sources had read a topic before the batch ``before``: a batch names it, or may have named
    it, since Spark has deleted the first ones.
    """
    reader = _Reader(location)
    first = reader.text_if_any("offsets/0")
    return not first or topic in readers(first) or reader.last_with(topic, before)[0] >= 0


def first_offsets(location: str) -> dict[str, dict[int, int]]:
    """Return where the stream's Kafka sources began, by topic and partition; empty before the first start. Spark fixes
    it once, before the first batch, and keeps it as long as the checkpoint.
    """
    import pyarrow.fs as pafs

    with _reading(location, _SOURCES):
        files, root = file_system(location)
        found = files.get_file_info(pafs.FileSelector(f"{root}/{_SOURCES}", allow_not_found=True, recursive=True))
    names = [match.group() for f in found if (match := _BEGINNING.search(f.path))]
    return kafka_offsets(_first(location, name) for name in sorted(names))


def begins_of(location: str, batch: int) -> dict[str, dict[int, int]]:
    """Return where the Kafka sources of ``batch`` begin, by topic and partition, as far as the checkpoint says."""
    reader = _Reader(location)
    if batch:
        return kafka_offsets(source_lines(reader.text_if_any(f"offsets/{batch - 1}")))
    names = [f"{_SOURCES}/{source}/0" for source in sorted(e.base_name for e in listed(location, _SOURCES))]
    return kafka_offsets(_first(location, name) for name in names if reader.begins_with(name, b"\0"))


def listed(location: str, folder: str) -> list[pafs.FileInfo]:
    """Return the files of a folder of the checkpoint; raise CheckpointUnusable or CheckpointAway."""
    import pyarrow.fs as pafs

    with _reading(location, folder):
        files, root = file_system(location)
        return list(files.get_file_info(pafs.FileSelector(f"{root}/{folder}", allow_not_found=True)))


def read_text(location: str, name: str) -> str:
    """Return the text of a file of the checkpoint; raise CheckpointUnusable or CheckpointAway."""
    with _reading(location, name):
        files, root = file_system(location)
        with files.open_input_stream(f"{root}/{name}") as stream:
            return bytes(stream.read()).decode()


def same_location(one: str, other: str) -> bool:
    """Return whether two locations are the same folder, however they are spelled."""
    try:
        (fs, path), (other_fs, other_path) = file_system(one), file_system(other)
    except Exception:  # a file system that pyarrow does not know
        return one == other
    if fs.type_name == "local":
        path, other_path = os.path.abspath(path), os.path.abspath(other_path)
    return bool(fs.equals(other_fs)) and path == other_path


def torn_files(location: str, torn: Mapping[str, str], sink_id: str = "") -> CheckpointUnusable:
    """Make the error for torn files."""
    said = "; ".join(f"{name} is torn: {fault}" for name, fault in torn.items())
    return CheckpointUnusable(
        f"in the checkpoint {location}, {said} (usually after a full disk or a power failure)",
        _way_out(location, sink_id),
    )


def _way_out(location: str, sink_id: str) -> str:
    return (
        f"Do not delete anything by hand; to see what the commit log allows, run {repair_command(location, sink_id)}, "
        "or the Dagster job exactly_once_checkpoint_repair"
    )


def repair_command(location: str, sink_id: str = "") -> str:
    """Return the command that shows how to repair torn files."""
    return (
        f"exactly-once checkpoint repair {shlex.quote(location)} --sink {shlex.quote(sink_id) if sink_id else 'SINK'}"
    )


def file_system(location: str) -> tuple[pafs.FileSystem, str]:
    """Return the file system of a location, and the path in it, without a slash at its end. Raise CheckpointUnusable
    when this process has no client for it, OSError, or ValueError, also where Hadoop could not read the text.
    """
    import pyarrow.fs as pafs  # imported here: a process that commits reads no checkpoint

    place = locations.read(location)
    if place.on_disk is not None:
        return pafs.LocalFileSystem(), place.on_disk.rstrip("/")
    if place.scheme in hdfs.SCHEMES:
        return hdfs.hdfs(place), place.path.rstrip("/")
    if (azure := locations.azure(place)) is not None:
        names = {f"{service}_storage_authority": suffix for service, suffix in azure.suffixes.items()}
        return pafs.AzureFileSystem(azure.account, **names), f"{azure.container}{place.path}".rstrip("/")
    scheme = "s3" if place.scheme in locations.S3 else place.scheme
    files, bucket = pafs.FileSystem.from_uri(f"{scheme}://{place.authority}")  # pyarrow would decode a path
    if not bucket.strip("/"):
        raise ValueError(f"pyarrow finds no bucket, or container, in {place.authority or 'it'}")
    return files, f"{bucket.rstrip('/')}{place.path}".rstrip("/")


def shown(location: str) -> str:
    """Return a location for a message that nothing is there."""
    return f"{location} on this host's disk" if locations.is_on(location, "") else location


def unusable(location: str, e: Exception) -> ExactlyOnceError:
    """Make the error for a location that this process cannot read because of ``e``."""
    return _on_its_store(f"the checkpoint location {location}", location, e) or CheckpointUnusable(
        f"this Python process cannot read the checkpoint location {location} ({type(e).__name__}: {e})",
        "Use a path, or a file system that pyarrow supports (file, hdfs, s3, gs, abfs) with its settings in the "
        "environment; in the location, escape nothing",
    )


def _on_its_store(what: str, location: str, e: Exception) -> ExactlyOnceError | None:
    """Make the error of the store that ``location`` is on, for ``what`` in it; None when it has none of its own."""
    return hdfs.unusable(what, location, e) or s3.away(what, location, e)


def _first(location: str, name: str) -> str:
    """Return the offsets in a file of :data:`_SOURCES`, as JSON."""
    text = read_text(location, name)
    try:
        offsets = text[text.index("{") :]  # a zero byte and a version come first
        for partitions in json.loads(offsets).values():
            {int(p): int(offset) for p, offset in partitions.items()}
    except (ValueError, TypeError, AttributeError) as e:
        raise CheckpointUnusable(
            f"{name} of the checkpoint {location} does not say where the stream began ({e})",
            "Restore the checkpoint from a copy: nothing else records which input the stream owns",
        ) from e
    return offsets


@contextmanager
def _reading(location: str, name: str) -> Iterator[None]:
    """Raise an error with a way out when an object store does not answer, or refuses."""
    try:
        yield
    except _UNREADABLE as e:
        what = f"{name} of the checkpoint {location}"
        raise _on_its_store(what, location, e) or CheckpointUnusable(
            f"{what} cannot be read ({type(e).__name__}: {e})",
            "Check that the location exists and that this process may read it",
        ) from e


class _Reader:
    def __init__(self, location: str):
        self.location = location
        try:
            self._fs, self._root = file_system(location)
        except CheckpointUnusable:
            raise
        except Exception as e:
            raise unusable(location, e) from e

    def checkpoint(self, running: bool = False) -> Checkpoint:
        """Check the files that Spark reads at a start: ``metadata``, the last two of ``offsets``, the last of
        ``commits``. For a ``running`` query, skips the files of earlier batches: Spark has read them already.
        """
        import pyarrow.fs as pafs

        torn: dict[str, str] = {}
        try:
            planned, marked = self._numbers("offsets"), self._numbers("commits")
            if self._fs.get_file_info(f"{self._root}/metadata").type == pafs.FileType.NotFound:
                if planned:
                    torn["metadata"] = "it is missing"
                return Checkpoint(self.location, torn=torn)
            metadata = self._whole("metadata", torn)
            query_id = query_id_of(metadata) if metadata else None
            offsets = [self._whole(f"offsets/{n}", torn) for n in planned[: 1 if running else 2]]
            last_commit = next((n for n in marked if running or self._whole(f"commits/{n}", torn)), None)
            last = (offsets[0] if offsets else None) or "\n{}"
            _, head, *sources = last.rstrip("\n").split("\n")
            return Checkpoint(
                self.location,
                query_id=query_id,
                last_offsets=planned[0] if planned else None,
                last_commit=last_commit,
                batch_started_ms=json.loads(head).get("batchTimestampMs"),
                source_offsets=tuple(sources),
                torn=torn,
                names_sources=names_sources(last),
                commits_lack=marked[0] - marked[-1] + 1 - len(marked) if marked else 0,
            )
        except (*_UNREADABLE, KeyError, TypeError, AttributeError) as e:
            raise unusable(self.location, e) from e

    def planned(self, batch: int, sink_id: str) -> str:
        """Return the text of ``offsets/N`` of a batch; "" when it cannot be read, most often because it is not there.
        Raise CheckpointUnusable if it is torn.
        """
        torn: dict[str, str] = {}
        try:
            text = self._whole(f"offsets/{batch}", torn) or ""
        except _UNREADABLE:  # a look at the whole checkpoint says why
            return ""
        if torn:
            raise torn_files(self.location, torn, sink_id)
        return text

    def text(self, name: str) -> str:
        try:
            return self._content(name).decode()
        except _UNREADABLE as e:
            raise unusable(self.location, e) from e

    def text_if_any(self, name: str) -> str:
        """Return the text of a file; "" when there is none."""
        return self.text(name) if self._fs.get_file_info(f"{self._root}/{name}").is_file else ""

    def named(self, batch: int, text: str, before: str) -> NamedSources | None:
        """Return what a batch reads by named sources, compared with the batches before; None when they are gone."""
        if not batch:
            return of_first(text)
        before = before or self.text_if_any(f"offsets/{batch - 1}")
        if not before:
            return None
        return compared(text, before, lambda: self.text_if_any(f"offsets/{batch - 2}"), self.beginning)

    def last_with(self, topic: str, before: int) -> tuple[int, str]:
        """Return the last batch before ``before`` whose ``offsets/N`` has the topic, and that text; else (-1, "")."""
        try:
            for n in self._numbers("offsets"):
                if n < before:
                    text = self._content(f"offsets/{n}").decode(errors="replace")  # Spark reads no old file: no fault
                    if topic in readers(text):
                        return n, text
        except _UNREADABLE as e:
            raise unusable(self.location, e) from e
        return -1, ""

    def beginning(self, source: str) -> dict[str, dict[int, int]]:
        """Return where a source began, by topic and partition; empty when no file says so."""
        there = self.text_if_any(f"{_SOURCES}/{source}/0")
        return kafka_offsets([_first(self.location, f"{_SOURCES}/{source}/0")]) if there else {}

    def newest_state(self) -> tuple[int, str]:
        """Return the highest version of the state, and a file of it; (-1, "") without state."""
        import pyarrow.fs as pafs

        folder = pafs.FileSelector(f"{self._root}/state", allow_not_found=True, recursive=True)
        try:
            names = [file.path.removeprefix(f"{self._root}/") for file in self._fs.get_file_info(folder)]
        except _UNREADABLE as e:
            raise unusable(self.location, e) from e
        return max(((state_version(name), name) for name in names), default=(-1, ""))

    def names_state(self, checkpoint: Checkpoint) -> bool:
        """Return whether the last commit names the files of the state, so that Spark takes no others."""
        return checkpoint.last_commit is not None and state_ids_of(self.text(f"commits/{checkpoint.last_commit}"))

    def begins_with(self, name: str, first: bytes) -> bool:
        """Return whether there is a file of this name that begins like this."""
        try:
            there = self._fs.get_file_info(f"{self._root}/{name}").is_file
            return there and self._content(name).startswith(first)
        except _UNREADABLE as e:
            raise unusable(self.location, e) from e

    def _content(self, name: str) -> bytes:
        with self._fs.open_input_stream(f"{self._root}/{name}") as f:
            return bytes(f.read())

    def _whole(self, name: str, torn: dict[str, str]) -> str | None:
        """Return the text of a file; None when it is torn, which this notes."""
        content = self._content(name)
        if fault := fault_of(name, content):
            torn[name] = fault
            return None
        return content.decode()

    def _numbers(self, folder: str) -> list[int]:
        """Return the batches of a folder, newest first."""
        import pyarrow.fs as pafs

        found = self._fs.get_file_info(pafs.FileSelector(f"{self._root}/{folder}", allow_not_found=True))
        return sorted((int(i.base_name) for i in found if i.base_name.isdigit()), reverse=True)
