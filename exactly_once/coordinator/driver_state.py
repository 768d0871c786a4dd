"""The driver's state about its claim, shared by the short-lived Python processes that Spark starts for it.

Spark plans a write and commits it in two different worker processes, and ends idle ones after a minute. Both see
``SPARK_LOCAL_DIRS``, a folder that belongs to one Spark application and goes with it: so a file there lives exactly as
long as the driver. It says which claim is ours and whether the last batch went through; when it is missing, or the
last batch did not, or its query has ended, the next one begins with a new claim. Losing the file costs a claim, never
correctness: the commit log decides.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Protocol

from exactly_once.errors import ProtocolViolation
from exactly_once.protocol.planning import Batch
from exactly_once.protocol.records import Aborted
from exactly_once.protocol.replay import Replay
from exactly_once.protocol.too_long import limit_ms


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
    batch_id, digest
        The batch that it runs, and its offsets digest.
    planned_ms : int
        When it was planned, by this machine's clock.
    finished : bool
        Whether that execution went through to its end.
    swept_ms : int
        When open transactions were last looked for.
    input_offsets : dict
        Topic -> partition (as text) -> where the input of the batch in flight ends.
    replay : Replay
        What the batch in flight must write again, and nothing else of it.
    incarnation : str
        Of the commit log, in the names of parts; "" when there are no outputs other than Kafka.
    log_end : int
        The high watermark of the commit log after this driver's last write to it; 0 when it is not known.
    too_long : int
        How many executions of the batch in flight, one after the other, were too long before this one.
    offsets : str
        The text of its ``offsets/N``, for its decision to keep; "" when that is too long.
    operator : str
        Who operates the driver, as the claim says.
    committer : str
        The process that committed the last batch. Spark takes any idle one, so the streams of a driver share them.
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
    batch_id: int = -1
    digest: str = ""
    planned_ms: int = 0
    log_end: int = 0
    too_long: int = 0
    offsets: str = ""
    operator: str = ""
    committer: str = ""

    def planned(
        self, execution: str, batch: Batch, planned_ms: int, input_offsets: dict[str, dict[int, int]]
    ) -> DriverState:
        """The state while ``execution`` of ``batch`` is under way, whose input ends at ``input_offsets``."""
        ends = {topic: {str(p): o for p, o in offsets.items()} for topic, offsets in input_offsets.items()}
        return replace(
            self,
            execution=execution,
            batch_id=batch.batch_id,
            digest=batch.offsets_digest,
            planned_ms=planned_ms,
            finished=False,
            input_offsets=ends,
            offsets=batch.offsets,
        )

    @property
    def batch(self) -> Batch:
        """The batch that was planned last."""
        return Batch(self.query_id, self.batch_id, self.digest)

    @property
    def drains(self) -> bool:
        """Return whether that batch was decided before, so that none of it may be written."""
        return (self.batch_id, self.digest) == (self.last_batch, self.last_digest) and not self.replay

    def aborted(self, aborted_ms: int) -> Aborted:
        """The commit-log record for the execution that was planned last: it ends without a decision."""
        took_ms, limit = max(0, aborted_ms - self.planned_ms), limit_ms(self.timeout_ms)
        too_long = self.too_long + 1 if took_ms >= limit else 0
        return Aborted(
            self.query_id,
            self.batch_id,
            self.digest,
            self.token,
            self.execution,
            aborted_ms,
            took_ms,
            limit,
            too_long,
        )


class Store(Protocol):
    """The place where a driver keeps its state."""

    def load(self) -> DriverState | None:
        """The state, or None; None also when the query of its execution has ended."""

    def save(self, state: DriverState) -> None:
        """Replace the state."""

    def retire(self, execution: str) -> None:
        """Say that the query which ran ``execution`` last has ended: its claim is not for the next one, since somebody
        may have taken the sink in between. Changes nothing for a query that has planned something since.
        """


@dataclass(frozen=True)
class FileStore:
    """For a driver whose Python processes come and go: a file that lives as long as the Spark application.

    ``folder`` is the application's; the Python processes that Spark starts know it from their environment.
    """

    sink_id: str
    checkpoint: str
    folder: str = ""

    def load(self) -> DriverState | None:
        """The state of this driver for this sink and checkpoint, or None."""
        return load(self.sink_id, self.checkpoint, self.folder)

    def save(self, state: DriverState) -> None:
        """Replace the state."""
        save(self.sink_id, self.checkpoint, state, self.folder)

    def retire(self, execution: str) -> None:
        """See :class:`Store`; a file of its own, since a query that begins meanwhile writes the other one."""
        _replace(_path(self.sink_id, self.checkpoint, self.folder).with_suffix(".ended"), execution)


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

    def retire(self, execution: str) -> None:
        """See :class:`Store`."""
        if self.state is not None and self.state.execution == execution:
            self.state = None


def load(sink_id: str, checkpoint: str, folder: str = "") -> DriverState | None:
    """The state of this driver for this sink and checkpoint; None without one, or when its query has ended."""
    path = _path(sink_id, checkpoint, folder)
    try:
        state = DriverState(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    with suppress(OSError, ValueError):
        if path.with_suffix(".ended").read_text(encoding="utf-8") == state.execution:
            return None
    return state


def save(sink_id: str, checkpoint: str, state: DriverState, folder: str = "") -> None:
    """Replace the state."""
    _replace(_path(sink_id, checkpoint, folder), json.dumps(asdict(state)))


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(f"{path.suffix}.{os.getpid()}.new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def _path(sink_id: str, checkpoint: str, folder: str) -> Path:
    folder = folder or os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
    if not folder:  # any other folder might outlive the driver, and a later one would take over its claim unseen
        raise ProtocolViolation(
            "Spark gave the driver's Python process no local directory (SPARK_LOCAL_DIRS)",
            "Use Spark 4.2 or 4.3, which set SPARK_LOCAL_DIRS; if one of these fails, report it with the exact version",
        )
    name = hashlib.sha256(f"{sink_id}\n{checkpoint}".encode()).hexdigest()[:24]
    return Path(folder) / f"exactly-once-{name}.json"
