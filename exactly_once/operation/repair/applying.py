"""Makes a repair: as the owner of the sink, with a copy of every changed file and an audit record."""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import posixpath
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow.fs as pafs

from exactly_once.checkpoint import file_system
from exactly_once.commitlog.commit_log import CommitLog, read_log
from exactly_once.coordinator.recover import claim_sink
from exactly_once.deadline import Deadline
from exactly_once.errors import Fenced
from exactly_once.failpoints import reach
from exactly_once.inspection.processes import AliveOf
from exactly_once.inspection.sink import owner_of
from exactly_once.kafka.connection import Connection
from exactly_once.operation.repair.files import REPAIRS, checksum_of, content_of, read_files
from exactly_once.operation.repair.verdicts import Action, FileFinding, judge_files
from exactly_once.operation.rules import check_owner
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.names import check_sink_id

#: For one read of the commit log; a healthy cluster needs a fraction of a second.
READ_BUDGET_S = 10.0

#: For claiming the sink: as long as a claim may take.
CLAIM_BUDGET_S = 60.0

#: Files are put back before others are removed: a repair that is killed half-way leaves nothing that Spark would run.
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
        """Plain values."""
        return {
            "sink_id": self.sink_id,
            "location": self.location,
            "whole": self.whole,
            "applied": self.applied,
            "claim": self.claim,
            "kept_in": self.kept_in,
            "findings": [
                {"name": f.name, "action": f.action.value, "why": f.why, "also": list(f.also)} for f in self.findings
            ],
        }


def examine(
    connection: Connection,
    sink_id: str,
    location: str,
    plan_anew: bool = False,
    budget_s: float = READ_BUDGET_S,
    write_commit: bool = False,
) -> Repair:
    """List the faults of the checkpoint at ``location``, and what a repair would do. Changes nothing.

    Raises CheckpointUnusable, BrokerUnreachable, CommitLogDamaged or NotAuthorized.
    """
    log = read_log(connection, check_sink_id(sink_id), budget_s)
    return _judged(log, sink_id, location, plan_anew, write_commit)


def repair(
    connection: Connection,
    sink_id: str,
    location: str,
    plan_anew: bool = False,
    force: str | None = None,
    by: str = "",
    budget_s: float = CLAIM_BUDGET_S,
    operator: str = "",
    alive_of: AliveOf | None = None,
    write_commit: bool = False,
) -> Repair:
    """Repair the checkpoint at ``location`` as far as the commit log allows; all of it, or nothing. Idempotent.

    1. Judge. Stop if there is nothing to do, or if a finding needs a person.
    2. Make sure that no driver works on the sink, and claim the sink, which fences any driver that still does.
    3. Judge again, by the log up to the claim and the files as they are now.
    4. Keep a copy of each file that will change, and an audit record.
    5. Change the files.

    Parameters
    ----------
    plan_anew : bool
        Also make Spark plan the batch in flight again, if it is not decided.
    write_commit : bool
        Also write ``commits/N`` of the batch in flight, if the log says that all of it is committed: Spark then does
        not read its input again, which may be gone.
    force : str, optional
        The phrase that overrules the refusal to fence a driver.
    by : str, optional
        The person who requested the repair; default: the user of this process.
    operator : str
        Who operates the repair, for its claim and its audit record.
    alive_of : callable, optional
        Is asked first whether the driver is alive (:func:`~exactly_once.inspection.sink.owner_of`).

    Raises
    ------
    Refused
        When the owner of the sink is alive, or when nobody can tell.
    Fenced
        When another process claims the sink meanwhile. The changes made so far are safe; the next call makes the rest.
    CheckpointUnusable, InvalidOption, BrokerUnreachable, CommitLogDamaged, NotAuthorized
    """
    deadline = Deadline(budget_s)
    log = read_log(connection, check_sink_id(sink_id), min(READ_BUDGET_S, budget_s))
    found = _judged(log, sink_id, location, plan_anew, write_commit)
    if not found.to_do:
        return found
    check_owner(sink_id, owner_of(log, alive_of), force)
    claim = claim_sink(connection, sink_id, deadline.left, operator)
    assert claim is not None  # a log that can judge a checkpoint has an owner
    commit_log = CommitLog(connection, sink_id)
    try:
        found = _judged(commit_log.own(claim.token, deadline), sink_id, location, plan_anew, write_commit)
        if not found.to_do:
            return found
        work = _Work(found, claim.token, by or _user(), claim.operator)
        work.keep()
        reach("repair-kept")
        for finding in work.findings:
            _check_owned(commit_log.read(Deadline(max(1.0, deadline.left))), sink_id, claim.token)
            work.change(finding)
            reach("repair-changed")
        work.record(done=True)
    finally:
        commit_log.close()
    return Repair(sink_id, location, found.findings, True, claim.token, work.folder)


def _judged(log: LogState, sink_id: str, location: str, plan_anew: bool, write_commit: bool) -> Repair:
    return Repair(sink_id, location, judge_files(read_files(location), log, sink_id, plan_anew, write_commit))


def _check_owned(log: LogState, sink_id: str, token: int) -> None:
    if log.owner is None or log.owner.token != token:
        who = log.owner.title if log.owner else "another process"
        raise Fenced(
            f"{who} has taken sink {sink_id!r} while its checkpoint was being repaired",
            "Stop the stream and run the repair again: the changes already made are kept",
            safe="The copies are kept, and each change made is safe on its own",
        )


class _Work:
    """One repair under way."""

    def __init__(self, found: Repair, claim: int, by: str, operator: str = ""):
        self._found, self._claim, self._by, self._operator = found, claim, by, operator
        self._fs, self._root = file_system(found.location)
        self._began = datetime.now(UTC)
        self.folder = f"{REPAIRS}/{self._began:%Y%m%dT%H%M%S.%fZ}"
        self.findings: Sequence[FileFinding] = sorted(found.to_do, key=lambda f: _ORDER.index(f.action))
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
        if finding.name == "offsets/0" and finding.also:  # nor may empty state folders stay where a query begins
            self._fs.delete_dir_contents(self._at("state"))
        if finding.action is Action.REBUILD:
            self._delete([checksum_of(finding.name)])
            self._write(finding.name, finding.content.encode())
        else:
            self._delete([finding.name, checksum_of(finding.name)])

    def record(self, done: bool) -> None:
        """Write the audit record."""
        record = {
            "sink_id": self._found.sink_id,
            "location": self._found.location,
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
                {
                    "name": f.name,
                    "action": f.action.value,
                    "why": f.why,
                    "also": list(f.also),
                    "now_sha256": hashlib.sha256(f.content.encode()).hexdigest() if f.content else None,
                }
                for f in self._found.findings
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
