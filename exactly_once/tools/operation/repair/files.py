"""The content of a checkpoint, file by file."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow.fs as pafs

from exactly_once.checkpoint import file_system, state_version, unusable
from exactly_once.errors import CheckpointUnusable
from exactly_once.protocol.checkpoint_text import digest_of, fault_of

#: The folder for copies and audit records, below the checkpoint; Spark reads no folder of this name.
REPAIRS = "_repairs"

_CHECKSUM = re.compile(r"(offsets|commits)/\.(\d+)\.crc")
_CHECKSUM_HEAD = 8  # "crc", a zero, and the bytes for each checksum as a number of four bytes
_NO_TRACE = re.compile(r"\.(crc|tmp|log)$|/\.")


@dataclass(frozen=True, slots=True)
class File:
    """One file: its content, and why it is torn (None when it is whole)."""

    name: str
    content: bytes
    fault: str | None = None

    @property
    def text(self) -> str:
        """The content of a whole file."""
        return self.content.decode()

    @property
    def digest(self) -> str:
        """The digest of the input that an ``offsets/N`` names; "" when its text is torn."""
        return digest_of(self.text) if fault_of(self.name, self.content) is None else ""


@dataclass(frozen=True, slots=True)
class Files:
    """A checkpoint.

    Attributes
    ----------
    metadata : File or None
        None when there is none.
    offsets, commits : mapping
        By batch id.
    stale_checksums : tuple of str
        Checksum files of batches after the last file of their folder: Spark's default file manager cannot write the
        next file over them, and reports a second query (CONCURRENT_STREAM_LOG_UPDATE).
    state : mapping
        Version -> files of the state stores; batch N reads version N and writes version N + 1.
    all_state : tuple of str
        Every file of the state stores.
    empty : tuple of str
        Empty files of ``sources/`` and ``state/``.
    """

    location: str
    metadata: File | None = None
    offsets: Mapping[int, File] = field(default_factory=dict)
    commits: Mapping[int, File] = field(default_factory=dict)
    stale_checksums: tuple[str, ...] = ()
    state: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    all_state: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()


def read_files(location: str) -> Files:
    """Read the checkpoint at ``location``; raise CheckpointUnusable or CheckpointAway when that is not possible."""
    try:
        fs, root = file_system(location)
        found = fs.get_file_info(pafs.FileSelector(root, allow_not_found=True, recursive=True))
        sizes = {i.path[len(root) :].lstrip("/"): i.size for i in found if i.type == pafs.FileType.File}
        names = sorted(n for n in sizes if not n.startswith(f"{REPAIRS}/"))
        return Files(
            location,
            _read(fs, root, "metadata", names) if "metadata" in names else None,
            {n: _read(fs, root, f"offsets/{n}", names) for n in _numbers(names, "offsets")},
            {n: _read(fs, root, f"commits/{n}", names) for n in _numbers(names, "commits")},
            _stale_checksums(names),
            _state(names),
            tuple(n for n in names if n.startswith("state/")),
            tuple(
                n for n in names if n.startswith(("sources/", "state/")) and not sizes[n] and not _NO_TRACE.search(n)
            ),
        )
    except CheckpointUnusable:
        raise
    except Exception as e:
        raise unusable(location, e) from e


def checksum_of(name: str) -> str:
    """Return the name of the checksum file that Hadoop's local file system keeps beside ``name``."""
    folder, slash, base = name.rpartition("/")
    return f"{folder}{slash}.{base}.crc"


def is_checksum_of(checksum: bytes, content: bytes) -> bool:
    """Return whether Hadoop would accept ``content``: the CRC-32 of each chunk, after a header with the chunk length.
    Like Hadoop, ignores a torn checksum file.
    """
    if not checksum.startswith(b"crc\0") or len(checksum) < _CHECKSUM_HEAD:
        return True
    chunk = int.from_bytes(checksum[4:_CHECKSUM_HEAD], "big") or 512
    sums = [zlib.crc32(content[i : i + chunk]).to_bytes(4, "big") for i in range(0, len(content), chunk)]
    return checksum[_CHECKSUM_HEAD:] == b"".join(sums)


def _read(fs: pafs.FileSystem, root: str, name: str, names: list[str]) -> File:
    content, checksum = content_of(fs, f"{root}/{name}"), checksum_of(name)
    fault = fault_of(name, content)
    if fault is None and checksum in names and not is_checksum_of(content_of(fs, f"{root}/{checksum}"), content):
        return File(name, content, "it does not match its checksum file")
    return File(name, content, fault)


def content_of(fs: pafs.FileSystem, path: str) -> bytes:
    with fs.open_input_stream(path) as f:
        return bytes(f.read())


def _numbers(names: list[str], folder: str) -> list[int]:
    return sorted(int(n.rpartition("/")[2]) for n in names if re.fullmatch(rf"{folder}/\d+", n))


def _stale_checksums(names: list[str]) -> tuple[str, ...]:
    last = {folder: max(_numbers(names, folder), default=-1) for folder in ("offsets", "commits")}
    found = [m for n in names if (m := _CHECKSUM.fullmatch(n)) is not None]
    return tuple(m[0] for m in found if int(m[2]) > last[m[1]])


def _state(names: list[str]) -> dict[int, tuple[str, ...]]:
    found: dict[int, list[str]] = {}
    for name in names:
        version = state_version(name)
        if name.startswith("state/") and version >= 0:
            found.setdefault(version, []).append(name)
    return {version: tuple(some) for version, some in found.items()}
