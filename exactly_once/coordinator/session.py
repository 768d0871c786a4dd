"""Every step of the protocol works with a session: a sink's commit log and its participants, Kafka among them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, Self, TypeVar

from exactly_once.commitlog.commit_log import CommitLog
from exactly_once.coordinator.tracing import Trace, trace_of
from exactly_once.deadline import Deadline
from exactly_once.kafka.connection import Connection
from exactly_once.options import SinkOptions
from exactly_once.participant import Participant, Scope
from exactly_once.participants.kafka.participant import KafkaParticipant
from exactly_once.protocol.names import incarnation

#: Threads of a session: one writes the mark, and another sweeps; behind a claim, one asks what a warning is about. They
#: live as long as the query: an interpreter starts its threads one after the other, and with 50 queries in one driver a
#: batch of 2.0 s waited 0.8 s for that.
THREADS = 3

T = TypeVar("T")


class Session(AbstractContextManager["Session"]):
    """One process's work on one sink. It keeps its connections until it is closed.

    Attributes
    ----------
    sink_id, checkpoint : str
        ``checkpoint`` is "" for a batch write and for a recovery.
    participants : dict of str to Participant
        All of them by name, Kafka first.
    trace : Trace
        The trace of the batch in flight.
    """

    def __init__(
        self,
        log: CommitLog,
        kafka: KafkaParticipant,
        others: Iterable[Participant[Any]] = (),
        checkpoint: str = "",
        trace: Trace | None = None,
    ):
        self.log = log
        self.kafka = kafka
        self.participants: dict[str, Participant[Any]] = {p.name: p for p in (kafka, *others)}
        self.checkpoint = checkpoint
        self.trace = trace or Trace()
        self._threads = ThreadPoolExecutor(THREADS, "exactly-once-beside")

    @classmethod
    def of(cls, options: SinkOptions, others: Iterable[Participant[Any]] = ()) -> Self:
        """Return the session of a driver."""
        trace, kafka = trace_of(options), KafkaParticipant(options.connection, options.sink_id, options)
        log = CommitLog(options.connection, options.sink_id, kafka.beside)
        return cls(log, kafka, others, options.checkpoint, trace)

    @classmethod
    def without_driver(
        cls, connection: Connection, sink_id: str, others: Iterable[Participant[Any]], deadline: Deadline
    ) -> Self:
        """Return the session of a recovery."""
        kafka = KafkaParticipant(connection, sink_id, deadline=deadline)
        return cls(CommitLog(connection, sink_id, kafka.beside), kafka, others)

    @contextmanager
    def within(self, deadline: Deadline) -> Iterator[None]:
        """Give everything that is asked of Kafka inside this block one deadline together."""
        self.kafka.deadline = deadline
        try:
            yield
        finally:
            self.kafka.deadline = None

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Do ``work`` on a thread of this session. What it raises, whoever asks the future hears."""
        return self._threads.submit(work)

    def close(self) -> None:
        """Close the connections."""
        self._threads.shutdown(wait=False)
        self.log.close()
        for participant in self.participants.values():
            participant.close()

    @property
    def sink_id(self) -> str:
        """The id of the sink."""
        return self.log.sink_id

    def incarnation(self) -> str:
        """Return the commit log's own name in the names of parts (:class:`~exactly_once.participant.PartName`).

        It is "" when Kafka is the only participant, whose transactional ids do not hold it.
        """
        if len(self.participants) == 1:
            return ""
        return incarnation(*self.kafka.admin().cluster_and_topic_id(self.log.topic))

    def sweep(self, scope: Scope, participants: Iterable[str] | None = None) -> dict[str, list[str]]:
        """Have each participant, or those named, roll back what ``scope`` covers of its own parts; return the names of
        what was rolled back, by participant with any.
        """
        swept = {
            name: self.participants[name].recover_and_abort(replace(scope, participant=name))
            for name in (self.participants if participants is None else participants)
        }
        return {name: parts for name, parts in swept.items() if parts}
