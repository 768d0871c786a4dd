"""A sink whose batches a test writes by hand: every step of the protocol alone, so that each can be left out or done
wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace

from confluent_kafka import Producer

from exactly_once.commitlog.commit_log import CommitLog
from exactly_once.commitlog.progress import progress_of
from exactly_once.deadline import Deadline, now_ms
from exactly_once.digest import RowDigest
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.participants.kafka.digest_scope import PLAIN, add_read
from exactly_once.protocol.batch_headers import Header
from exactly_once.protocol.checkpoint_text import digest_of
from exactly_once.protocol.outcomes import Outcome
from exactly_once.protocol.records import Aborted, Claim, Completed, Decision, Place, PreparedTransaction
from exactly_once.txn.coordinators import Description, End, describe, end_all, end_txn_version, initialise
from exactly_once.txn.leaders import open_on
from testkit import broker as brokers
from testkit.part_ids import part_id

#: The text of ``offsets/N`` of a batch, unless a test says where its input ends.
PLANNED = 'v1\n{"batchTimestampMs":5}\n{}'

#: A row: key, value and partition.
Row = tuple[str, str, int]


def begin_of(admin: Admin, d: Description) -> Place:
    """Return the place of the first record of an open transaction, which a task knows from its acknowledgements."""
    mine = (d.producer_id, d.producer_epoch)
    found = [h for h in open_on(admin, d.partitions) if (h.producer_id, h.producer_epoch) == mine]
    return min(Place(h.topic, h.partition, h.start_offset) for h in found)


class MadeSink:
    """By default its query is ``q``, and its owner a process on another host. With ``progress_topic`` it tells readers
    which batches are whole.
    """

    def __init__(
        self,
        connection: Connection,
        topic: str,
        sink_id: str | None = None,
        query_id: str = "q",
        progress_topic: str = "",
    ):
        self.query_id, self.progress_topic = query_id, progress_topic
        self.connection, self.topic = connection, topic
        self.sink_id = sink_id or brokers.fresh_name("sink")
        self.log = CommitLog(connection, self.sink_id)
        self.token = 0
        self.producers: list[Producer] = []
        self.decided: dict[int, Decision] = {}

    def claim(self) -> None:
        """Become the owner anew."""
        self.token += 1
        claim = Claim(self.token, self.query_id, now_ms(), "stream", "elsewhere", 1, "/c", progress=self.progress_topic)
        self.log.claim(lambda state: claim, Deadline(30))

    def write(
        self,
        part: int,
        rows: Sequence[Row],
        attempt: str = "0.0",
        token: int | None = None,
        name: str = "",
        hashed: Sequence[Row] = (),
        form: str = PLAIN,
        headers: Callable[[int], Sequence[Header]] = lambda n: (),
        added: Sequence[Header] = (),
    ) -> PreparedTransaction:
        """Write the rows of a part; its transaction stays open. The handle has the digest of ``hashed``, if given, in
        the ``form``; ``headers`` are those of the n-th row, and ``added`` what an agent adds behind them.
        """
        name = name or part_id(self.sink_id, self.token if token is None else token, part, attempt)
        producer = brokers.open_transaction(self.connection, name)
        digest = RowDigest()
        for n, (key, value, partition) in enumerate(rows):
            producer.produce(self.topic, value, key, partition, headers=[*headers(n), *added])
        for n, (key, value, partition) in enumerate(hashed or rows):
            record = SimpleNamespace(key=key.encode(), value=value.encode(), headers=[*headers(n)], timestamp=None)
            add_read(digest, form, self.topic, partition, [record])
        producer.flush(30)
        self.producers.append(producer)  # so that it does not abort what it has open
        with Admin(self.connection) as admin:
            d = describe(admin, [name])[name]
            size = sum(len(k) + len(v) for k, v, _ in rows)
            told = name, d.producer_id, d.producer_epoch, part, len(rows), size, digest.text
            return PreparedTransaction(*told, begin_of(admin, d), form=form)

    def decide(
        self,
        batch: int,
        handles: Sequence[PreparedTransaction],
        offsets: str = "",
        published: Mapping[str, Mapping[int, int]] | None = None,
    ) -> Decision:
        """Write the decision; ``published`` goes to the sink's consumer group."""
        with Admin(self.connection) as admin:
            version = end_txn_version(admin)
        decision = Decision(
            self.query_id,
            batch,
            self.token,
            tuple(handles),
            digest_of(offsets or PLANNED),
            version,
            0,
            topics=(self.topic,),
            offsets=offsets,
        )
        self.log.append(decision, Deadline(30), published)
        self.decided[batch] = decision
        return decision

    def end(self, handles: Sequence[PreparedTransaction], commit: bool = True) -> None:
        """Commit or abort, as a driver or an operator does."""
        with Admin(self.connection) as admin:
            outcomes = end_all(admin, [End.of(h) for h in handles], commit, end_txn_version(admin))
        assert set(outcomes.values()) == {Outcome.DONE}

    def complete(self, batch: int) -> None:
        """Write the completed mark, and with it what readers are told."""
        progress = None
        if self.progress_topic:
            with Admin(self.connection) as admin:
                progress = progress_of(admin, self.progress_topic, self.decided[batch])
        self.log.append(Completed(self.query_id, batch, self.token, now_ms()), Deadline(30), progress=progress)

    def give_up(self, batch: int) -> None:
        """Write that an execution of the batch ended without a decision."""
        self.log.append(Aborted(self.query_id, batch, digest_of(PLANNED), self.token, "e1", now_ms()), Deadline(30))

    def batch(self, number: int, *parts: Sequence[Row]) -> Decision:
        """Write, decide, commit and complete a batch, as it should be."""
        handles = [self.write(part, rows) for part, rows in enumerate(parts)]
        decision = self.decide(number, handles)
        self.end(handles)
        self.complete(number)
        return decision

    def leave_id(self, name: str) -> None:
        """Initialise a transactional id, no more."""
        with Admin(self.connection) as admin:
            initialise(admin, name, 60_000)


def rows(batch: int, part: int, count: int = 4, partitions: int = 4) -> list[Row]:
    """Rows that no other batch or part has, over all partitions."""
    return [(f"k{n}", f"{batch}-{part}-{n}", n % partitions) for n in range(count)]
