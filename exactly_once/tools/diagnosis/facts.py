"""The facts that a diagnosis needs. A fact that a screen does not know stays empty, and the symptoms that need it are
silent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from exactly_once.checkpoint import Checkpoint
from exactly_once.inspection.findings import BlockedPartition, Inspection
from exactly_once.inspection.hanging import Attributed
from exactly_once.inspection.processes import Frozen
from exactly_once.inspection.sink import worked_on
from exactly_once.protocol.log_state import LogState
from exactly_once.tools.diagnosis.model import Diagnosis

#: The reasons for committed batches beside a commit log without a claim: a start cannot tell, either.
UNCLAIMED = "the commit log was deleted, or the batches ran with another sink or under a weaker guarantee"
UNCLAIMED_REMEDY = (
    "If the commit log was deleted, see The commit log in docs/production.md. Else a start under exactly_once asks for "
    "your consent first (EO-REWOUND)"
)


@dataclass(frozen=True)
class Worker:
    """The run of the stream that is in progress, as the stream's operator knows it.

    Attributes
    ----------
    name : str
        For people: ``run 6369f6fc``.
    works : bool or None
        Whether its process lives; None when that process is on another host.
    owns : bool or None
        Whether the latest claim is its own; None when unknown.
    begun : bool
        Whether its first batch has begun: then it has claimed the sink.
    age_s : float
        The time since its process was launched; while the run waits for that, since a person or a sensor launched it.
    waits : str
        What it waits for before its process starts, as the operator calls it (``QUEUED``); "" once it has started.
    quiet_s : float or None
        The time for which its start has shown no progress; None when nobody knows.
    frozen : tuple of Frozen
        Its processes that live and do nothing.
    """

    name: str
    works: bool | None = True
    owns: bool | None = None
    begun: bool = True
    age_s: float = 0.0
    waits: str = ""
    quiet_s: float | None = None
    frozen: tuple[Frozen, ...] = ()

    @property
    def alive(self) -> bool:
        """True when its process has started and is not known to be gone."""
        return not self.waits and self.works is not False


@dataclass(frozen=True)
class StreamFacts:
    """All that the operator of a stream knows of it, beside its sink.

    Attributes
    ----------
    worker : Worker or None
        Its run in progress.
    failed : Diagnosis or None
        Why its newest run failed, if it did. The subject names the run (``run 6369f6fc``); the severity is error where
        a new start does not heal it.
    claimed_here : bool
        Whether a run of this operator made the latest claim.
    has_run : bool
        Whether this operator has ever run it.
    managed : bool
        Whether this operator runs it, rather than only observes it.
    lag, last_lag : int, int or None
        Offsets of input that Spark has not committed, now and at the look before.
    waited_s : float
        The time for which input has waited while no batch was decided or marked.
    idle_s : float or None
        Since the newest decision; None without one.
    in_flight : int or None
        The batch that is planned and not committed.
    orphaned : str
        What became of the run that made the latest claim, if its driver went on without it: ``run 6369f6fc was
        deleted``; else "".
    """

    worker: Worker | None = None
    failed: Diagnosis | None = None
    claimed_here: bool = False
    has_run: bool = False
    managed: bool = True
    lag: int = 0
    last_lag: int | None = None
    waited_s: float = 0.0
    idle_s: float | None = None
    in_flight: int | None = None
    orphaned: str = ""


@dataclass(frozen=True)
class HangingName:
    """A hanging transaction: its name (``topic-partition@start offset``), and its owner as :class:`Attributed` has it:
    ``ours``, ``foreign``, or ``unknown`` (it hangs, or its transactional id may not be seen).
    """

    name: str
    owner: str = "ours"
    transactional_id: str = ""

    @classmethod
    def of(cls, found: Attributed, sink_id: str) -> HangingName:
        """Return it as the sink ``sink_id`` sees it: a transaction of another sink is a foreign one."""
        owner = "foreign" if found.owner == "ours" and found.sink_id != sink_id else found.owner
        return cls(found.hanging.name, owner, found.hanging.transactional_id or "")


@dataclass(frozen=True)
class Standing:
    """A partition whose last stable offset stands, and since when, in ms since the epoch; None: for two looks."""

    blocked: BlockedPartition
    since_ms: int | None = None


@dataclass(frozen=True)
class ForeignAbort:
    """An aborted transaction whose transactional id only begins like those of the sink that was sweeping."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    places: tuple[str, ...]
    records: int


@dataclass(frozen=True)
class OffsetSkew:
    """An offset of the sink's consumer group that is not the decided one; ``offset`` is None when it is not there."""

    topic: str
    partition: int
    offset: int | None
    decided: int
    batch: str


@dataclass(frozen=True)
class Undecided:
    """All that a sink committed without a decision in its commit log: transactional ids, visible records, places."""

    names: tuple[str, ...]
    records: int
    places: tuple[str, ...]


@dataclass(frozen=True)
class SinkFacts:
    """All that is known of a sink at one moment.

    Attributes
    ----------
    sink : Inspection
    hanging : tuple of HangingName
        On the sink's topics.
    foreign : tuple of str
        Transactional ids of others whose transactions have held readers of the sink's topics back for too long.
    standing : tuple of Standing
        Partitions of the sink's topics on which the last stable offset stands.
    checkpoint : Checkpoint or None
        The stream's, read after the commit log in ``sink``: else a batch that is decided meanwhile would seem lost.
    after : LogState or None
        The commit log, read again after the checkpoint; None when nobody did.
    planned : str or None
        The digest of the checkpoint's ``offsets/N`` of the last decided batch: "" when there is no such file, None when
        nobody looked.
    leaked : tuple of str
        Transactional ids of the sink outside of its scheme of names.
    foreign_aborts : tuple of ForeignAbort
    skewed : tuple of OffsetSkew
    forgotten : mapping
        Query id -> batch that only the sink's consumer group still knows.
    undecided : Undecided or None
    stream : StreamFacts or None
        None on screens that know no runs.
    """

    sink: Inspection
    hanging: tuple[HangingName, ...] = ()
    foreign: tuple[str, ...] = ()
    standing: tuple[Standing, ...] = ()
    checkpoint: Checkpoint | None = None
    after: LogState | None = None
    planned: str | None = None
    leaked: tuple[str, ...] = ()
    foreign_aborts: tuple[ForeignAbort, ...] = ()
    skewed: tuple[OffsetSkew, ...] = ()
    forgotten: Mapping[str, int] = field(default_factory=dict)
    undecided: Undecided | None = None
    stream: StreamFacts | None = None

    @property
    def worker(self) -> Worker | None:
        return self.stream.worker if self.stream else None

    @property
    def frozen(self) -> tuple[Frozen, ...]:
        """The frozen processes of the run in progress, or of the sink's owner."""
        if self.worker is not None and self.worker.alive:
            return self.worker.frozen
        return self.sink.owner.frozen if self.sink.owner else ()

    @property
    def at_work(self) -> bool | None:
        """True when somebody ends what is open in the sink; None when nobody here can tell."""
        if self.worker is not None and self.worker.alive and not self.worker.frozen:
            return True
        if self.frozen or not worked_on(self.sink) or self.sink.owner is None:
            return False
        return self.sink.owner.alive
