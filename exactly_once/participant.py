"""The contract of the two-phase commit: what an output must offer to take part in a batch.

One decision in the sink's commit log covers all participants of a batch. Kafka is one of them
(:class:`exactly_once.participants.kafka.KafkaParticipant`), files and PostgreSQL are others
(:mod:`exactly_once.participants`); the conformance suite in :mod:`exactly_once.conformance` tells whether one of your
own keeps the contract.

The life of one part of a batch::

    task        begin -> write ... -> pre_commit          a handle travels to the driver
    driver      confirm (is every part still there?)      no: the batch is aborted and run again
                THE DECISION, one durable record          from here on the batch will be committed
                commit
    after a crash, in the next driver:
                recover_and_commit                        what was decided
                recover_and_abort                         everything else that older drivers left
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, NamedTuple, Protocol, Self, TypeVar

import pyarrow as pa

from exactly_once.digest import RowDigest
from exactly_once.errors import Expiring
from exactly_once.protocol.names import same_cluster
from exactly_once.protocol.planning import Batch
from exactly_once.protocol.records import Decision, PreparedPart

#: What an output of one's own is made of.
__all__ = [
    "Handle",
    "Participant",
    "PartName",
    "PartWriter",
    "PreparedPart",
    "Proposal",
    "RowDigest",
    "Scope",
]

_NAME = re.compile(
    r"eo:(?P<sink>[^:]+):((?P<incarnation>[a-z2-7]{10}):)?(?P<token>\d+):(?P<batch>\d+):(?P<part>\d+)"
    r":(?P<attempt>\d+\.\d+)(:(?P<participant>.+))?"
)


class PartName(NamedTuple):
    """The name of one attempt of one part in one participant: never used twice, whatever fails, restarts, is superseded
    or starts over.

    ``str(name)`` is ``eo:<sink id>:<incarnation>:<claim>:<batch>:<part>:<attempt>:<participant>``. A sink id has no
    ``:``, so no sink's names begin like another's. ``token`` is the claim of the driver that planned the attempt;
    ``incarnation`` tells the commit log that counts the claims from any other, of this cluster or another one
    (:func:`~exactly_once.protocol.names.incarnation`). Names that earlier versions made have neither incarnation nor
    participant.
    """

    sink_id: str
    token: int
    batch_id: int
    part: int
    attempt: str
    incarnation: str = ""
    participant: str = ""

    def __str__(self) -> str:
        incarnation = f"{self.incarnation}:" if self.incarnation else ""
        participant = f":{self.participant}" if self.participant else ""
        number = f"{self.token}:{self.batch_id}:{self.part}:{self.attempt}"
        return f"eo:{self.sink_id}:{incarnation}{number}{participant}"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The name that ``text`` is; None when it is not one."""
        m = _NAME.fullmatch(text)
        if m is None:
            return None
        numbers = int(m["token"]), int(m["batch"]), int(m["part"])
        return cls(m["sink"], *numbers, m["attempt"], m["incarnation"] or "", m["participant"] or "")


def prefix(sink_id: str) -> str:
    """What the names of all parts of the sink begin with, and no others."""
    return f"eo:{sink_id}:"


class Handle(Protocol):
    """What ``pre_commit`` returns and the commit log keeps: all that another process, on another machine, after any
    restart, needs to finish the part. No secrets: it is stored and shown.
    """

    @property
    def participant(self) -> str:
        """The participant's name."""

    @property
    def name(self) -> str:
        """What a person calls the part's transaction."""

    @property
    def part(self) -> int:
        """The number of the part in its batch."""

    @property
    def records(self) -> int:
        """Rows in it, at least 1."""

    @property
    def digest(self) -> str:
        """Of its rows, whatever their order (:class:`exactly_once.digest.RowDigest`); "" when it is not known."""


@dataclass(frozen=True)
class Scope:
    """The undecided parts that a sweep may abort.

    Attributes
    ----------
    sink_id : str
    before : int
        Parts of claims before this token: their drivers are superseded. 0 for a driver that is superseded itself, and
        may touch nothing but its own.
    own : int or None
        Also parts of this claim: the driver's own, when nothing of it is under way.
    decided : tuple of Handle
        Handles that a decision holds: their parts are to be committed.
    incarnation : str
        Of the commit log that counts these claims. Parts of another log of the same cluster are covered whatever their
        claim: a sink has one log, so that one was deleted, and nobody can decide them. Parts of another cluster are
        not: a sink of the same name lives there.
    participant : str
        Whose parts.
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
        """Return whether a sweep must abort the part with this name. False for everything foreign."""
        part = PartName.parse(name)
        if part is None or part.sink_id != self.sink_id or name in self.spare:
            return False
        if part.participant not in ("", self.participant):
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


H = TypeVar("H", bound=Handle)


class PartWriter(ABC, Generic[H]):
    """One attempt of one part, in a task: opened by :meth:`Participant.begin`, used by one thread."""

    @abstractmethod
    def write(self, rows: pa.RecordBatch) -> None:
        """Take some rows; nothing of them may be visible to a reader. After an error the part is aborted.

        Raises
        ------
        InvalidRecord
            A row that the output cannot take: trying again would not help. Also of :meth:`pre_commit`.
        PrepareFailed
            The task is tried again, under another name.
        """

    @abstractmethod
    def pre_commit(self) -> H | None:
        """Make everything that was written durable, so that :meth:`Participant.commit` can no longer fail for a reason
        that lies in the rows, and let go of it: from here on the part belongs to the driver.

        Returns
        -------
        The handle; None when no row was written, and nothing is left behind then.

        Raises
        ------
        PrepareFailed
            The task is tried again, under another name.
        """

    @abstractmethod
    def abort(self) -> None:
        """Give up before ``pre_commit`` returned: leave nothing behind, or leave it to ``recover_and_abort``. Never
        raises.
        """


class Participant(ABC, Generic[H]):
    """One output of a batch.

    It travels to the tasks by pickle: keep settings in it, open connections where they are used. All methods but
    ``begin`` run on the driver (or in a recovery), one at a time.

    A driver calls ``check`` before its first ``begin``; a recovery calls no ``check``. What is decided is committed
    before anything is swept. Part names carry the participant's name: two participants of one sink may share a place.
    The handles are :class:`~exactly_once.protocol.records.PreparedPart`; Kafka alone has its own kind.

    Everything may be called again with the same arguments, by the same or by another process, at any time after a
    crash: ``commit``, ``abort`` and both ``recover_...`` are idempotent. When they return, what they did is durable.

    They raise

    ``Unfinished``
        The output does not answer now. Nothing is lost; the next start tries again. Say in ``safe`` what is safe, where
        the parts are not decided yet.
    ``Expired``
        The output cannot tell whether a decided part was committed. The stream stops until a person has looked; the
        engine adds to the way out the option that continues past the part.
    any other :class:`~exactly_once.errors.ExactlyOnceError`
        The stream stops; decided batches stay decided, and the next start continues with them.
    """

    #: Names the participant in decisions: unique in its sink, the same over restarts. ``kafka`` is taken.
    name: str

    def check(self, sink_id: str, schema: pa.Schema) -> None:
        """Refuse, before anything is written, what cannot work: settings, rights, columns.

        Raises
        ------
        ExactlyOnceError
        """

    @abstractmethod
    def begin(self, part: PartName) -> PartWriter[H]:
        """Begin one attempt of one part. Called for parts that have rows only.

        Whatever it makes that outlives the task must carry ``str(part)``, so that ``recover_and_abort`` finds it.
        """

    def gone(self, handles: Sequence[H]) -> Iterable[H]:
        """Those of the prepared, undecided ``handles`` that can no longer be committed."""
        return ()

    def confirm(self, proposal: Proposal) -> Decision:
        """Make sure that the batch can be decided: every part is there. Asked last before the decision.

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
        """Publish the decided parts, of one batch. A part that is committed already is left as it is.

        Returns
        -------
        Those that are proven to be rolled back and whose rows are not visible: they are written again from the same
        micro-batch. Empty when all went well.
        """

    @abstractmethod
    def abort(self, handles: Sequence[H]) -> None:
        """Roll back prepared parts of an undecided batch. What is gone already is left alone."""

    def recover_and_commit(self, handles: Sequence[H]) -> Iterable[H]:
        """:meth:`commit` in a later driver: its own ``commit`` may have been cut off anywhere, or never begun."""
        return self.commit(handles)

    @abstractmethod
    def recover_and_abort(self, scope: Scope) -> list[str]:
        """Find everything that begun or prepared parts left behind, and roll back what ``scope`` covers: nothing else.

        Returns
        -------
        list of str
            The names of what was rolled back.
        """

    def close(self) -> None:
        """Close the connections that the participant keeps; the next call opens them again."""
