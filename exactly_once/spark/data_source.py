"""``format("kafka_exactly_once")``: Spark's Python data source over the engine.

Spark calls, for each micro-batch: ``streamWriter`` in a planning process (the claim happens there), ``write`` in the
executors' Python workers, ``streamWriter`` again and ``commit`` or ``abort`` in a committing process. The three never
share memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from exactly_once.batch import Write, abort_write, commit_write, plan_write
from exactly_once.errors import ProtocolViolation, UnsupportedMode
from exactly_once.failpoints import reach
from exactly_once.kafka.connection import Connection
from exactly_once.kafka.control import Control
from exactly_once.kafka.transaction import PartTransaction
from exactly_once.options import SinkOptions
from exactly_once.protocol.names import attempt_of, part_id
from exactly_once.protocol.planning import Plan
from exactly_once.protocol.records import PreparedTransaction
from exactly_once.sink import Committer, Part, Ticket, plan
from exactly_once.spark.columns import Columns

FORMAT = "kafka_exactly_once"


@dataclass
class PartMessage(WriterCommitMessage):
    """A task's result on its way to the driver."""

    part: Part


class KafkaExactlyOnce(DataSource):
    """An exactly-once Kafka sink for Structured Streaming.

    Also of a DataFrame, by ``df.write``: once for each ``write.id``, however often it is tried.

    Options: ``sink.id``, ``kafka.bootstrap.servers`` and, for a stream, ``checkpointLocation`` (required), ``topic``,
    and Spark's ``kafka.*`` producer options; see :class:`exactly_once.options.SinkOptions`.
    """

    def __init__(self, options: dict[str, str]):
        super().__init__(options)
        self._committing = False

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Spark unpickles the data source in the committing process, and only there; planning makes a new one
        self.__dict__.update(state)
        self._committing = True

    @classmethod
    def name(cls) -> str:
        """The word in ``format(...)``."""
        return FORMAT

    def streamWriter(self, schema: StructType, overwrite: bool) -> Writer:
        """A writer for the micro-batch in flight.

        Raises
        ------
        ExactlyOnceError
            For everything that is refused at start, before anything is written.
        """
        if overwrite:
            raise UnsupportedMode(
                "output mode Complete writes the whole result again with each batch, which a log cannot replace",
                "Use outputMode('append') (with a watermark, for aggregations)",
            )
        options = SinkOptions.parse(self.options)
        columns = Columns.of(schema, options.topic)
        return Writer(options, columns, None if self._committing else plan(options))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """A writer for one batch write, which the option ``write.id`` names.

        Raises
        ------
        ExactlyOnceError
            For everything that is refused at start, before anything is written.
        """
        if overwrite:
            raise UnsupportedMode(
                "mode Overwrite would have to delete records, which a log cannot", "Use mode('append')"
            )
        options = SinkOptions.parse(self.options, batch=True)
        columns = Columns.of(schema, options.topic)
        return BatchWriter(options, columns, plan_write(options))


class Writer(DataSourceStreamArrowWriter):
    """One micro-batch. ``ticket`` is None in the committing process."""

    def __init__(self, options: SinkOptions, columns: Columns, ticket: Ticket | None):
        self._options = options
        self._columns = columns
        self._ticket = ticket

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Prepare one part: all rows in one transaction, flushed and verified. Without rows there is no transaction."""
        ticket = self._ticket
        assert ticket is not None
        batch_id = _task().getLocalProperty("streaming.sql.batchId")
        if batch_id != str(ticket.batch.batch_id):
            raise ProtocolViolation(
                f"Spark runs batch {batch_id}, and the checkpoint names batch {ticket.batch.batch_id}",
                "Use trigger(processingTime=...) or trigger(availableNow=True); other modes are not supported",
            )
        return PartMessage(_write_part(self._options, self._columns, ticket, iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Decide and complete the batch; see :meth:`exactly_once.sink.Committer.commit`."""
        _committer(self._options).commit(_parts(messages), batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Abort what is not decided; see :meth:`exactly_once.sink.Committer.abort`."""
        _committer(self._options).abort(batchId, [p for p in _parts(messages) if p is not None])


class BatchWriter(DataSourceArrowWriter):
    """One try of a batch write."""

    def __init__(self, options: SinkOptions, columns: Columns, write: Write):
        self._options = options
        self._columns = columns
        self._write = write

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Prepare one part, as in a stream."""
        return PartMessage(_write_part(self._options, self._columns, self._write.ticket, iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Decide and complete the write; see :func:`exactly_once.batch.commit_write`."""
        commit_write(self._options, self._write, _parts(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Abort what is not decided; see :func:`exactly_once.batch.abort_write`."""
        abort_write(self._options, self._write, [p for p in _parts(messages) if p is not None])


def _parts(messages: list[WriterCommitMessage | None]) -> list[Part | None]:
    return [m.part if isinstance(m, PartMessage) else None for m in messages]


def _task() -> TaskContext:
    context = TaskContext.get()
    assert context is not None
    return context


def _write_part(options: SinkOptions, columns: Columns, ticket: Ticket, iterator: Iterator[pa.RecordBatch]) -> Part:
    context = _task()
    attempt = attempt_of(context.attemptNumber(), context.taskAttemptId())
    handle, topics = None, set[str]()
    if ticket.plan is Plan.DRAIN:
        for _ in iterator:
            pass
    else:
        name = part_id(options.sink_id, ticket.token, context.partitionId(), attempt)
        handle = _prepare(options, columns, iterator, name, context.partitionId(), ticket.timeout_ms, topics)
    return Part(
        ticket.execution,
        ticket.token,
        ticket.batch.batch_id,
        ticket.batch.query_id,
        context.getLocalProperty("spark.jobGroup.id") or "",
        context.partitionId(),
        attempt,
        ticket.plan,
        ticket.batch.offsets_digest,
        handle,
        tuple(sorted(topics)),
    )


def _prepare(
    options: SinkOptions,
    columns: Columns,
    iterator: Iterator[pa.RecordBatch],
    transactional_id: str,
    part: int,
    timeout_ms: int,
    topics: set[str],
) -> PreparedTransaction | None:
    transaction = None
    try:
        for batch in iterator:
            if batch.num_rows == 0:
                continue
            if transaction is None:
                producer = {
                    **options.producer,
                    # librdkafka refuses a delivery timeout above the transaction's
                    "delivery.timeout.ms": str(min(int(options.delivery_timeout_s * 1000), timeout_ms)),
                }
                control = _control(options.connection)
                transaction = PartTransaction(options.connection, producer, transactional_id, timeout_ms, control)
            columns.send(batch, transaction, topics)
            reach("mid-write")
        return transaction.prepare(part, options.delivery_timeout_s) if transaction is not None else None
    except BaseException:
        if transaction is not None:
            transaction.abort()
        raise


_committers: dict[str, Committer] = {}


def _committer(options: SinkOptions) -> Committer:
    """The committer of this process, kept over batches: opening its connections costs more than a commit."""
    key = repr((options, options.connection.sasl_password, options.connection.ssl_key_password))
    if key not in _committers:
        _committers[key] = Committer(options)
    return _committers[key]


@lru_cache(maxsize=4)
def _control(connection: Connection) -> Control:
    """The control connection of this worker process, kept over batches."""
    return Control(connection)
