"""Checkpoints that a crash, a copy or a person has damaged, while the stream is down."""

from __future__ import annotations

import json
import shutil
import uuid
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, ClassVar

from faultlab import way_out
from faultlab.faults.kind import NOTHING, Fault
from faultlab.system import SparkSystem

if TYPE_CHECKING:
    from faultlab.lab import Lab

#: Of Spark's logs: what it plans before a batch, and what it marks after it.
LOGS = ("offsets", "commits")

#: A copy from a nightly backup is older than by a batch; three are enough for the sink to have decided meanwhile.
REWOUND_BATCHES = (1, 2, 3)


def batches(log: Path) -> list[int]:
    """The numbers of the files in ``offsets`` or ``commits``."""
    return sorted(int(f.name) for f in log.glob("*") if f.name.isdigit()) if log.is_dir() else []


class _Checkpoint(Fault):
    """A fault of the checkpoint: the driver is killed, the files change, and the operator starts it again.

    A copy of what was there is kept beside it (:func:`faultlab.way_out.keep`), as an operator who finds a checkpoint
    that no tool repairs needs one.
    """

    #: Which of :data:`LOGS` it strikes.
    logs: ClassVar[tuple[str, ...]] = LOGS

    @classmethod
    def fits(cls, lab: Lab) -> bool:
        return way_out.fits(lab.system, lab.sink_id)

    def do(self, lab: Lab, random: Random) -> str:
        assert isinstance(lab.system, SparkSystem) and lab.system.checkpoint is not None
        if not way_out.is_past(lab.system):
            return NOTHING
        if lab.system.ended() is not None:
            lab.system.kill()  # a start under way fails at once, and the operator's hands come free
        with lab.operator.away():
            lab.system.kill()
            way_out.keep(lab.system)
            return self.spoil(lab.system.checkpoint, random)

    def spoil(self, checkpoint: Path, random: Random) -> str:
        """Change the files of a checkpoint in which one batch at least is committed; return what was done."""
        log = random.choice(self.logs)
        number = batches(checkpoint / log)[-1]
        return f"{log}/{number} {self.spoil_file(checkpoint / log / str(number), random)}"

    def spoil_file(self, file: Path, random: Random) -> str:
        """Change the newest file of one log."""
        raise NotImplementedError


class TearCheckpoint(_Checkpoint):
    """A loss of power, or a full disk: a file has its name and not, or not all of, its content."""

    name = "checkpoint-torn"
    what = "kill -9 of the driver; the newest file of offsets or commits is cut off, empty, or all zeros"

    def spoil_file(self, file: Path, random: Random) -> str:
        content = file.read_bytes()
        how = random.choice(("cut off", "empty", "zeros"))
        cut = random.randrange(1, len(content))
        file.write_bytes({"cut off": content[:cut], "empty": b"", "zeros": bytes(len(content))}[how])
        return f"{how} ({cut} of {len(content)} bytes)" if how == "cut off" else how


class DeleteCheckpointFile(_Checkpoint):
    """Somebody deletes a file by guess, or its name was never made durable; its checksum stays, or goes too."""

    name = "checkpoint-deleted"
    what = "kill -9 of the driver; the newest file of offsets or commits is deleted, with its checksum or without"

    def spoil_file(self, file: Path, random: Random) -> str:
        file.unlink()
        if random.random() < 0.5:
            return "deleted, its checksum not"
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
        return "deleted"


class OlderCheckpointFile(_Checkpoint):
    """A file system that comes back with what a block held before."""

    name = "checkpoint-older"
    what = "kill -9 of the driver; the newest file of offsets or commits holds what the one before it held"

    def spoil_file(self, file: Path, random: Random) -> str:
        before = file.with_name(str(int(file.name) - 1))
        if not before.is_file():
            return NOTHING
        file.write_bytes(before.read_bytes())
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
        return f"holds what {before.name} held"


class RewindCheckpoint(_Checkpoint):
    """A checkpoint that was restored from a backup."""

    name = "checkpoint-rewound"
    what = "kill -9 of the driver; the files of the last one to three batches are gone, as in an older copy"

    def spoil(self, checkpoint: Path, random: Random) -> str:
        last = batches(checkpoint / "offsets")[-1]
        count = min(random.choice(REWOUND_BATCHES), last)
        for log in LOGS:
            for number in batches(checkpoint / log):
                if number > last - count:
                    (checkpoint / log / str(number)).unlink()
                    (checkpoint / log / f".{number}.crc").unlink(missing_ok=True)
        return f"batches {last - count + 1} to {last} are gone" if count else NOTHING


class ForeignCheckpoint(_Checkpoint):
    """A stream that is started on the checkpoint of another query: one wrong letter in a path."""

    name = "checkpoint-foreign"
    what = "kill -9 of the driver; in place of the checkpoint there is that of another query, or of none"

    def spoil(self, checkpoint: Path, random: Random) -> str:
        if random.random() < 0.5:
            shutil.rmtree(checkpoint)
            return "none"
        other = str(uuid.UUID(int=random.getrandbits(128), version=4))
        (checkpoint / "metadata").write_text(json.dumps({"id": other}))
        (checkpoint / ".metadata.crc").unlink(missing_ok=True)
        return f"that of query {other}"


CHECKPOINTS = (TearCheckpoint, DeleteCheckpointFile, OlderCheckpointFile, RewindCheckpoint, ForeignCheckpoint)
