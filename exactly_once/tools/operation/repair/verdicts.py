"""The verdict on each file of a checkpoint, by the commit log: pure.

Three facts decide. A *decided* batch is in the output: Spark may run it again, with the input that was decided, and the
sink drains its rows. An *undecided* batch is not in the output: Spark may plan it again. At a start Spark reads
``metadata``, the last two files of ``offsets`` and the last of ``commits``, and nothing older.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from exactly_once.checkpoint import same_location
from exactly_once.protocol.checkpoint_text import (
    digest_of,
    fault_of,
    kafka_offsets,
    query_id_of,
    source_lines,
    state_ids_of,
    watermark_ms,
)
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.names import offsets_group
from exactly_once.protocol.records import WRITE, Decision
from exactly_once.tools.operation.repair.files import File, Files


class Action(Enum):
    """The action for a file."""

    REMOVE = "remove"
    REBUILD = "rebuild"
    KEEP = "keep"
    """It is torn, and Spark does not read it."""
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class FileFinding:
    """A faulty file, and the action for it: a step of a repair, of which HEALTH-CHECKPOINT-TORN is the diagnosis.

    Attributes
    ----------
    name : str
        Its path below the checkpoint; "" for the checkpoint as a whole.
    why : str
        One sentence.
    content : str
        The content of a rebuilt file.
    also : tuple of str
        Other files that the action removes.
    """

    name: str
    action: Action
    why: str
    content: str = ""
    also: tuple[str, ...] = ()

    @property
    def changes(self) -> bool:
        """True when the repair changes this file."""
        return self.action in (Action.REMOVE, Action.REBUILD)

    def as_json(self) -> dict[str, Any]:
        """Plain values, without the content."""
        return {"name": self.name, "action": self.action.value, "why": self.why, "also": list(self.also)}


def judge_files(
    files: Files, log: LogState, sink_id: str, plan_anew: bool = False, write_commit: bool = False
) -> list[FileFinding]:
    """Judge the checkpoint: its faults, and the action for each; empty when every file is whole.

    Parameters
    ----------
    plan_anew : bool
        Whether Spark should forget its (whole) plan of the batch in flight and make another one.
    write_commit : bool
        Whether Spark should not run the batch in flight again, since every part of it is committed.
    """
    found = _Judge(files, log, sink_id).findings(plan_anew, write_commit)
    empty = [
        FileFinding(n, Action.KEEP, "the file is empty; the repair does not cover its folder") for n in files.empty
    ]
    return [*found, *empty]


class _Judge:
    def __init__(self, files: Files, log: LogState, sink_id: str):
        self._files, self._sink_id, self._owner, self._marks = files, sink_id, log.owner, log.marks
        self._query_id = log.owner.query_id if log.owner and log.owner.query_id else ""
        mine = [d for d in log.decisions if d.query_id == self._query_id]
        self._decisions = {d.batch_id: d for d in mine}
        self._last = max(self._decisions, default=-1)
        self._planned = max(files.offsets, default=-1)

    def findings(self, plan_anew: bool, write_commit: bool) -> list[FileFinding]:
        if refusals := list(self._strange()):
            return refusals
        metadata = list(self._metadata())
        offsets = list(self._offsets())
        commits = list(self._commits(offsets))
        if write_commit and all(f.action is Action.KEEP for f in (*metadata, *offsets, *commits)):
            commits.append(self._committed())
        elif not any(f.name == f"offsets/{self._planned}" for f in offsets):
            if self._comes_later({f.name for f in commits if f.changes}):
                why = (
                    f"Spark runs batch {self._planned - 1} again first; batch {self._planned} is not decided: Spark "
                    "plans it again"
                )
                offsets.append(self._anew(why))
            elif plan_anew:
                offsets.append(self._planned_anew())
        if not any(f.also or f.action is Action.REFUSE for f in offsets):
            offsets += self._state_without_plan()
        stale = [
            FileFinding(n, Action.REMOVE, "the file of this checksum is gone, and Spark cannot overwrite the checksum")
            for n in self._files.stale_checksums
        ]
        return [*metadata, *offsets, *commits, *stale]

    # -- the checkpoint as a whole --------------------------------------------------------------------------------

    def _strange(self) -> Iterator[FileFinding]:
        """Yield why the commit log cannot judge this checkpoint; nothing if it can."""
        files, owner = self._files, self._owner
        metadata = files.metadata
        whole = metadata is not None and fault_of("metadata", metadata.content) is None
        query_id = query_id_of(metadata.text) if metadata is not None and whole else None
        if metadata is None and not files.offsets:
            yield _refused("", "there is no checkpoint here")
        elif owner is None:
            yield _refused("", f"sink {self._sink_id!r} was never used, so no commit log says what is decided")
        elif not self._query_id or self._query_id == WRITE:
            yield _refused("", f"sink {self._sink_id!r} belongs to batch writes, which have no checkpoint")
        elif query_id is not None and query_id != self._query_id:
            yield _refused(
                "",
                f"the checkpoint belongs to query {query_id}, but sink {self._sink_id!r} belongs to query "
                f"{self._query_id}",
            )
        elif query_id is None and not same_location(owner.checkpoint, files.location):
            yield _refused(
                "metadata",
                f"the file does not name its query, and sink {self._sink_id!r} was last claimed for another location, "
                f"{owner.checkpoint or 'which the claim does not name'}",
            )
        elif self._planned < self._last - 1:
            yield _refused(
                "",
                f"the checkpoint's last batch is {max(self._planned, 0)}, but batch {self._last} is decided: the "
                "checkpoint was deleted, rewound or restored from a copy. Put back the newest checkpoint (EO-REWOUND)",
            )

    def _metadata(self) -> Iterator[FileFinding]:
        metadata = self._files.metadata
        if metadata is None or metadata.fault:
            fault = metadata.fault if metadata else "the file is missing"
            yield FileFinding(
                "metadata",
                Action.REBUILD,
                f"{fault}; the sink's claim names the query of this checkpoint, {self._query_id}",
                json.dumps({"id": self._query_id}, separators=(",", ":")),
            )

    # -- offsets --------------------------------------------------------------------------------------------------

    def _offsets(self) -> Iterator[FileFinding]:
        known = self._files.offsets
        wanted = {n for n in (self._last - 1, self._last, self._planned - 1) if n in self._decisions}
        oldest = min(known, default=self._last)
        for n in sorted({*known, *(n for n in wanted if n >= oldest)}):
            finding = self._decided(n) if n in self._decisions else self._undecided(n)
            if finding is not None:
                yield finding

    def _decided(self, n: int) -> FileFinding | None:
        """Judge ``offsets/n`` of a decided batch: it must name the input that was decided."""
        name, file, decision = f"offsets/{n}", self._files.offsets.get(n), self._decisions[n]
        if file is not None and file.digest == decision.offsets_digest:
            if not file.fault:
                return None
            return FileFinding(name, Action.REBUILD, f"{file.fault}, but it holds the text that was decided", file.text)
        if file is None:
            fault = "the file is missing"
        else:
            fault = file.fault or "the file holds a different plan from the one that was decided"
        # nothing is torn: a checkpoint that was restored from a copy looks the same
        copied = n > self._planned or (file is not None and not file.fault)
        if copied and (n != self._last or n < self._planned or not self._follows(decision)):
            why = f"{fault}: the checkpoint was restored, rewound or edited (EO-REWOUND)"
            return self._unread(n, fault) or _refused(name, why)
        if decision.offsets and digest_of(decision.offsets) == decision.offsets_digest:
            return FileFinding(
                name, Action.REBUILD, f"{fault}; the decision of batch {n} holds its text", decision.offsets
            )
        return self._unread(n, fault) or _refused(name, f"{fault}; {self._known_of(decision)}")

    def _undecided(self, n: int) -> FileFinding | None:
        file = self._files.offsets[n]
        if not file.fault:
            return None
        if n < self._planned:
            return self._unread(n, file.fault) or _refused(
                file.name, f"{file.fault}; Spark needs the file, but the commit log has no decision of batch {n}"
            )
        return self._anew(f"{file.fault}; batch {n} is not decided: Spark plans it again")

    def _planned_anew(self) -> FileFinding:
        """Judge the request to plan the batch in flight again."""
        n = self._planned
        if n < 0:
            return _refused("", "no batch is planned yet")
        if n in self._decisions:
            done = (
                "and Spark has committed it" if n in self._files.commits else "so Spark must run it as it was decided"
            )
            return _refused(f"offsets/{n}", f"batch {n} is decided, {done}: there is nothing to plan again")
        return self._anew(f"as requested; batch {n} is not decided: Spark plans it again")

    def _comes_later(self, removed: set[str]) -> bool:
        """Return whether Spark must first run the batch before the planned one, as its commit is or will be missing."""
        before = self._planned - 1
        if self._planned in self._decisions or before not in self._decisions:
            return False
        deleted = before not in self._files.commits and self._names_state()
        return deleted or f"commits/{before}" in removed

    def _anew(self, why: str, n: int | None = None) -> FileFinding:
        """Remove the plan of the last, undecided batch, or of batch ``n``, and the state that its tasks may have
        written.
        """
        n = self._planned if n is None else n
        name = f"offsets/{n}"
        if n in self._files.commits:
            return _refused(
                name,
                f"batch {n} is not decided, but commits/{n} exists: the batch ran under a weaker guarantee or with "
                "another sink",
            )
        if self._last != n - 1:
            before = f"batch {self._last}" if self._last >= 0 else "no batch"
            return _refused(
                name,
                f"batch {n} is not decided, and the commit log's last decision is of {before}: the batches in "
                "between ran under a weaker guarantee or with another sink, and so may have this batch",
            )
        return FileFinding(name, Action.REMOVE, why, also=self._state_of(n))

    def _state_without_plan(self) -> Iterator[FileFinding]:
        """Judge the state of a batch whose ``offsets`` are gone: it is of another plan than the one Spark will make."""
        n = max(self._planned, self._last) + 1
        last = max((m for m, file in self._files.commits.items() if not file.fault), default=None)
        if self._state_of(n) and (last is None or not state_ids_of(self._files.commits[last].text)):
            why = (
                f"the file is gone, and the state of batch {n} is there; batch {n} is not decided: Spark plans it again"
            )
            yield self._anew(why, n)

    def _state_of(self, n: int) -> tuple[str, ...]:
        """Return the files of the state that the tasks of batch ``n``, the last one, may have written."""
        if n == 0:  # Spark begins a query only where there is no state at all
            return self._files.all_state
        return tuple(sorted(name for version, names in self._files.state.items() if version > n for name in names))

    def _follows(self, decision: Decision) -> bool:
        """Return whether ``offsets`` of the last decided batch may be put behind those of the batch before it: the
        latter are as decided, and all input is Kafka's. Other sources keep a list of files of their own, which may be
        newer or older.
        """
        n, lines = decision.batch_id, source_lines(decision.offsets)
        before, earlier = self._files.offsets.get(n - 1), self._decisions.get(n - 1)
        same = n == 0 or bool(before and earlier and before.digest == earlier.offsets_digest)
        return same and bool(lines) and all(kafka_offsets([line]) for line in lines)

    def _known_of(self, decision: Decision) -> str:
        return (
            f"the decision of batch {decision.batch_id} holds no copy of the file (an older version wrote it, or the "
            "file is too long). Put the file back from a backup of the checkpoint. To recognize the right one: the "
            f"SHA-256 of its source lines is {decision.offsets_digest}, and the consumer group "
            f"{offsets_group(self._sink_id)} has the offsets where the batch's Kafka input ends"
        )

    def _unread(self, n: int, fault: str) -> FileFinding | None:
        """Judge ``offsets/n``, which may stay if Spark reads only newer files, whatever else the repair removes."""
        if n < self._planned - 2:
            return FileFinding(f"offsets/{n}", Action.KEEP, f"{fault}; Spark no longer reads the file")
        return None

    # -- commits --------------------------------------------------------------------------------------------------

    def _commits(self, offsets: list[FileFinding]) -> Iterator[FileFinding]:
        files = self._files.commits
        newest = True
        removed: list[File] = []
        for n in sorted(files, reverse=True):
            file = files[n]
            if not file.fault:
                newest = False
            elif not newest:
                yield FileFinding(file.name, Action.KEEP, f"{file.fault}; Spark no longer reads the file")
            elif n not in self._decisions:
                yield _refused(
                    file.name,
                    f"{file.fault}; batch {n} is not decided: the batch ran under a weaker guarantee or with another "
                    "sink",
                )
            else:
                removed.append(file)
        first = self._first_run(offsets, removed)
        for file in removed:
            n = int(file.name.rpartition("/")[2])
            why = f"{file.fault}; batch {n} is decided: Spark runs it again, and the sink drains its rows"
            if n == first - 1 and self._names_state():
                yield _refused(
                    file.name,
                    f"{file.fault}; batch {first} is decided and runs next, and only this file names the state that "
                    "the batch begins with. Put the file back from a backup of the checkpoint",
                )
            else:
                if n < first:
                    why = (
                        f"{file.fault}; batch {n} is decided, and batch {first} runs next: Spark no longer needs the "
                        "file"
                    )
                yield FileFinding(file.name, Action.REMOVE, why)

    def _first_run(self, offsets: list[FileFinding], removed: list[File]) -> int:
        """Return the first batch that Spark runs, if that one was planned before."""
        last = max(self._planned, self._last)
        drops = any(f.action is Action.REMOVE and f.name == f"offsets/{last}" for f in offsets)
        return last - 1 if drops or self._comes_later({f.name for f in removed}) else last

    def _names_state(self) -> bool:
        """Return whether commits name the files of state stores; True when no whole commit can tell."""
        whole = [f for f in self._files.commits.values() if not f.fault]
        return any(state_ids_of(f.text) for f in whole) if whole else bool(self._files.state)

    def _committed(self) -> FileFinding:
        """Judge the request to write the commit of the batch in flight, which Spark then does not run again.

        The file of the batch before says which version Spark writes. The watermark stays at that of the batch's own
        plan, which is never too high: the next batch moves it.
        """
        n, files = self._planned, self._files
        name, state = f"commits/{n}", [path for paths in files.state.values() for path in paths]
        if n < 0:
            return _refused("", "no batch is planned yet")
        if n in files.commits:
            return FileFinding(name, Action.KEEP, f"Spark has committed batch {n}")
        if (self._query_id, n) not in self._marks:
            return _refused(
                name,
                f"the commit log does not say that every part of batch {n} is committed: run exactly-once recover "
                f"{self._sink_id} first, if the batch is decided",
            )
        if self._names_state() or {posixpath.dirname(path) for path in state} != {
            posixpath.dirname(path) for path in files.state.get(n + 1, ())
        }:
            return _refused(
                name,
                "the query has state, and the checkpoint does not say which files of it belong to the batch. Put back "
                "the batch's input, or the newest whole copy of the checkpoint",
            )
        before = max((m for m, file in files.commits.items() if not file.fault), default=None)
        version, body = "v1", {}
        if before is not None:
            version, _, text = files.commits[before].text.partition("\n")
            body = json.loads(text.partition("\n")[0])
        watermark = watermark_ms(files.offsets[n].text)
        body["nextBatchWatermarkMs"] = max(watermark, body.get("nextBatchWatermarkMs", 0))
        return FileFinding(
            name,
            Action.REBUILD,
            f"as requested; batch {n} is completed: Spark goes on with the next batch",
            f"{version}\n{json.dumps(body, separators=(',', ':'))}",
        )


def _refused(name: str, why: str) -> FileFinding:
    return FileFinding(name, Action.REFUSE, why)
