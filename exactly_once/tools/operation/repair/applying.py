"""Makes a repair, with a copy of every changed file and an audit record."""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import posixpath
import socket
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow.fs as pafs

from exactly_once.checkpoint import file_system
from exactly_once.tools.operation.repair.files import REPAIRS, checksum_of, content_of
from exactly_once.tools.operation.repair.verdicts import Action, FileFinding

#: The order of actions: a repair that is killed between putting back and removing leaves nothing that Spark would run.
_ORDER = (Action.REBUILD, Action.REMOVE)


@dataclass(frozen=True)
class Repair:
    """The findings in a checkpoint, and whether the repair was made.

    Attributes
    ----------
    findings : list of FileFinding
        Empty when every file is whole.
    applied : bool
        Whether the repair was made.
    claim : int
        The claim under which it was made; 0 without one.
    kept_in : str
        Below the checkpoint: where the copies and the audit record are.
    """

    sink_id: str
    location: str
    findings: list[FileFinding]
    applied: bool = False
    claim: int = 0
    kept_in: str = ""

    @property
    def refused(self) -> list[FileFinding]:
        """The findings that only a person can resolve; with any of these, the repair changes nothing."""
        return [f for f in self.findings if f.action is Action.REFUSE]

    @property
    def to_do(self) -> list[FileFinding]:
        """The findings that the repair changes, or has changed."""
        return [] if self.refused else [f for f in self.findings if f.changes]

    @property
    def whole(self) -> bool:
        """True when there is nothing to do, or the repair is made."""
        return self.applied or not (self.refused or self.to_do)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "whole": self.whole, "findings": [f.as_json() for f in self.findings]}


class Work:
    """One repair under way."""

    def __init__(self, repair: Repair, claim: int, by: str, operator: str = ""):
        self._repair, self._claim, self._by, self._operator = repair, claim, by or _user(), operator
        self._fs, self._root = file_system(repair.location)
        self._began = datetime.now(UTC)
        self.folder = f"{REPAIRS}/{self._began:%Y%m%dT%H%M%S.%fZ}"
        self.findings: Sequence[FileFinding] = sorted(repair.to_do, key=lambda f: _ORDER.index(f.action))
        self._before: dict[str, dict[str, Any]] = {}

    def keep(self) -> None:
        """Copy every file that will change, and write down the plan."""
        for name in dict.fromkeys(n for f in self.findings for n in (f.name, checksum_of(f.name), *f.also)):
            path = self._at(name)
            if self._fs.get_file_info(path).type == pafs.FileType.NotFound:
                continue
            content = content_of(self._fs, path)
            self._write(f"{self.folder}/{name}", content)
            self._before[name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        self.record(done=False)

    def change(self, finding: FileFinding) -> None:
        """Carry out a finding. Removes the checksum of a changed file: Spark accepts a file without a checksum, but not
        with a wrong one.
        """
        self._delete(finding.also)
        if finding.action is Action.REBUILD:
            self._delete([checksum_of(finding.name)])
            self._write(finding.name, finding.content.encode())
        else:
            if finding.name == "offsets/0":  # Spark begins no query above state folders, even empty ones
                self._fs.delete_dir_contents(self._at("state"), missing_dir_ok=True)
            self._delete([finding.name, checksum_of(finding.name)])

    def record(self, done: bool) -> None:
        record = {
            "sink_id": self._repair.sink_id,
            "location": self._repair.location,
            "by": {
                "who": self._by,
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "operator": self._operator,
            },
            "began_at": self._began.isoformat(),
            "ended_at": datetime.now(UTC).isoformat() if done else None,
            "claim": self._claim,
            "findings": [
                {**f.as_json(), "now_sha256": hashlib.sha256(f.content.encode()).hexdigest() if f.content else None}
                for f in self._repair.findings
            ],
            "before": self._before,
        }
        self._write(f"{self.folder}/audit.json", json.dumps(record, indent=2).encode())

    def _write(self, name: str, content: bytes) -> None:
        """Write the file in one step where possible: a local file is written aside and renamed, an object store puts an
        object as a whole. Elsewhere, the next repair finds a torn file.
        """
        path = self._at(name)
        folder, base = posixpath.split(path)
        self._fs.create_dir(folder, recursive=True)
        local = isinstance(self._fs, pafs.LocalFileSystem)
        target = f"{folder}/.{base}.repair.tmp" if local else path
        with self._fs.open_output_stream(target) as f:
            f.write(content)
        if local:
            _sync(target)
            self._fs.move(target, path)
            _sync(folder)

    def _delete(self, names: Iterable[str]) -> None:
        for name in names:
            try:
                self._fs.delete_file(self._at(name))
            except FileNotFoundError:
                continue

    def _at(self, name: str) -> str:
        return f"{self._root}/{name}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return f"user {os.getuid()}"


def _sync(path: str) -> None:
    """Make a local file, or the names in a folder, durable: a power failure may come again."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
