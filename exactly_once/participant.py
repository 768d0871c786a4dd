"""The contract of the two-phase commit: what an output must offer to take part in a batch.

One decision in the sink's commit log covers all participants of a batch. Kafka is one of them
(:class:`exactly_once.participants.kafka.participant.KafkaParticipant`), files and PostgreSQL are others
(:mod:`exactly_once.outputs`); the conformance suite in :mod:`exactly_once.outputs.conformance` tests whether a
participant of your own keeps the contract.

One part of a batch, step by step::

    task        begin -> write ... -> pre_commit          a handle travels to the driver
    driver      confirm (is every part still there?)      no: the batch is aborted and run again
                THE DECISION, one durable record          from here on the batch will be committed
                commit
    after a crash, in the next driver:
                recover_and_commit                        decided parts
                recover_and_abort                         all other parts of older drivers
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from exactly_once.digest import RowDigest
from exactly_once.errors import Expiring
from exactly_once.protocol.names import PartName, same_cluster
from exactly_once.protocol.planning import Batch
from exactly_once.protocol.records import Decision, PreparedPart

if TYPE_CHECKING:
    import pyarrow as pa

#: The names that an output of your own needs.
__all__ = [
    "Found",
    "Handle",
    "Participant",
    "PartName",
    "PartWriter",
    "PreparedPart",
    "Proposal",
    "RowDigest",
    "Scope",
]


class Handle(Protocol):
    """The result of ``pre_commit``, which the commit log keeps: all that another process, on another machine, needs to
    finish the part after any restart. No secrets: the sink stores it and shows it to operators.
    """

    @property
    def participant(self) -> str:
        """The participant's name."""

    @property
    def name(self) -> str:
        """The name of the part's transaction, for people."""

    @property
    def part(self) -> int:
        """The number of the part in its batch."""

    @property
    def records(self) -> int:
        """The number of its rows, at least 1."""

    @property
    def digest(self) -> str:
        """The digest of its rows, whatever their order (:class:`exactly_once.digest.RowDigest`); "" when unknown."""


@dataclass(frozen=True)
class Scope:
    """The undecided parts that a sweep may abort.

    Attributes
    ----------
    sink_id : str
    before : int
        Covers parts of claims before this token: their drivers are superseded. 0 for a driver that is superseded
        itself, and may touch only its own parts.
    own : int or None
        Also covers parts of this claim: the driver's own.
    decided : tuple of Handle
        Handles in a decision: their parts will be committed, so the scope does not cover them.
    incarnation : str
        The commit log that counts these claims. The scope covers parts of another log of the same cluster whatever
        their claim: a sink has one log, so the other one was deleted, and no driver can decide its parts. It does not
        cover parts of another cluster: they may belong to a live sink of the same name.
    participant : str
        The participant whose parts it covers.
    running : bool
        Tasks of ``own`` may still run. An output that can keep them from beginning another part does so first.
    owner : int
        The claim that superseded the sweeping driver; 0 when none did.
    """

    sink_id: str
    before: int
    own: int | None = None
    decided: tuple[Handle, ...] = ()
    incarnation: str = ""
    participant: str = ""
    running: bool = False
    owner: int = 0

    @cached_property
    def spare(self) -> frozenset[str]:
        """The names of the decided parts."""
        return frozenset(h.name for h in self.decided)

    def covers(self, name: str) -> bool:
        """Return whether a sweep must abort the part with this name; False for foreign names."""
        part = PartName.parse(name)
        if part is None or not part.is_of(self.sink_id, self.participant) or name in self.spare:
            return False
        if part.incarnation in ("", self.incarnation):
            return part.token < self.before or part.token == self.own
        return self.before > 0 and same_cluster(part.incarnation, self.incarnation)


@dataclass(frozen=True, slots=True)
class Proposal:
    """A batch that all tasks have prepared, right before its decision.

    Attributes
    ----------
    sink_id, checkpoint : str
    batch : Batch
    decision : Decision
        As the tasks' results make it.
    last : Decision or None
        The last decision of the same query.
    planned_ms : int
        When the driver planned this execution, by its own clock.
    timeout_ms : int
        transaction.timeout.ms of every part.
    clock_ahead_ms : int
        The brokers' clock minus the driver's.
    too_long : int
        How many executions of this batch, right before this one, took too long.
    """

    sink_id: str
    checkpoint: str
    batch: Batch
    decision: Decision
    last: Decision | None
    planned_ms: int
    timeout_ms: int
    clock_ahead_ms: int
    too_long: int


@dataclass(frozen=True, slots=True)
class Found:
    """The state of one part as an output's readers see it now.

    Attributes
    ----------
    name : str
        The part's name; "" for rows or files that readers see among the sink's own and that carry no part's name.
    visible : bool
        Whether readers see rows of the part.
    prepared : bool
        Whether the part is begun or prepared and waits for its commit.
    records : int
        The number of its visible rows.
    digest : str
        The digest of its visible rows (:class:`exactly_once.digest.RowDigest`); "" where it cannot be computed again
        exactly: then the part counts as unproven.
    places : tuple of str
        Where a person finds it, such as a path or a transaction's id; more than one if readers see it more than once.
    wrong : str
        A clause that says how this differs from what the task wrote, as far as the output knows; "" when it does not,
        or when ``records`` and ``digest`` say it all.
    unproven : str
        Why the output cannot tell what readers see of the part; then only ``name`` has a meaning.
    """

    name: str
    visible: bool = False
    prepared: bool = False
    records: int = 0
    digest: str = ""
    places: tuple[str, ...] = ()
    wrong: str = ""
    unproven: str = ""


H = TypeVar("H", bound=Handle)


class PartWriter(ABC, Generic[H]):
    """One attempt of one part, in a task: opened by :meth:`Participant.begin`, used by one thread."""

    @abstractmethod
    def write(self, rows: pa.RecordBatch) -> None:
        """Take some rows, without making them visible to a reader. After an error the engine aborts the part.

        Raises
        ------
        InvalidRecord
            The output cannot take a row, and a retry would not help. :meth:`pre_commit` may raise it too.
        PrepareFailed
            Spark retries the task, under another name.
        """

    @abstractmethod
    def pre_commit(self) -> H | None:
        """Make all rows durable, so that no property of the rows can make :meth:`Participant.commit` fail, and release
        the part: from here on it belongs to the driver.

        Returns
        -------
        The handle; None when no row was written: then nothing may be left behind.

        Raises
        ------
        PrepareFailed
            Spark retries the task, under another name.
        """

    @abstractmethod
    def abort(self) -> None:
        """Give up the part before ``pre_commit`` has returned: remove it, or leave it to ``recover_and_abort``. Never
        raises.
        """


class Participant(ABC, Generic[H]):
    """One output of a batch.

    Participants travel to the tasks by pickle: keep settings in them, and open connections where they are used. All
    methods except ``begin`` run on the driver (or in a recovery), one at a time.

    A driver calls ``check`` before its first ``begin``; a recovery does not call ``check``. The engine commits decided
    parts before it sweeps. Part names carry the participant's name, so two participants of one sink may share a place.
    The handles are :class:`~exactly_once.protocol.records.PreparedPart`; only Kafka has its own kind.

    After a crash, the same or another process may call any method again with the same arguments: ``commit``, ``abort``
    and both ``recover_...`` are idempotent. Their effects are durable when they return.

    They raise

    ``Unfinished``
        The output does not answer now. Nothing is lost; the next start tries again. Pass ``safe`` if the parts are not
        decided yet.
    ``Expired``
        The output cannot tell whether a decided part was committed. The stream stops for a person; the engine adds to
        the way out the option that continues past the part.
    any other :class:`~exactly_once.errors.ExactlyOnceError`
        The stream stops; decided batches stay decided, and the next start continues with them.
    """

    #: The participant's name in decisions: unique in its sink, the same across restarts. ``kafka`` is taken.
    name: str

    def check(self, sink_id: str, schema: pa.Schema) -> None:
        """Refuse settings, rights and columns that cannot work, before anything is written.

        Parameters
        ----------
        sink_id : str
            The option ``sink.id``.
        schema : pyarrow.Schema
            The columns of the rows that :meth:`PartWriter.write` will get.

        Raises
        ------
        ExactlyOnceError
            When the output cannot work like this: the start of the stream fails with this error.
        """

    @abstractmethod
    def begin(self, part: PartName) -> PartWriter[H]:
        """Begin one attempt of one part. The engine calls it only for parts with rows.

        Everything that it creates and that outlives the task must carry ``str(part)``, so that ``recover_and_abort``
        finds it.
        """

    def gone(self, handles: Sequence[H]) -> Iterable[H]:
        """Return the prepared, undecided ``handles`` that can no longer be committed. Raises what :meth:`check` would,
        where the output has changed since, as far as that costs no request more.
        """
        return ()

    def confirm(self, proposal: Proposal) -> Decision:
        """Make sure that the batch can be decided: every part is still there. The engine calls it right before the
        decision.

        Override :meth:`gone` rather than this method, unless the output adds something to the decision.

        Returns
        -------
        Decision
            That of ``proposal``, with what the output adds to it.

        Raises
        ------
        Expiring
            When a part is gone.
        """
        mine = proposal.decision.parts_of(self.name)
        if gone := list(self.gone(mine)) if mine else []:
            raise Expiring(
                f"participant {self.name!r}: {gone[0].name} of batch {proposal.batch.batch_id} was prepared but no "
                "longer exists",
                "Start the stream again, and find out what rolls back the parts that this sink prepares",
            )
        return proposal.decision

    @abstractmethod
    def commit(self, handles: Sequence[H]) -> Iterable[H]:
        """Commit the decided parts of one batch. Leaves committed parts as they are.

        Returns
        -------
        The parts that are proven rolled back and not visible: the engine writes them again from the same micro-batch.
        Empty when every part is committed.
        """

    @abstractmethod
    def abort(self, handles: Sequence[H]) -> None:
        """Roll back prepared parts of an undecided batch. Ignores parts that are already gone."""

    def recover_and_commit(self, handles: Sequence[H]) -> Iterable[H]:
        """Do :meth:`commit` in a later driver: the earlier one may have died anywhere in ``commit``, or before it."""
        return self.commit(handles)

    @abstractmethod
    def recover_and_abort(self, scope: Scope) -> list[str]:
        """Find all begun and prepared parts, and roll back those that ``scope`` covers, and no others.

        Returns
        -------
        list of str
            The names of the parts that it rolled back.
        """

    def found(self, sink_id: str, handles: Sequence[H]) -> Iterable[Found]:
        """Report what readers of the output see, for ``exactly-once verify``. Changes nothing, needs no :meth:`check`
        before it, and may run while a driver commits.

        Parameters
        ----------
        handles : sequence of Handle
            The decided parts of the newest batches, oldest batch first.

        Returns
        -------
        iterable of Found
            One for each of ``handles``; and one for everything else of this sink and participant that is prepared, or
            that readers see in addition to ``handles``: nobody decided it. Decided parts that are left out count as
            unproven, as all do by default.
        """
        return ()

    def close(self) -> None:
        """Close the connections that the participant keeps; the next call opens them again."""
