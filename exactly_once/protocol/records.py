"""What the commit log holds: claims, decisions and completed marks, and their JSON form.

The JSON carries a format number; a reader refuses a higher one than it knows, so that an older version of this package
never acts on a log that it half understands.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from exactly_once.errors import CommitLogDamaged

#: Raised when a change would mislead an older reader.
FORMAT = 1

#: Decisions are kept under this many rotating keys, so that compaction bounds the topic. Only the last one is ever
#: needed for safety; the others are the audit trail.
KEPT_DECISIONS = 64


@dataclass(frozen=True, slots=True)
class PreparedTransaction:
    """The handle of one prepared transaction: all that another process needs to end it.

    Attributes
    ----------
    transactional_id, producer_id, epoch
        Identify exactly one transaction, because every transaction has its own InitProducerId.
    part : int
        Spark's partition id of the task.
    records : int
        Records acknowledged by the broker in this transaction, at least 1.
    bytes : int
        Their keys and values, in bytes.
    """

    transactional_id: str
    producer_id: int
    epoch: int
    part: int
    records: int
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Claim:
    """Somebody became the one who may decide for the sink.

    ``token`` grows by one with each claim. ``query_id`` binds the sink to a Spark query; a claim by a recovery keeps
    the binding that it found. ``purpose`` is ``stream`` or ``recovery``.
    """

    token: int
    query_id: str | None
    claimed_ms: int
    purpose: str
    host: str
    pid: int
    checkpoint: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """Batch ``batch_id`` of ``query_id`` commits with exactly these handles.

    ``offsets_digest`` is the SHA-256 of Spark's ``offsets/<batch id>``; ``end_txn_version`` is the version that every
    EndTxn for these handles must use, retries included.
    """

    query_id: str
    batch_id: int
    token: int
    handles: tuple[PreparedTransaction, ...]
    offsets_digest: str
    end_txn_version: int
    decided_ms: int
    run_id: str = ""
    topics: tuple[str, ...] = ()

    @property
    def records(self) -> int:
        """Records in all parts."""
        return sum(h.records for h in self.handles)


@dataclass(frozen=True, slots=True)
class Completed:
    """Every handle of the decision was proven committed."""

    query_id: str
    batch_id: int
    token: int
    completed_ms: int


Record = Claim | Decision | Completed
_KINDS: dict[str, type] = {"claim": Claim, "decision": Decision, "completed": Completed}


@dataclass(frozen=True, slots=True)
class Entry:
    """A record with its place in the log."""

    record: Record
    offset: int
    timestamp_ms: int = field(default=-1)


def key_of(record: Record) -> str:
    """The compaction key: one claim, and the last :data:`KEPT_DECISIONS` decisions with their marks."""
    if isinstance(record, Claim):
        return "claim"
    kind = "decision" if isinstance(record, Decision) else "completed"
    return f"{kind}/{record.batch_id % KEPT_DECISIONS}"


def encode(record: Record) -> bytes:
    """The record as JSON."""
    kind = next(k for k, t in _KINDS.items() if isinstance(record, t))
    body = asdict(record)
    if isinstance(record, Decision):  # a list of lists: a fifth of the size when a batch has a thousand parts
        body["handles"] = [
            [h.transactional_id, h.producer_id, h.epoch, h.part, h.records, h.bytes] for h in record.handles
        ]
    return json.dumps({"format": FORMAT, "kind": kind, **body}, separators=(",", ":")).encode()


def decode(value: bytes) -> Record:
    """The record in ``value``.

    Raises
    ------
    CommitLogDamaged
        When it was written by a newer version or is not a record at all.
    """
    try:
        body: dict[str, Any] = json.loads(value)
        if not isinstance(body, dict):
            raise ValueError("not an object")
        if body.pop("format") > FORMAT:
            raise CommitLogDamaged(
                "the commit log was written by a newer version of this package", "Upgrade the package on this driver"
            )
        kind = _KINDS[body.pop("kind")]
        if kind is Decision:
            body["handles"] = tuple(PreparedTransaction(*h) for h in body["handles"])
            body["topics"] = tuple(body["topics"])
        record: Record = kind(**body)
        return record
    except (KeyError, TypeError, ValueError) as e:
        raise CommitLogDamaged(
            f"the commit log holds {value[:80]!r}, which is no claim, decision or completed mark ({e})",
            "Find out who wrote to the topic; only the sink may",
        ) from e
