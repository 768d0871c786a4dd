"""``foreachBatch`` over the engine: for Update mode, and for several outputs of one batch under one decision.

For each micro-batch, Spark calls a Python function in the driver's own process, which plans, decides and completes the
batch. The tasks run as one action over the batch: a second action would read the input again.
"""

from __future__ import annotations

import logging
import pickle
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from exactly_once.coordinator import start
from exactly_once.coordinator.micro_batch import Coordinator
from exactly_once.errors import ExactlyOnceError, InvalidOption, ProtocolViolation
from exactly_once.options import DEFAULT_TRANSACTION_TIMEOUT_MS, Guarantee, SinkOptions
from exactly_once.participant import Participant
from exactly_once.participants.kafka.checks import check_producer
from exactly_once.participants.kafka.participant import KafkaParticipant
from exactly_once.participants.kafka.rows import Columns
from exactly_once.protocol.planning import Batch
from exactly_once.protocol.records import KAFKA
from exactly_once.protocol.ticket import Part, Ticket, empty_part
from exactly_once.spark.columns import columns_of, record_of
from exactly_once.spark.location import located
from exactly_once.spark.modes import check_session, check_sources, running_sources
from exactly_once.spark.run import QueryRun
from exactly_once.spark.session import check_driver
from exactly_once.spark.start import check_participants
from exactly_once.spark.tasks import check_batch, write_part

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

_PART = "part binary"

#: Beginning of the name of a query's thread in Spark, before its ids.
_QUERY_THREAD = "stream execution thread for "


class ForeachBatch:
    """A function for ``foreachBatch``: one batch, one decision, in every participant.

    Parameters
    ----------
    options : mapping
        As for ``format("kafka_exactly_once")``; ``checkpointLocation`` equals the query's.
    participants
        Outputs other than Kafka. Every one gets all rows with all columns. Kafka gets them too if the option ``topic``
        or a column ``topic`` names a topic; otherwise the batch goes to the participants alone.

    Raises
    ------
    ExactlyOnceError
        As :func:`exactly_once.foreach_batch`.
    """

    def __init__(self, options: Mapping[str, str], *participants: Participant[Any]):
        options = located(options)
        self._options = SinkOptions.parse(options)  # first the checks that need no broker
        names = [p.name for p in participants]
        if KAFKA in names or len(set(names)) < len(names):
            raise InvalidOption(
                f"the participants' names {', '.join(names)} are not unique, or one of them is {KAFKA!r}",
                "Give each participant a name of its own that stays the same across restarts",
            )
        if self._options.guarantee is not Guarantee.EXACTLY_ONCE:
            raise InvalidOption(
                f"foreach_batch supports sink.guarantee=exactly_once only, not {self._options.guarantee.value}",
                'Remove sink.guarantee; for a weaker one, write with format("kafka_exactly_once")',
            )
        if self._options.dead_letters is not None:
            raise InvalidOption(
                "foreach_batch has no sink.dead.letter.topic: a row that Kafka refuses would be in the other outputs",
                'Remove the option, or write to Kafka alone, with format("kafka_exactly_once")',
            )
        if self._options.registry is not None and self._options.registry.encoded:
            raise InvalidOption(
                "foreach_batch has neither value.format nor key.format: its tasks are Python's, and Java's encode",
                "Remove the option, and encode the column with to_avro, to_protobuf or to_json; or write to Kafka "
                'alone, with format("kafka_exactly_once")',
            )
        self._options.check_librdkafka()
        check_producer(self._options, self._options.timeout_ms or DEFAULT_TRANSACTION_TIMEOUT_MS)
        self._others = participants
        start.check(options)
        self._run_id: str | None = None
        self._run: QueryRun | None = None

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Write one batch.

        Raises
        ------
        ExactlyOnceError
            When the start of the query, or the batch, is refused, or when the batch fails; ``safe`` says what is
            written.
        """
        run = self._run_of(df)
        with run.lock:
            self._write(run, df, batch_id)

    def _write(self, run: QueryRun, df: DataFrame, batch_id: int) -> None:
        coordinator, columns = run.coordinator, self._columns(df)
        ticket = coordinator.plan(lambda batch: self._check(batch, batch_id, df.sparkSession))
        parts: list[Part] = []
        try:
            write = _Write(self._options.sink_id, ticket, self._outputs(columns, ticket, run))
            rows = df if columns is None or self._others else record_of(df, columns)
            parts = [pickle.loads(row[0]) for row in rows.mapInArrow(write, _PART).collect()] or [empty_part(ticket)]
            coordinator.commit(parts, batch_id)
        except BaseException:
            self._abort(run, batch_id, parts)
            raise

    def _run_of(self, df: DataFrame) -> QueryRun:
        """Return the run that asks; a new one, with a coordinator of its own, for each start of the query."""
        check_driver(df.sparkSession)
        run_id = _run_id(df)
        if self._run is None or run_id != self._run_id:
            check_session(df.sparkSession)
            check_participants(df, self._options, self._others)
            if self._run is not None:
                self._run.close()
            self._run_id, self._run = run_id, QueryRun(Coordinator(self._options, self._others))
            if run_id is not None:
                threading.Thread(target=_close_at_end, args=(df.sparkSession, run_id, self._run), daemon=True).start()
        return self._run

    def _check(self, batch: Batch, batch_id: int, spark: SparkSession) -> None:
        if batch.batch_id != batch_id:
            raise ProtocolViolation(
                f"Spark runs batch {batch_id}, but the checkpoint {self._options.checkpoint} names batch "
                f"{batch.batch_id}",
                "Give the query the same checkpointLocation as the sink's options",
            )
        if batch.named is not None:
            check_sources(batch, running_sources(spark, batch.query_id))

    def _columns(self, df: DataFrame) -> Columns | None:
        """Return Kafka's columns, None without Kafka; raise InvalidSchema when no output at all takes the rows."""
        if self._others and self._options.topic is None and "topic" not in df.columns:
            return None
        options = self._options
        return columns_of(df.schema, options.topic, options.registry, options.topics)

    def _outputs(self, columns: Columns | None, ticket: Ticket, run: QueryRun) -> list[Participant[Any]]:
        """Return every participant."""
        if columns is None:
            return list(self._others)
        columns = columns.framed(run.framing(ticket.plan))
        return [KafkaParticipant.of(replace(self._options, registry=None), columns, ticket), *self._others]

    def _abort(self, run: QueryRun, batch_id: int, parts: list[Part]) -> None:
        try:
            run.coordinator.abort(batch_id, parts)
        except ExactlyOnceError as e:  # the next start sweeps; the first error is the one to report
            log.warning(
                "sink %s: could not abort batch %d; the next start does: %s", self._options.sink_id, batch_id, e
            )


class _Write:
    """The function that the tasks run."""

    def __init__(self, sink_id: str, ticket: Ticket, outputs: list[Participant[Any]]):
        self._sink_id = sink_id
        self._ticket = ticket
        self._outputs = outputs

    def __call__(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        check_batch(self._ticket)
        part = write_part(self._sink_id, self._ticket, self._outputs, rows)
        yield pa.RecordBatch.from_pydict({"part": [pickle.dumps(part)]})


def _run_id(df: DataFrame) -> str | None:
    """Return the id of the query's run, which is the group of its jobs."""
    return df.sparkSession.sparkContext.getLocalProperty("spark.jobGroup.id")


def _close_at_end(spark: SparkSession, run_id: str, run: QueryRun) -> None:
    """Wait until Spark's thread of the query has ended, and close the run.

    Not by a listener: ``spark``, the session of a batch, is a copy that hears of no query.
    """
    from py4j.protocol import Py4JError

    jvm: Any = spark.sparkContext._jvm
    with suppress(Py4JError):  # the JVM is gone, and the query with it
        for thread in jvm.java.lang.Thread.getAllStackTraces().keySet():
            if run_id in (name := thread.getName()) and name.startswith(_QUERY_THREAD):
                thread.join()
    run.close()
