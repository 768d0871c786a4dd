"""What this Spark driver knows about its claim, shared by the short-lived Python processes that Spark starts for it.

Spark plans a write and commits it in two different worker processes, and ends idle ones after a minute. Both see
``SPARK_LOCAL_DIRS``, a folder that belongs to one Spark application and goes with it: so a file there lives exactly as
long as the driver. It says which claim is ours and whether the last batch went through; when it is missing, or the
last batch did not, the next one begins with a new claim. Losing the file costs a claim, never correctness: the commit
log decides.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from exactly_once.errors import ProtocolViolation

#: Participant -> part (as text) -> [records, digest] of decided parts that were lost and are to be written again.
Replay = dict[str, dict[str, list[Any]]]


@dataclass(frozen=True, slots=True)
class DriverState:
    """The claim of this driver and its last batch.

    Attributes
    ----------
    token : int
        The claim.
    query_id : str
    end_txn_version : int
        For the decisions under this claim.
    timeout_ms : int
        transaction.timeout.ms of every part.
    clock_ahead_ms : int
        Brokers' clock minus this machine's, as the commit log's time stamps show it.
    last_batch : int
        The last batch that is decided, -1 for none.
    last_digest : str
        Its offsets digest.
    execution : str
        The execution that was planned last: one run of one batch's tasks.
    finished : bool
        Whether that execution went through to its end.
    swept_ms : int
        When open transactions were last looked for.
    input_offsets : dict
        Topic -> partition (as text) -> where the input of the batch in flight ends.
    replay : Replay
        What the batch in flight must write again, and nothing else of it.
    incarnation : str
        Of the commit log, in the names of parts; "" when there are no outputs beside Kafka.
    """

    token: int
    query_id: str
    end_txn_version: int
    timeout_ms: int
    clock_ahead_ms: int
    last_batch: int = -1
    last_digest: str = ""
    execution: str = ""
    finished: bool = True
    swept_ms: int = 0
    input_offsets: dict[str, dict[str, int]] = field(default_factory=dict)
    replay: Replay = field(default_factory=dict)
    incarnation: str = ""

    def planned(self, execution: str, input_offsets: dict[str, dict[int, int]]) -> DriverState:
        """The state while ``execution`` is under way, of a batch whose input ends at ``input_offsets``."""
        ends = {topic: {str(p): o for p, o in offsets.items()} for topic, offsets in input_offsets.items()}
        return replace(self, execution=execution, finished=False, input_offsets=ends)


class Store(Protocol):
    """Where a driver keeps its state."""

    def load(self) -> DriverState | None:
        """The state, or None."""

    def save(self, state: DriverState) -> None:
        """Replace the state."""


@dataclass(frozen=True)
class FileStore:
    """For a driver whose Python processes come and go: a file that lives as long as the Spark application."""

    sink_id: str
    checkpoint: str

    def load(self) -> DriverState | None:
        """The state of this driver for this sink and checkpoint, or None."""
        return load(self.sink_id, self.checkpoint)

    def save(self, state: DriverState) -> None:
        """Replace the state."""
        save(self.sink_id, self.checkpoint, state)


@dataclass
class MemoryStore:
    """For a driver that is one Python process."""

    state: DriverState | None = None

    def load(self) -> DriverState | None:
        """The state, or None."""
        return self.state

    def save(self, state: DriverState) -> None:
        """Replace the state."""
        self.state = state


def load(sink_id: str, checkpoint: str) -> DriverState | None:
    """The state of this driver for this sink and checkpoint, or None."""
    try:
        return DriverState(**json.loads(_path(sink_id, checkpoint).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def save(sink_id: str, checkpoint: str, state: DriverState) -> None:
    """Replace the state."""
    path = _path(sink_id, checkpoint)
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(f".{os.getpid()}.new")
    new.write_text(json.dumps(asdict(state)), encoding="utf-8")
    new.replace(path)


def _path(sink_id: str, checkpoint: str) -> Path:
    folder = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
    if not folder:  # any other folder might outlive the driver, and a later one would take over its claim unseen
        raise ProtocolViolation(
            "Spark did not tell its driver's Python process a local folder (SPARK_LOCAL_DIRS)",
            "Use Spark 4.2 or 4.3, which do; report it with your version otherwise",
        )
    name = hashlib.sha256(f"{sink_id}\n{checkpoint}".encode()).hexdigest()[:24]
    return Path(folder) / f"exactly-once-{name}.json"
