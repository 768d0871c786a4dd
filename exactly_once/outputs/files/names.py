"""The names of files and directories of :mod:`exactly_once.outputs.files`. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import sha256
from reprlib import repr as shortened

from exactly_once.participant import PartName
from exactly_once.protocol.records import PreparedPart
from exactly_once.protocol.untrusted import forged

STAGING = "_staging"

#: A directory with one file. The file's name identifies this place: it differs on another disk or under another URL.
IDENTITY = f"{STAGING}/_id"

#: The name of a published directory, and so of the column that readers derive from it.
BATCH = "batch"

#: A part's name. Names from earlier versions lack the participant, which follows in the file's name.
_FILE = re.compile(
    r"(?P<name>eo~[A-Za-z0-9._~-]+~[0-9]+\.[0-9]+(?P<participant>~[A-Za-z0-9_-]+)?)(?(participant)|\.[A-Za-z0-9_-]+)"
    r"\.(jsonl|parquet)"
)
_DIRECTORY = re.compile(rf"{BATCH}=([0-9]+)-[0-9a-f]+")


def part_of(file: str) -> str | None:
    """Return the name of the part to which a file belongs; None for other files."""
    m = _FILE.fullmatch(file)
    return m["name"].replace("~", ":") if m else None


def file_of(handle: PreparedPart) -> str:
    """Return the name of the part's file. A handle comes from the commit log, where others may have written: raise
    CommitLogDamaged when it is not the name that the part's task gave to its file.
    """
    file = handle.data.get("file")
    if isinstance(file, str) and part_of(file) == handle.name and PartName.parse(handle.name):
        return file
    raise forged(handle.name, f"names the file {shortened(file)}, which is not that part's")


def directory_of(handles: Sequence[PreparedPart]) -> str:
    """Return the directory for the publication of exactly these parts."""
    digest = sha256("\n".join(sorted(map(file_of, handles))).encode()).hexdigest()
    part = PartName.parse(handles[0].name)
    assert part is not None, handles[0].name
    return f"{BATCH}={part.batch_id:020d}-{digest[:16]}"


def batch_of(directory: str) -> int | None:
    """Return the batch that a directory publishes; None for other directories."""
    m = _DIRECTORY.fullmatch(directory)
    return int(m[1]) if m else None
