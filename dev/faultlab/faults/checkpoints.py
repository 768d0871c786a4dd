"""Checkpoints that a crash, a copy or a person has damaged, while the stream is down."""

from __future__ import annotations

import json
import uuid
from random import Random
from typing import TYPE_CHECKING, ClassVar

from faultlab import remedy as way_out
from faultlab.checkpoint_files import CheckpointFiles
from faultlab.faults.fault import NOTHING, Fault
from faultlab.system import SparkSystem

if TYPE_CHECKING:
    from faultlab.lab import Lab

#: Of Spark's logs: what it plans before a batch, and what it marks after it.
LOGS = ("offsets", "commits")

#: A copy from a nightly backup is older than by a batch; three are enough for the sink to have decided meanwhile.
REWOUND_BATCHES = (1, 2, 3)


class _Checkpoint(Fault):
    """A fault of the checkpoint: the driver is killed, the files change, and the operator starts it again.

    A copy of what was there is kept beside it (:func:`faultlab.remedy.keep`), as an operator who finds a checkpoint
    that no tool repairs needs one.
    """

    #: Which of :data:`LOGS` it strikes.
    logs: ClassVar[tuple[str, ...]] = LOGS

    @classmethod
    def fits(cls, lab: Lab) -> bool:
        return way_out.fits(lab.system, lab.sink_id)

    def do(self, lab: Lab, random: Random) -> str:
        assert isinstance(lab.system, SparkSystem)
        if lab.file_store is not None and lab.file_store.struck:
            return NOTHING
        if not way_out.is_past(lab.system):
            return NOTHING
        if lab.system.ended() is not None:
            lab.system.kill()  # a start under way fails at once, and the operator's hands come free
        with lab.operator.away():
            lab.system.kill()
            way_out.keep(lab.system)
            return self.spoil(CheckpointFiles(lab.system.checkpoint), random)

    def spoil(self, checkpoint: CheckpointFiles, random: Random) -> str:
        """Change the files of a checkpoint in which one batch at least is committed; return what was done."""
        log = random.choice(self.logs)
        number = checkpoint.batches(log)[-1]
        return f"{log}/{number} {self.spoil_file(checkpoint, log, number, random)}"

    def spoil_file(self, checkpoint: CheckpointFiles, log: str, number: int, random: Random) -> str:
        """Change the newest file of one log, which is ``number``."""
        raise NotImplementedError


class TearCheckpoint(_Checkpoint):
    """A loss of power, or a full disk: a file has its name and not, or not all of, its content."""

    name = "checkpoint-torn"
    what = "kill -9 of the driver; the newest file of offsets or commits is cut off, empty, or all zeros"

    def spoil_file(self, checkpoint: CheckpointFiles, log: str, number: int, random: Random) -> str:
        content = checkpoint.read(f"{log}/{number}")
        how = random.choice(("cut off", "empty", "zeros"))
        cut = random.randrange(1, len(content))
        left = {"cut off": content[:cut], "empty": b"", "zeros": bytes(len(content))}[how]
        checkpoint.write(f"{log}/{number}", left)
        return f"{how} ({cut} of {len(content)} bytes)" if how == "cut off" else how


class DeleteCheckpointFile(_Checkpoint):
    """Somebody deletes a file by guess, or its name was never made durable; its checksum stays, or goes too."""

    name = "checkpoint-deleted"
    what = "kill -9 of the driver; the newest file of offsets or commits is deleted, with its checksum or without"

    def spoil_file(self, checkpoint: CheckpointFiles, log: str, number: int, random: Random) -> str:
        checkpoint.delete(f"{log}/{number}")
        if random.random() < 0.5:
            return "deleted, its checksum not"
        checkpoint.delete(f"{log}/.{number}.crc")
        return "deleted"


class OlderCheckpointFile(_Checkpoint):
    """A file system that comes back with what a block held before."""

    name = "checkpoint-older"
    what = "kill -9 of the driver; the newest file of offsets or commits holds what the one before it held"

    def spoil_file(self, checkpoint: CheckpointFiles, log: str, number: int, random: Random) -> str:
        if not checkpoint.has(f"{log}/{number - 1}"):
            return NOTHING
        checkpoint.write(f"{log}/{number}", checkpoint.read(f"{log}/{number - 1}"))
        checkpoint.delete(f"{log}/.{number}.crc")
        return f"holds what {number - 1} held"


class RewindCheckpoint(_Checkpoint):
    """A checkpoint that was restored from a backup."""

    name = "checkpoint-rewound"
    what = "kill -9 of the driver; the files of the last one to three batches are gone, as in an older copy"

    def spoil(self, checkpoint: CheckpointFiles, random: Random) -> str:
        last = checkpoint.batches("offsets")[-1]
        count = min(random.choice(REWOUND_BATCHES), last)
        for log in LOGS:
            for number in checkpoint.batches(log):
                if number > last - count:
                    checkpoint.delete(f"{log}/{number}")
                    checkpoint.delete(f"{log}/.{number}.crc")
        return f"batches {last - count + 1} to {last} are gone" if count else NOTHING


class ForeignCheckpoint(_Checkpoint):
    """A stream that is started on the checkpoint of another query: one wrong letter in a path."""

    name = "checkpoint-foreign"
    what = "kill -9 of the driver; in place of the checkpoint there is that of another query, or of none"

    def spoil(self, checkpoint: CheckpointFiles, random: Random) -> str:
        if random.random() < 0.5:
            checkpoint.clear()
            return "none"
        other = str(uuid.UUID(int=random.getrandbits(128), version=4))
        checkpoint.write("metadata", json.dumps({"id": other}).encode())
        checkpoint.delete(".metadata.crc")
        return f"that of query {other}"


class SpoilState(_Checkpoint):
    """A loss of power, or a file system that comes back with what a block held before, under the state of a query."""

    name = "checkpoint-state"
    what = (
        "kill -9 of the driver; the newest state of one partition is cut off or empty, or, in RocksDB, holds what the "
        "one before it held"
    )

    @classmethod
    def fits(cls, lab: Lab) -> bool:
        return super().fits(lab) and bool(getattr(lab.system, "state", ""))

    def spoil(self, checkpoint: CheckpointFiles, random: Random) -> str:
        # batch N writes version N + 1; that of a batch in flight is written again
        version = checkpoint.batches("commits")[-1] + 1
        if not (files := checkpoint.state(version)):
            return NOTHING
        name = random.choice(files)
        before = _before(checkpoint, name, version)
        how = random.choice(("cut off", "empty", *(("older",) if before else ())))
        content = checkpoint.read(name)
        if how == "older":
            checkpoint.write(name, checkpoint.read(before))
            checkpoint.write(f"{name}.crc", checkpoint.read(f"{before}.crc"))
            return f"{name} holds what version {version - 1} held"
        cut = random.randrange(1, len(content)) if how == "cut off" else 0
        checkpoint.write(name, content[:cut])
        return f"{name} {how}" + (f" ({cut} of {len(content)} bytes)" if cut else "")


def _before(checkpoint: CheckpointFiles, name: str, version: int) -> str:
    """Return the same file of the version before; "" when there is none, or Spark keeps no checksum of it.

    Without checksums Spark reads an older file and notices nothing, and no sink can see that (docs/lab/faults.md).
    """
    folder, kind = name.rpartition("/")[0], name.rpartition(".")[2]
    same = (n for n in checkpoint.state(version - 1) if n.rpartition("/")[0] == folder and n.endswith(f".{kind}"))
    return next((n for n in same if checkpoint.has(f"{n}.crc")), "")


CHECKPOINTS = (
    *(TearCheckpoint, DeleteCheckpointFile, OlderCheckpointFile, RewindCheckpoint, ForeignCheckpoint),
    SpoilState,
)
