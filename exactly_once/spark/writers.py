"""The writers of ``format("kafka_exactly_once")``: a micro-batch of a stream, and one batch write.

Spark has processes that plan, processes that write and processes that commit, and each imports what it uses: half a
second of processor time is too much for what a process does not use.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from exactly_once.errors import ExactlyOnceError
from exactly_once.failpoints import reach
from exactly_once.options import Guarantee, SinkOptions
from exactly_once.protocol.part import Part
from exactly_once.spark.heap import freeze

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from exactly_once.coordinator.batch_write import Write
    from exactly_once.kafka.rows import Columns
    from exactly_once.protocol.ticket import Ticket

log = logging.getLogger(__name__)


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
    if committing:
        return Writer(options)
    from exactly_once.spark.driver import plan_stream

    columns, ticket = plan_stream(options, schema)
    freeze()
    return Writer(replace(options, registry=None), columns, ticket)


def batch_writer(given: Mapping[str, str], schema: StructType) -> BatchWriter:
    """The writer for one batch write, planned; raises :class:`ExactlyOnceError` as :func:`stream_writer`."""
    from exactly_once.spark.driver import plan_batch_write

    options = SinkOptions.parse(given, batch=True)
    columns, write = plan_batch_write(options, schema)
    return BatchWriter(replace(options, registry=None), columns, write)


class Writer(DataSourceStreamArrowWriter):
    """One micro-batch. ``columns`` and ``ticket`` are None in the committing process."""

    def __init__(self, options: SinkOptions, columns: Columns | None = None, ticket: Ticket | None = None):
        self._options = options
        self._columns = columns
        self._ticket = ticket

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Prepare one part: all rows in one transaction, flushed and verified. Without rows there is no transaction."""
        from exactly_once.spark.tasks import check_batch, write_kafka_part

        assert self._columns is not None and self._ticket is not None
        check_batch(self._ticket, self._options.guarantee is Guarantee.EXACTLY_ONCE)
        return PartMessage(write_kafka_part(self._options, self._columns, self._ticket, iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Decide and complete the batch; see :meth:`exactly_once.coordinator.micro_batch.Committer.commit`."""
        from exactly_once.spark.driver import committer

        committer(self._options).commit(_parts(messages), batchId)
        freeze()

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Abort the batch unless it is decided; see :meth:`exactly_once.coordinator.micro_batch.Committer.abort`."""
        from exactly_once.spark.driver import committer

        reach("aborting")
        with _leaving_the_cause(self._options.sink_id):
            committer(self._options).abort(batchId, _parts(messages))


class BatchWriter(DataSourceArrowWriter):
    """One try of a batch write."""

    def __init__(self, options: SinkOptions, columns: Columns, write: Write):
        self._options = options
        self._columns = columns
        self._write = write

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Prepare one part, as in a stream."""
        from exactly_once.spark.tasks import write_kafka_part

        return PartMessage(write_kafka_part(self._options, self._columns, self._write.ticket, iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Decide and complete the write; see :func:`exactly_once.coordinator.batch_write.commit_write`."""
        from exactly_once.coordinator.batch_write import commit_write

        commit_write(self._options, self._write, _parts(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Abort the write unless it is decided; see :func:`exactly_once.coordinator.batch_write.abort_write`."""
        from exactly_once.coordinator.batch_write import abort_write

        with _leaving_the_cause(self._options.sink_id):
            abort_write(self._options, self._write, _parts(messages))


@contextmanager
def _leaving_the_cause(sink_id: str) -> Iterator[None]:
    """Log an error of an abort: if it were raised, Spark would say "Writing job failed", and not why the batch did."""
    try:
        yield
    except ExactlyOnceError as e:
        log.warning("sink %s: what the failed batch left open is for the next start to end: %s", sink_id, e)


def _parts(messages: list[WriterCommitMessage | None]) -> list[Part | None]:
    return [m.part if isinstance(m, PartMessage) else None for m in messages]
