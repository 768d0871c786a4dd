"""Act as an operator when a stream has ended with an error: take the way out of docs/errors.md, by its commands.

A damaged checkpoint is repaired by ``exactly-once checkpoint repair``. Where that refuses, the newest whole copy is put
back: the one that a fault kept, as the operator of a real one has moved it aside or has a backup.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exactly_once.checkpoint import read_checkpoint
from exactly_once.errors import ExactlyOnceError
from exactly_once.kafka.admin import Admin
from exactly_once.options import Guarantee
from faultlab.checkpoint_files import CheckpointFiles
from faultlab.system import SparkSystem, System
from testkit.stream import ROOT

if TYPE_CHECKING:
    from faultlab.history import LabHistory

#: Ends of the stream whose way out begins with the checkpoint. Of Spark's own, those that no restart heals.
CODES = (
    *("EO-CHECKPOINT", "EO-REWOUND", "EO-SINK-OWNED"),
    *("SPARK-CHECKPOINT-TORN", "SPARK-STATE-UNREADABLE", "SPARK-TWO-DRIVERS", "UNCLASSIFIED"),
)

#: Ends of a stream one of whose topics was made again. Spark's own comes where the new input has fewer records.
OF_TOPICS = ("EO-TOPIC-RECREATED", "EO-INPUT-RECREATED", "SPARK-INPUT-LOST")

#: Of these, where no repair helps: put the copy back.
_PUT_BACK = ("EO-REWOUND", "EO-SINK-OWNED", "SPARK-STATE-UNREADABLE")

#: One run of the command: an import, a few requests, a claim.
COMMAND_S = 90.0


def fits(system: System, sink_id: str | None) -> bool:
    """Return whether the checkpoint of a system can be judged by a commit log.

    It can for that of this project's sink, exactly_once.
    """
    if not isinstance(system, SparkSystem) or system.sink_id != sink_id:
        return False
    return system.options.get("sink.guarantee", Guarantee.EXACTLY_ONCE.value) == Guarantee.EXACTLY_ONCE.value


def is_past(system: SparkSystem) -> bool:
    """Return whether the stream has a batch, and one that is newer than the last copy.

    It has then recovered from the damage for which that copy was made.
    """
    now = read_checkpoint(system.checkpoint)
    if now.last_commit is None or not _copy(system).is_dir():
        return now.last_commit is not None
    before = read_checkpoint(str(_copy(system)))
    return before.query_id == now.query_id and _last(now.last_commit) > _last(before.last_offsets)


def keep(system: SparkSystem) -> None:
    """Keep a copy of the checkpoint in place of the last one. Nothing runs meanwhile."""
    CheckpointFiles(_copy(system)).replace(CheckpointFiles(system.checkpoint))


def take(system: System, why: str, history: LabHistory) -> None:
    """Do what the error says, where it names the checkpoint or a topic that was made again; ``why`` begins with its
    code. Nothing runs meanwhile.
    """
    code = why.partition(":")[0]
    if code in OF_TOPICS and isinstance(system, SparkSystem):
        history.add("way out", target=f"{code}: {_go_on(system, code)}")
        return
    if code not in CODES or not isinstance(system, SparkSystem) or not fits(system, system.sink_id):
        return
    try:
        if not (done := _repaired(system)) and code in _PUT_BACK:
            done = _put_back(system, state=code == "SPARK-STATE-UNREADABLE")
    except (ExactlyOnceError, OSError, RuntimeError) as e:  # what it is on went away: the next end comes to it again
        history.add("no way out", target=f"{code}: {type(e).__name__}")
        return
    if done:
        history.add("way out", target=f"{code}: {done}")


def _go_on(system: SparkSystem, code: str) -> str:
    """Set the option that the error names, for all further starts: later ones do not need it. Return what was done."""
    if code == OF_TOPICS[0]:
        with Admin(system.workload.connection) as admin:
            [topic_id] = admin.topic_ids([system.topic]).values()
        system.options = {**system.options, "sink.adopt": topic_id}
        return f"sink.adopt={topic_id}"
    system.kill()  # its query would go on to write to the old checkpoint
    query_id = read_checkpoint(system.checkpoint).query_id
    system.options = {**system.options, "sink.takeover": query_id or ""}
    system.checkpoint = f"{system.checkpoint}-anew"
    shutil.rmtree(_copy(system), ignore_errors=True)  # that of the old checkpoint
    return f"a new checkpoint, and sink.takeover={query_id}"


def _repaired(system: SparkSystem) -> str:
    """Run the command: first dry, for the consequence that has to be typed out; return what it has changed."""
    system.kill()  # a driver that lives owns the sink
    dry = _command(system)
    if dry.get("whole", True) or not dry.get("findings"):
        return ""
    forced = ["--force", dry["force"]] if dry.get("force") else []
    done = _command(system, "--apply", *forced)
    changed = ", ".join(f"{f['action']} {f['name'] or 'checkpoint'}" for f in done.get("findings", []))
    return f"checkpoint repair: {changed}" if done.get("applied") else ""


def _command(system: SparkSystem, *more: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "exactly_once.tools.cli"]
    command += ["--bootstrap-servers", system.workload.connection.bootstrap_servers, "checkpoint", "repair"]
    command += [system.checkpoint, "--sink", system.sink_id, "--json", *more]
    try:
        ran = subprocess.run(
            command, capture_output=True, text=True, timeout=COMMAND_S, cwd=system.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
    except subprocess.TimeoutExpired:  # what the checkpoint is on does not answer
        return {}
    found = json.loads(ran.stdout) if ran.stdout.startswith("{") else {}
    return found if isinstance(found, dict) else {}


def _put_back(system: SparkSystem, state: bool = False) -> str:
    """Put back the copy, unless the checkpoint is newer than it; return what was done.

    Spark plans the next batch before it finds that it cannot read the state. So with ``state`` a checkpoint is newer
    only when it has committed more.
    """
    copy = _copy(system)
    if not copy.is_dir():
        return ""
    before, now = read_checkpoint(str(copy)), read_checkpoint(system.checkpoint)
    newer = _last(now.last_offsets) > _last(before.last_offsets)
    if state:
        newer = _last(now.last_commit) > _last(before.last_commit)
    if before.query_id == now.query_id and newer:
        return ""
    CheckpointFiles(system.checkpoint).replace(CheckpointFiles(copy))
    return f"the checkpoint of batch {_last(before.last_offsets)} is put back"


def _copy(system: SparkSystem) -> Path:
    return system.folder / "checkpoint-kept"


def _last(batch: int | None) -> int:
    return -1 if batch is None else batch
