"""The commit log: a compacted topic for each sink that only its owner can write.

It has one partition and one writer, the transactional producer ``eo:<sink>:log``. Kafka itself fences a second driver:
each InitProducerId aborts what the previous producer had under way and refuses it from then on. Because the *last* init
wins, not the last claim, a producer is only used after the log was read to its end after its own init and the latest
claim there is the caller's. So between the look and the write nobody else can have claimed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from kafka.errors import KafkaError

from exactly_once.commitlog import log_reader, log_topic
from exactly_once.commitlog.input_offsets import InputOffsets, Offsets
from exactly_once.commitlog.log_reader import PARTITION, Reading
from exactly_once.commitlog.log_writer import Batches, LogRecord, LogWriter, OffsetsFailed, Written
from exactly_once.commitlog.progress import ProgressRecord
from exactly_once.deadline import Deadline, now_ms
from exactly_once.errors import (
    BrokerUnreachable,
    CommitLogDamaged,
    DecisionTooLarge,
    ExactlyOnceError,
    Fenced,
    NotAuthorized,
    UnknownTopic,
)
from exactly_once.kafka.admin import START_S, Admin
from exactly_once.kafka.connection import Connection
from exactly_once.kafka.errors import Cause, cause_of, lacking, of_commit_log
from exactly_once.protocol.encoding import LARGEST_RECORD_BYTES, encode, headers_of
from exactly_once.protocol.log_state import LogState, fold
from exactly_once.protocol.names import commit_log_id, commit_log_topic, namespace, offsets_group
from exactly_once.protocol.records import Claim, Completed, Decision, Entry, Record, key_of
from exactly_once.txn.coordinators import begin_initialise

log = logging.getLogger(__name__)

#: Timeout of a write, which is one small record; the transaction of a decision may begin with the plan of its batch.
#: A driver that dies behind the record blocks readers of the log (never of the output) this long at the most, or until
#: the next claim, which aborts it.
LOG_TRANSACTION_TIMEOUT_MS = 30_000

#: Budget for asking about the topic when a write has failed.
_THERE_S = 5.0


class _Ahead(NamedTuple):
    """A record that was sent before its :meth:`CommitLog.append`, and when, by this machine's clock."""

    record: Record
    batches: Batches
    sent_ms: int


class CommitLog:
    """The commit log of ``sink_id``, for one process.

    Reading needs no right to write. :meth:`claim` and :meth:`append` create the writer on first use and again after any
    failure.

    Parameters
    ----------
    shared : callable, optional
        Seconds -> a connection with this budget, which somebody else closes. Default: one of its own.
    """

    def __init__(self, connection: Connection, sink_id: str, shared: Callable[[float], Admin] | None = None):
        self._connection = connection
        self._shared = shared
        self.sink_id = sink_id
        self.topic = commit_log_topic(sink_id)
        self._own: Admin | None = None
        self._writer: LogWriter | None = None
        self._state = LogState()
        self._end = 0  # the log's end at the writer's initialisation, which comes after all that was rolled back
        self._last_read: tuple[LogState, int] | None = None  # a state, and the position up to which it goes
        self._limit: log_topic.Limit | None = None
        self._dated = True
        self._ahead: _Ahead | None = None
        self._offsets = InputOffsets(self._asking, sink_id)
        self.clock_ahead_ms = 0
        """The brokers' clock minus this machine's, as of the last write; too much rather than too little, so that a
        transaction is never taken for younger than it is."""
        self.clock_ahead_least_ms = 0
        """The same, too little rather than too much, so that a time before a record is never behind it."""

    def read(self, deadline: Deadline, whole: bool = False) -> LogState:
        """Return what the log says, without fencing anybody; an empty state when there is no log.

        What is found in it is durable. What is *not* found proves nothing: a reader stops at the first open
        transaction, a write of the owner that is under way, or another application's.

        Parameters
        ----------
        whole : bool
            Wait until everything that was in the log at the time of the call can be read. Then also what is missing was
            not there.

        Raises
        ------
        BrokerUnreachable, CommitLogDamaged, NotAuthorized
        CommitLogBlocked
            When ``whole`` has to wait for longer than the deadline.
        """

        def reading() -> Reading:
            admin = self._asking(max(0.1, deadline.left))
            if not self._is_there(admin):
                return Reading([], 0)
            end = admin.high_watermark(self.topic, PARTITION) if whole else None
            return log_reader.read(admin, self.sink_id, deadline, until=end)

        found = deadline.repeat(reading, BrokerUnreachable, first_pause_s=0.1)
        state = fold(found.entries)
        self._last_read = state, found.position
        return state

    def _asking(self, budget_s: float) -> Admin:
        """Return the connection with a budget of its own."""
        if self._shared is not None:
            return self._shared(budget_s)
        if self._own is None:
            self._own = Admin(self._connection, budget_s)
        return self._own.within(budget_s)

    def _is_there(self, admin: Admin) -> bool:
        """Return whether the log exists; raise NotAuthorized for one that this principal may not see: its decided
        transactions would be taken for undecided ones.
        """
        try:
            admin.topic_partitions([self.topic], old_s=START_S)
        except UnknownTopic:
            return False
        except NotAuthorized as e:
            raise lacking(["READ"], self.topic) from e
        return True

    def claim(self, make: Callable[[LogState], Claim], deadline: Deadline) -> tuple[LogState, Claim]:
        """Become the owner: fence every other writer, read to the end, write ``make(state)``; return the state before
        the claim, and the claim.

        ``make`` may raise to refuse; then nothing is written. After a :meth:`read` only what came after it is read.
        """
        failure: ExactlyOnceError | None = None
        for _ in deadline.tries(first_pause_s=0.2):
            earlier, self._last_read = self._last_read, None
            state = self._init(deadline, earlier)
            claim = make(state)
            try:
                self._write([claim], deadline)
                self._check_dates()
                log_topic.warn_if_small(self.topic, self._limit)
                return state, claim
            except KafkaError as e:
                failure = self._named(e)
            self._init(deadline)
            if self._state.owner == claim:
                return state, claim
        raise failure or log_reader.timed_out(self.topic, deadline)

    def ask_group(self, offsets: Offsets, deadline: Deadline) -> None:
        """Find out, beside whatever else is done, whether :meth:`append` may write these ``offsets``."""
        self._offsets.refresh(offsets, deadline)

    def begin(self, offsets: Offsets | None = None) -> None:
        """Have the transaction of the next write begun while its caller asks others; ``offsets`` are that write's. It
        takes effect for the owner alone, and holds no reader back.
        """
        if self._writer is not None and not self._writer.spent:
            of_group = self._offsets.group if offsets and self._offsets.has_answered else ""
            self._writer.open([(self.topic, PARTITION)], of_group)

    def send(self, record: Record, offsets: Offsets | None, deadline: Deadline) -> None:
        """Send ``record`` and ``offsets``, for :meth:`append` to commit, while the caller of :meth:`begin` asks others.
        Until then it is not written: whatever else the owner does with the log ends the transaction without it. Never
        raises: what cannot be sent, :meth:`append` says.
        """
        if self._writer is None or (offsets and not self._offsets.has_answered):
            return
        of_group = self._offsets.to_write(offsets, _metadata([record]), deadline) if offsets else None
        ahead = _Ahead(record, self._batches([record]), now_ms())
        with suppress(KafkaError):
            if self._writer.send(ahead.batches, of_group):
                self._ahead = ahead

    def append(
        self,
        record: Record,
        deadline: Deadline,
        offsets: Offsets | None = None,
        check: Callable[[LogState], None] | None = None,
        progress: ProgressRecord | None = None,
    ) -> LogState:
        """Write ``record``, which carries the caller's token, durably and as the owner; return the state behind it.

        With the mark of a completed batch its decision is written again in the form in which it is to be kept, in the
        same transaction. ``offsets``, by topic and partition, are committed with the record to the consumer group
        :func:`~exactly_once.protocol.names.offsets_group`, for lag tools; when that fails, the record is written alone.
        ``check`` may raise to refuse: it gets the very state after which the record is written. ``progress`` is
        written in the same transaction.

        Raises
        ------
        Fenced
            When a later claim exists. If an earlier try was left without an answer, the record may be in the log all
            the same; then the newer owner has seen it.
        DecisionTooLarge, BrokerUnreachable, CommitLogBlocked
        """
        failure: ExactlyOnceError | None = None
        if offsets and not self._offsets.may_be_sent(offsets, deadline):
            offsets = None
        if isinstance(record, Decision):
            self._check_dates()
        for _ in deadline.tries(first_pause_s=0.2):
            state = self.own(record.token, deadline, record)
            if self._holds(record):
                return state
            if check is not None:
                check(state)
            kept = state.to_keep(record) if isinstance(record, Completed) else None
            try:
                self._write([kept, record] if kept else [record], deadline, offsets, progress)
                return self._state
            except OffsetsFailed as e:
                again = offsets and self._offsets.again_after(e) and self._offsets.may_be_sent(offsets, deadline)
                offsets = offsets if again else None
            except KafkaError as e:  # fenced by a late init, or an answer that got lost: look, then try again
                if cause_of(e) is Cause.TOO_LARGE and isinstance(record, Decision):
                    raise self._too_large(record) from e
                failure = self._named(e, progress)
        self._check_there()
        raise failure or log_reader.timed_out(self.topic, deadline)

    def _check_there(self) -> None:
        """Raise CommitLogDamaged when the topic of a driver at work is gone: to a producer, a broker is silent then."""
        try:
            with suppress(BrokerUnreachable, NotAuthorized):
                self._asking(_THERE_S).topic_partitions([self.topic])
        except UnknownTopic as e:
            raise CommitLogDamaged(
                f"the commit log {self.topic} was deleted while this driver was running",
                "Find out who deleted the commit log, then start the stream again: the start compares the checkpoint "
                "with what is left, and says how to continue (EO-REWOUND)",
            ) from e

    def tally(self, token: int, deadline: Deadline, **counts: int) -> None:
        """Add ``counts``, by the names of :class:`Tally`'s, to the sink's tally. Never raises: a missing count must not
        fail a successful commit.
        """
        if not any(counts.values()):
            return
        try:
            before = self.own(token, deadline).tally
            self.append(before.plus(token, **counts), deadline)
        except ExactlyOnceError as e:
            log.warning("sink %s: the counts in the commit log were not updated: %s", self.sink_id, e)

    def own(self, token: int, deadline: Deadline, sent: Record | None = None) -> LogState:
        """Return the state of the log once it is certain that no claim follows ``token`` and no write is under way,
        save that of ``sent``.

        Raises
        ------
        Fenced
            When a later claim exists.
        CommitLogDamaged
            When the log has lost the claim.
        """
        owner = self._state.owner
        other = self._ahead is not None and self._ahead.record != sent
        if other or self._writer is None or self._writer.spent or owner is None or owner.token != token:
            earlier, self._last_read = self._last_read, None
            # the remembered one may be an earlier claim of this driver
            owner = self._init(deadline, earlier, is_claim=False).owner
        if owner is None or owner.token < token:
            self._discard()
            raise CommitLogDamaged(
                f"claim {token} of sink {self.sink_id!r} is gone from the commit log {self.topic}, which has lost "
                "its newest records: a broker without them became leader, or the topic was restored or recreated",
                "Start the stream again: the start compares what is left with the checkpoint and the consumer group "
                f"{offsets_group(self.sink_id)}",
            )
        if owner.token != token:
            self._discard()
            raise Fenced(
                f"claim {token} of sink {self.sink_id!r} is superseded by {owner.title}",
                "If the newer owner is the right one, stop this driver; otherwise start the stream here again to "
                f"take the sink back. If nobody knows that owner, run exactly-once log {self.sink_id} to see who "
                "wrote the claim",
            )
        return self._state

    @property
    def high_watermark(self) -> int:
        """The log's high watermark after this owner's last write and its end marker; 0 while the log is not open."""
        return max(self._end, self._state.end + 1) if self._writer is not None else 0

    def close(self) -> None:
        """Drop the writer, and close a connection of its own; what it wrote is committed already."""
        self._discard()
        if self._own is not None:
            self._own.close()
            self._own = None

    # -- writing --------------------------------------------------------------------------------------------------

    def _init(self, deadline: Deadline, earlier: tuple[LogState, int] | None = None, is_claim: bool = True) -> LogState:
        """Fence every other writer and read the log to its end, at which nothing of ours is open then. A claim judges
        the topic's settings; an owner, whose batches are judged by them, has to roll back whatever they have become.
        """
        self._discard()
        tries = iter([earlier])

        def once() -> LogState:
            return self._init_once(deadline, next(tries, None), is_claim)

        # a leader or a coordinator that moves, or a broker that has not heard of a topic that was just made
        self._state = deadline.repeat(once, BrokerUnreachable, UnknownTopic, first_pause_s=0.1)
        return self._state

    def _init_once(self, deadline: Deadline, earlier: tuple[LogState, int] | None, is_claim: bool) -> LogState:
        admin = self._asking(max(0.1, deadline.left))
        begin_initialise(admin, commit_log_id(self.sink_id))
        self._limit = log_topic.ensure(admin, self.topic, deadline, judged=is_claim)
        writer = LogWriter(self._asking, commit_log_id(self.sink_id), LOG_TRANSACTION_TIMEOUT_MS, deadline)
        end = admin.renew(max(0.1, deadline.left)).high_watermark(self.topic, PARTITION)
        state, start = earlier if earlier is not None and earlier[1] <= end else (LogState(), None)
        if (start or 0) < end:
            state = fold(log_reader.read(admin, self.sink_id, deadline, start, until=end).entries, state)
        self._writer, self._end = writer, end
        return state

    def _write(
        self,
        records: Sequence[Record],
        deadline: Deadline,
        offsets: Offsets | None = None,
        progress: ProgressRecord | None = None,
    ) -> None:
        assert self._writer is not None
        ahead, self._ahead = self._ahead, None
        to_write = ahead.batches if ahead else self._batches(records, progress)
        sent_ms = ahead.sent_ms if ahead else now_ms()
        of_group = self._offsets.to_write(offsets, _metadata(records), deadline) if offsets else None
        try:
            written = self._writer.write(to_write, deadline, of_group)[self.topic, PARTITION]
        except BaseException:
            self._discard()  # its state is not known; the next use initialises again and reads what became of the write
            raise
        if of_group:
            self._offsets.taken()
        self._note(records, written, sent_ms)

    def _batches(self, records: Sequence[Record], progress: ProgressRecord | None = None) -> Batches:
        found = {(self.topic, PARTITION): [_packed(record) for record in records]}
        if progress is not None:
            found[progress.topic, PARTITION] = [LogRecord(self.sink_id.encode(), progress.value)]
        return found

    def _note(self, records: Sequence[Record], written: Written, sent_ms: int) -> None:
        self._dated = written.timestamp_ms >= 0
        at_ms = written.timestamp_ms if self._dated else sent_ms
        # not the clock at this moment: a process that stood still since the append would take the brokers' for slow
        self.clock_ahead_ms, self.clock_ahead_least_ms = at_ms - sent_ms, at_ms - now_ms()
        entries = [Entry(record, written.offset + n, at_ms) for n, record in enumerate(records)]
        self._state = fold(entries, self._state)

    def _check_dates(self) -> None:
        if not self._dated:  # seen here where the principal may not read the topic's settings
            self._discard()
            raise CommitLogDamaged(
                f"the commit log {self.topic} has message.timestamp.type=CreateTime: the driver's own clock would "
                "decide whether a transaction is still alive",
                f"Set message.timestamp.type=LogAppendTime on {self.topic}",
            )

    def _holds(self, record: Record) -> bool:
        if isinstance(record, Completed):
            return (record.query_id, record.batch_id) in self._state.marks
        return record in (*self._state.decisions, self._state.tally, self._state.aborted, self._state.retired)

    def _discard(self) -> None:
        self._writer = self._ahead = None
        self._state = LogState()

    # -- errors ---------------------------------------------------------------------------------------------------

    def _too_large(self, decision: Decision) -> DecisionTooLarge:
        with suppress(ExactlyOnceError):  # it may be another one by now
            self._limit = log_topic.limit_of(self._asking(_THERE_S).topic_config(self.topic))
        limit = f"{self._limit.setting} on {self.topic}" if self._limit else f"max.message.bytes of {self.topic}"
        return DecisionTooLarge(
            f"the decision of batch {decision.batch_id} of sink {self.sink_id!r} ({len(decision.handles)} parts, "
            f"{len(encode(decision))} bytes before compression) exceeds what the commit log accepts: {limit}, and "
            f"{LARGEST_RECORD_BYTES} bytes before compression",
            "Write the batch in fewer parts (coalesce, or fewer shuffle partitions), or raise max.message.bytes and "
            f"segment.bytes of {self.topic}; then start again",
        )

    def _named(self, e: KafkaError, progress: ProgressRecord | None = None) -> ExactlyOnceError:
        found = of_commit_log(e, self.topic, self._connection.bootstrap_servers, namespace(self.sink_id))
        if progress is None:
            return found
        beside = f"the same transaction writes to {progress.topic}, the topic of sink.progress.topic"
        return type(found)(f"{found.what}; {beside}", found.way_out, found.safe)


def _packed(record: Record) -> LogRecord:
    return LogRecord(key_of(record).encode(), encode(record), tuple(headers_of(record).items()))


def _metadata(records: Sequence[Record]) -> str:
    """Return the batch whose decision is among ``records``, for :meth:`InputOffsets.to_write`."""
    return next((f"{r.query_id}/{r.batch_id}" for r in records if isinstance(r, Decision)), "")


def read_log(
    connection: Connection, sink_id: str, timeout_s: float = 10.0, whole: bool = False, admin: Admin | None = None
) -> LogState:
    """Return the state of the sink's commit log, for observers; an empty state for a sink that was never used.

    See :meth:`CommitLog.read` for what it proves, and ``whole``. ``admin`` is a connection that the caller has already.

    Raises BrokerUnreachable, CommitLogDamaged, CommitLogBlocked or NotAuthorized.
    """
    log = CommitLog(connection, sink_id, admin.within if admin else None)
    try:
        return log.read(Deadline(timeout_s), whole)
    finally:
        log.close()
