"""File systems on which a directory can be published in one step.

:class:`exactly_once.outputs.files.FileParticipant` needs that the rename of a directory is atomic and durable.
Object stores copy and delete the objects of a "directory" one by one: a reader would see part of a batch, and so would
every reader after a crash.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import IO, Any, Protocol

from pyarrow import fs

from exactly_once import location as locations
from exactly_once.errors import StoreRefused
from exactly_once.location import Location

#: Protocols with a rename that is one durable step, and why it is. The sink refuses every other one, sftp included: its
#: rename is atomic, but its client cannot make a file durable before the decision.
ATOMIC_RENAME: Mapping[str, str] = {
    "file": "rename(2), and fsync of files and directories; so is NFS",
    "hdfs": "one rename in the name node's journal; close() waits for the replicas",
}

#: The number of replicas, which may stand behind a path on HDFS.
_REPLICATION = re.compile(r"\?replication=([0-9]+)\Z")


class Store(Protocol):
    """The operations on files; paths are below ``root``. They raise OSError."""

    root: str

    def make(self, path: str) -> None:
        """Make the directory and its parents, durably; existing ones are fine."""

    def create(self, path: str) -> IO[bytes]:
        """Open a new file."""

    def open(self, path: str) -> IO[bytes]:
        """Open a file to read."""

    def seal(self, file: IO[bytes]) -> None:
        """Make the file's bytes durable, and close it."""

    def size(self, path: str) -> int | None:
        """Return the size in bytes; None when there is no such file."""

    def names(self, path: str) -> list[str]:
        """List the names in the directory; empty when there is no such directory."""

    def move(self, old: str, new: str) -> None:
        """Rename a file or a directory in one step."""

    def remove(self, path: str) -> bool:
        """Remove the file; False when it was gone."""

    def remove_empty(self, path: str) -> None:
        """Remove the directory if it exists and is empty."""

    def sync(self, path: str) -> None:
        """Make the names in the directory durable."""


def store_of(url: str) -> Store:
    """Return the store that ``url`` names; a path names a local or mounted file system. Raise StoreRefused when the
    store has no atomic rename of directories.
    """
    place = place_of(url)
    if place.is_local:
        return LocalStore(place.path)
    if place.scheme not in ATOMIC_RENAME:
        raise StoreRefused(
            f"{url!r} is on {place.scheme!r}, where renaming a directory is not atomic and durable: readers would see "
            "part of a batch",
            f"Write to one of: {', '.join(ATOMIC_RENAME)}; or write the rows to Kafka and store them from there",
        )
    # by Arrow, not by fsspec: hdfs-native registers a client there, which renames and closes in another way
    path, replication, *_ = (*_REPLICATION.split(place.path), "3")
    return HdfsStore(path, partial(_hadoop, place.authority, path, int(replication)))


def place_of(url: str) -> Location:
    """Return the location that ``url`` names, as Hadoop reads it; raise StoreRefused when it names none."""
    try:
        return locations.read(re.sub("^local:", "file:", url))
    except ValueError as e:
        raise StoreRefused(
            f"{url!r} is no location ({e})", "Write a path such as /data/orders, or scheme://host/path; escape nothing"
        ) from e


class LocalStore:
    """The operating system's files."""

    def __init__(self, root: str):
        self.root = os.path.abspath(root)

    def _at(self, path: str) -> str:
        return os.path.join(self.root, path)

    def make(self, path: str) -> None:
        place = self._at(path).rstrip("/")
        if not os.path.isdir(place):
            above = os.path.dirname(place)
            self.make(above)
            os.makedirs(place, exist_ok=True)
            self.sync(above)

    def create(self, path: str) -> IO[bytes]:
        return open(self._at(path), "xb")

    def open(self, path: str) -> IO[bytes]:
        return open(self._at(path), "rb")

    def seal(self, file: IO[bytes]) -> None:
        file.flush()
        os.fsync(file.fileno())
        file.close()

    def size(self, path: str) -> int | None:
        try:
            return os.stat(self._at(path)).st_size
        except FileNotFoundError:
            return None

    def names(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(self._at(path)))
        except FileNotFoundError:
            return []

    def move(self, old: str, new: str) -> None:
        os.rename(self._at(old), self._at(new))

    def remove(self, path: str) -> bool:
        try:
            os.unlink(self._at(path))
        except FileNotFoundError:
            return False
        return True

    def remove_empty(self, path: str) -> None:
        try:
            os.rmdir(self._at(path))
        except OSError:  # it is gone, or not empty
            return

    def sync(self, path: str) -> None:
        directory = os.open(self._at(path), os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


class ArrowStore:
    """A file system of Arrow: what it confirms is durable, and a directory is there as soon as a file is in it.

    ``connect`` makes Arrow's file system of the folder ``root``. It travels to the tasks by pickle, the file system
    does not.
    """

    def __init__(self, root: str, connect: Callable[[], fs.FileSystem]):
        self.root, self.connect = root, connect

    def __getstate__(self) -> dict[str, Any]:
        return {"root": self.root, "connect": self.connect}

    @cached_property
    def fs(self) -> fs.FileSystem:
        """The file system."""
        return self.connect()

    def make(self, path: str) -> None:
        """Do nothing: an object store has no directories."""

    def create(self, path: str) -> IO[bytes]:
        file: IO[bytes] = self.fs.open_output_stream(path)
        return file

    def open(self, path: str) -> IO[bytes]:
        file: IO[bytes] = self.fs.open_input_file(path)
        return file

    def seal(self, file: IO[bytes]) -> None:
        file.close()

    def size(self, path: str) -> int | None:
        size: int | None = self.fs.get_file_info(path).size
        return size

    def names(self, path: str) -> list[str]:
        found = self.fs.get_file_info(fs.FileSelector(path, allow_not_found=True))
        return sorted(one.base_name for one in found)

    def move(self, old: str, new: str) -> None:
        self.fs.move(old, new)

    def remove(self, path: str) -> bool:
        try:
            self.fs.delete_file(path)
        except FileNotFoundError:
            return False
        return True

    def remove_empty(self, path: str) -> None:
        """Do nothing: an object store has no directories."""

    def sync(self, path: str) -> None:
        """Do nothing: each call that returned is durable."""


class HdfsStore(ArrowStore):
    """HDFS, whose directories are there without a file in them."""

    def make(self, path: str) -> None:
        self.fs.create_dir(path)

    def remove(self, path: str) -> bool:
        return self.size(path) is not None and super().remove(path)  # libhdfs does not say that a file was gone

    def remove_empty(self, path: str) -> None:
        """Remove it in two steps, since HDFS has no such request: only for directories that no task fills any more."""
        if not self.names(path) and self.fs.get_file_info(path).type == fs.FileType.Directory:
            self.fs.delete_dir(path)


def _hadoop(authority: str, path: str, replication: int) -> fs.FileSystem:
    """Return the folder at ``path`` of ``hdfs://[user@]host[:port]``, by libhdfs."""
    user, _, address = authority.rpartition("@")
    host, _, port = address.partition(":")
    hdfs = fs.HadoopFileSystem(host or "default", int(port or 0), user=user or None, replication=replication)
    return fs.SubTreeFileSystem(path, hdfs)
