"""The writers of ``format("kafka_exactly_once")``: a micro-batch of a stream, and one batch write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from exactly_once.coordinator.batch_write import Write, abort_write, commit_write, plan_write
from exactly_once.coordinator.driver_state import FileStore
from exactly_once.coordinator.micro_batch import Committer, Part, plan
from exactly_once.coordinator.session import Session
from exactly_once.coordinator.weaker import DeliveryCommitter, plan_delivery
from exactly_once.failpoints import reach
from exactly_once.kafka.schema_registry import resolve, resolve_once
from exactly_once.options import Guarantee, SinkOptions
from exactly_once.protocol.planning import Plan
from exactly_once.protocol.ticket import Ticket
from exactly_once.spark.columns import Columns
from exactly_once.spark.heap import freeze
from exactly_once.spark.tasks import check_batch, kafka_output, write_part


@dataclass
class PartMessage(WriterCommitMessage):
    """A task's result on its way to the driver."""

    part: Part


def stream_writer(given: Mapping[str, str], schema: StructType, committing: bool) -> Writer:
    """The writer for the micro-batch in flight: planned here, unless this is the committing process.

    Raises
    ------
    ExactlyOnceError
        For everything that the sink refuses at start, before it writes anything.
    """
    options = SinkOptions.parse(given)
    columns = Columns.of(schema, options.topic, options.registry)
    if committing:
        return Writer(options, columns, None)
    store = FileStore(options.sink_id, options.checkpoint)
    strict = options.guarantee is Guarantee.EXACTLY_ONCE
    ticket = plan(options, store) if strict else plan_delivery(options, store)
    # after the claim: a registry that is down must not delay the commit of decided batches
    writer = Writer(replace(options, registry=None), _framed(columns, options, ticket), ticket)
    freeze()
    return writer


def batch_writer(given: Mapping[str, str], schema: StructType) -> BatchWriter:
    """The writer for one batch write, planned; raises :class:`ExactlyOnceError` as :func:`stream_writer`."""
    options = SinkOptions.parse(given, batch=True)
    columns = Columns.of(schema, options.topic, options.registry)
    write = plan_write(options)
    return BatchWriter(replace(options, registry=None), _framed(columns, options, write.ticket), write)


class Writer(DataSourceStreamArrowWriter):
    """One micro-batch. ``ticket`` is None in the committing process."""

    def __init__(self, options: SinkOptions, columns: Columns, ticket: Ticket | None):
        self._options = options
        self._columns = columns
        self._ticket = ticket

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Prepare one part: all rows in one transaction, flushed and verified. Without rows there is no transaction."""
        assert self._ticket is not None
        check_batch(self._ticket, self._options.guarantee is Guarantee.EXACTLY_ONCE)
        return PartMessage(_write_part(self._options, self._columns, self._ticket, iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Decide and complete the batch; see :meth:`exactly_once.coordinator.micro_batch.Committer.commit`."""
        _committer(self._options).commit(_parts(messages), batchId)
        freeze()

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Abort the batch unless it is decided; see :meth:`exactly_once.coordinator.micro_batch.Committer.abort`."""
        reach("aborting")
        _committer(self._options).abort(batchId, _parts(messages))


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
        """Decide and complete the write; see :func:`exactly_once.coordinator.batch_write.commit_write`."""
        commit_write(self._options, self._write, _parts(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Abort the write unless it is decided; see :func:`exactly_once.coordinator.batch_write.abort_write`."""
        abort_write(self._options, self._write, _parts(messages))


def _framed(columns: Columns, options: SinkOptions, ticket: Ticket) -> Columns:
    """Return ``columns`` with the schema ids of the registry; does not ask the registry if nothing will be written."""
    if options.registry is None or ticket.plan is Plan.DRAIN:
        return columns
    if not options.checkpoint:  # a batch write: each try is a start
        return columns.framed(resolve(options.registry))
    return columns.framed(resolve_once(options.registry, options.sink_id, options.checkpoint))


def _parts(messages: list[WriterCommitMessage | None]) -> list[Part | None]:
    return [m.part if isinstance(m, PartMessage) else None for m in messages]


def _write_part(options: SinkOptions, columns: Columns, ticket: Ticket, rows: Iterator[pa.RecordBatch]) -> Part:
    part = write_part(options.sink_id, ticket, [kafka_output(options, columns, ticket)], rows)
    freeze()
    return part


_committers: dict[str, Committer | DeliveryCommitter] = {}


def _committer(options: SinkOptions) -> Committer | DeliveryCommitter:
    """Return the committer of this process, kept across batches: opening its connections costs more than a commit."""
    key = options.cache_key
    if key not in _committers:
        store = FileStore(options.sink_id, options.checkpoint)
        strict = options.guarantee is Guarantee.EXACTLY_ONCE
        _committers[key] = Committer(Session.of(options), store) if strict else DeliveryCommitter(store)
    return _committers[key]
