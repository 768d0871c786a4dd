"""The files of a checkpoint, wherever it is: on a local disk, on HDFS, in a bucket."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pyarrow.fs as pafs

from exactly_once.checkpoint import file_system

#: What a batch changed (delta, changelog), or all of it (snapshot, zip); a join has several stores, in folders.
_STATE = re.compile(r"state/\d+/\d+/(?:[^/]+/)?(\d+)(?:_[0-9a-f-]+)?\.(?:delta|changelog|snapshot|zip)")


class CheckpointFiles:
    """A checkpoint as files, to look at, to damage and to copy. Names are relative to it: ``offsets/3``.

    Parameters
    ----------
    location : str or Path
        A path, or a URI as :func:`exactly_once.checkpoint.file_system` takes it.
    """

    def __init__(self, location: str | Path):
        self._files, self._root = file_system(str(location))

    def batches(self, log: str) -> list[int]:
        """Return the numbers of the files in ``offsets`` or ``commits``, in order."""
        found = self._files.get_file_info(pafs.FileSelector(self._path(log), allow_not_found=True))
        return sorted(int(f.base_name) for f in found if f.base_name.isdigit())

    def state(self, version: int) -> list[str]:
        """Return the files that hold one version of the state, of all partitions, in order.

        Batch N writes version N + 1.
        """
        named = ((name, _STATE.fullmatch(name)) for name in self.names())
        return [name for name, match in named if match is not None and int(match[1]) == version]

    def names(self) -> list[str]:
        """Return the names of all files; empty without a checkpoint."""
        found = self._files.get_file_info(pafs.FileSelector(self._root, allow_not_found=True, recursive=True))
        return sorted(f.path.partition(f"{self._root}/")[2] for f in found if f.type == pafs.FileType.File)

    def has(self, name: str) -> bool:
        """Return whether there is such a file."""
        return bool(self._files.get_file_info(self._path(name)).type == pafs.FileType.File)

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        with self._files.open_input_stream(self._path(name)) as stream:
            return bytes(stream.read())

    def write(self, name: str, content: bytes) -> None:
        """Write a file, in place of one of that name."""
        with self._files.open_output_stream(self._path(name)) as stream:
            stream.write(content)

    def write_all(self, contents: Mapping[str, bytes]) -> None:
        """Write files by their names, and make the folders that they are in."""
        for folder in sorted({name.rpartition("/")[0] for name in contents}):
            self._files.create_dir(self._path(folder), recursive=True)
        for name, content in contents.items():
            self.write(name, content)

    def delete(self, name: str) -> None:
        """Delete a file, if it is there."""
        if self.has(name):
            self._files.delete_file(self._path(name))

    def clear(self) -> None:
        """Delete all of it, if it is there."""
        if self._files.get_file_info(self._root).type == pafs.FileType.Directory:
            self._files.delete_dir(self._root)

    def replace(self, other: CheckpointFiles) -> None:
        """Become a copy of ``other``: nothing stays of what was here."""
        self.clear()
        self.write_all({name: other.read(name) for name in other.names()})

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}".rstrip("/")
