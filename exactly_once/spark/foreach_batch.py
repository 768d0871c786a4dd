"""``foreachBatch`` over the engine: for Update mode, and for several outputs of one batch under one decision.

For each micro-batch, Spark calls a Python function in the driver's own process, which plans, decides and completes the
batch. The tasks run as one action over the batch: a second action would read the input again.
"""

from __future__ import annotations

import json
import logging
import pickle
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from exactly_once.coordinator import start
from exactly_once.coordinator.micro_batch import Coordinator
from exactly_once.errors import ExactlyOnceError
from exactly_once.options import SinkOptions
from exactly_once.participant import Participant
from exactly_once.protocol.planning import Batch, Plan
from exactly_once.protocol.records import KAFKA
from exactly_once.protocol.ticket import Part, Ticket, empty_part
from exactly_once.spark.border import TaskReport, TaskTicket
from exactly_once.spark.columns import record_of
from exactly_once.spark.jvm import plan_tasks
from exactly_once.spark.location import located
from exactly_once.spark.modes import check_planned, check_session, check_sources, check_task, running_sources
from exactly_once.spark.run import QueryRun
from exactly_once.spark.session import check_connector, check_driver, check_jar
from exactly_once.spark.start import check_foreach, check_participants
from exactly_once.spark.tasks import PartOutputs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

#: The column in which a Python worker hands on the handles of its part; java/exactlyonce/ticket/Ticket.java knows it.
HANDLES = "exactly_once_handles"

#: Beginning of the name of a query's thread in Spark, before its ids.
_QUERY_THREAD = "stream execution thread for "


class ForeachBatch:
    """A function for ``foreachBatch``: one batch, one decision, in every participant.

    Parameters
    ----------
    options : mapping
        As for ``format("kafka_exactly_once")``; ``checkpointLocation`` equals the query's.
    participants
        Outputs other than Kafka. Every one gets all rows with all columns, those that Kafka has as dead letters, too.
        Kafka gets them if the option ``topic`` or a column ``topic`` names a topic; otherwise the batch goes to the
        participants alone.

    Raises
    ------
    ExactlyOnceError
        As :func:`exactly_once.foreach_batch`.
    """

    def __init__(self, options: Mapping[str, str], *participants: Participant[Any]):
        options = located(options)
        self._options = SinkOptions.parse(options)  # first the checks that need no broker
        check_foreach(self._options, participants)
        self._options.java()
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
        columns, context = self._columns(df), df.sparkSession.sparkContext
        parts: list[Part] = []
        check_task(lambda name: context.getLocalProperty(name) or context.getConf().get(name))

        def check(batch: Batch) -> None:
            check_running(df.sparkSession, batch, batch_id)

        if columns is None:
            write = self._to_others(run, df, run.coordinator.plan(check))
        else:
            write = self._to_kafka(run, df, columns, check)
        try:
            parts = write() or [empty_part(ticket_of(run))]
            run.coordinator.commit(parts, batch_id)
        except BaseException:
            self._abort(run, batch_id, parts)
            raise

    def _to_others(self, run: QueryRun, df: DataFrame, ticket: Ticket) -> Callable[[], list[Part]]:
        """Return the function that writes the batch to the participants alone."""
        tasks = _Tasks(self._options.sink_id, ticket, self._others, None, [])
        return lambda: [pickle.loads(row[0]) for row in df.mapInArrow(tasks, f"{HANDLES} binary").collect()]

    def _to_kafka(
        self, run: QueryRun, df: DataFrame, columns: frozenset[str], check: Callable[[Batch], None]
    ) -> Callable[[], list[Part]]:
        """Plan, and return the function that has Java write the batch to Kafka. With other outputs, a Python worker of
        each task writes to these, and passes the rows on.
        """
        from pyspark.sql.pandas.types import to_arrow_schema
        from pyspark.sql.types import BinaryType, StructField, StructType

        rows = record_of(df, columns)
        fields = [StructField(f.name, f.dataType) for f in rows.schema.fields]  # all may be null beside handles
        handles = [StructField(HANDLES, BinaryType())] if self._others else []
        tasks = plan_tasks(run, StructType(fields), check)
        ticket = ticket_of(run)
        if ticket.plan is Plan.REPLAY and KAFKA not in ticket.replay:
            tasks = replace(tasks, plan=Plan.DRAIN)  # other outputs lost parts, Kafka none
        if self._others:
            tasks = replace(tasks, columns={**tasks.columns, HANDLES: len(fields)})
            schema = StructType(fields + handles)
            places = [df.columns.index(f.name) for f in fields]
            python = _Tasks(self._options.sink_id, ticket, self._others, to_arrow_schema(schema), places)
            rows = df.mapInArrow(python, schema)

        return lambda: [self._part(report, ticket) for report in write_planned(rows, tasks)]

    def _part(self, report: object, ticket: Ticket) -> Part:
        """Return the result of a task, with the handles of all outputs."""
        report = TaskReport.of(report)
        part = report.part_of(self._run_id or "")
        others = (handle for made in report.others for handle in pickle.loads(bytes.fromhex(made)))
        return replace(part, plan=ticket.plan, handles=(*part.handles, *others))

    def _run_of(self, df: DataFrame) -> QueryRun:
        """Return the run that asks; a new one, with a coordinator of its own, for each start of the query."""
        check_driver(df.sparkSession)
        run_id = df.sparkSession.sparkContext.getLocalProperty("spark.jobGroup.id")  # the group of its jobs
        if self._run is None or run_id != self._run_id:
            check_session(df.sparkSession)
            if self._columns(df) is not None:
                check_jar(df.sparkSession)
                check_connector(df.sparkSession, reads=False)
            check_participants(df, self._options, self._others)
            if self._run is not None:
                self._run.close()
            self._run_id, self._run = run_id, QueryRun(Coordinator(self._options, self._others))
            if run_id is not None:
                threading.Thread(target=_close_at_end, args=(df.sparkSession, run_id, self._run), daemon=True).start()
        return self._run

    def _columns(self, df: DataFrame) -> frozenset[str] | None:
        """Return the columns of Kafka's records, None without Kafka; raise InvalidSchema when no output at all takes
        the rows.
        """
        if self._others and self._options.topic is None and "topic" not in df.columns:
            return None
        return self._options.check_columns((f.name, f.dataType.simpleString()) for f in df.schema.fields)

    def _abort(self, run: QueryRun, batch_id: int, parts: list[Part]) -> None:
        try:
            run.coordinator.abort(batch_id, parts)
        except ExactlyOnceError as e:  # the next start sweeps; the first error is the one to report
            log.warning(
                "sink %s: could not abort batch %d; the next start does: %s", self._options.sink_id, batch_id, e
            )


class _Tasks:
    """The function that the tasks run in Python: it writes to the participants. Its result is their part, or, with the
    Arrow ``schema`` of a record and its handles, the records (``places``: their columns), and the handles behind them.
    """

    def __init__(
        self,
        sink_id: str,
        ticket: Ticket,
        participants: Sequence[Participant[Any]],
        schema: pa.Schema | None,
        places: Sequence[int],
    ):
        self._sink_id, self._ticket, self._participants = sink_id, ticket, participants
        self._schema, self._places = schema, places

    def __call__(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        outputs, schema = PartOutputs(self._sink_id, self._ticket, self._participants), self._schema
        for batch in outputs.write(rows):
            if schema is not None:
                record = [batch.column(at) for at in self._places]
                yield pa.RecordBatch.from_arrays([*record, pa.nulls(batch.num_rows, pa.binary())], schema=schema)
        if schema is None:
            yield pa.RecordBatch.from_pydict({HANDLES: [pickle.dumps(outputs.part)]})
        elif outputs.handles:
            nulls = [pa.nulls(1, field.type) for field in schema][:-1]
            made = pa.array([pickle.dumps(outputs.handles)], pa.binary())
            yield pa.RecordBatch.from_arrays([*nulls, made], schema=schema)


def check_running(spark: SparkSession, batch: Batch, batch_id: int) -> None:
    """Refuse ``batch``, which the checkpoint in the sink's options names, where Spark runs another one, or runs without
    one of its sources (:mod:`exactly_once.spark.modes`).
    """
    check_planned(batch, spark.sparkContext.getLocalProperty("sql.streaming.queryId") or "", batch_id)
    if batch.named is not None:
        check_sources(batch, running_sources(spark, batch.query_id))


def write_planned(rows: DataFrame, tasks: TaskTicket) -> list[object]:
    """Have Java write the rows of an execution to Kafka; return the JSON of its tasks' reports."""
    jvm: Any = rows.sparkSession.sparkContext._jvm
    planned = jvm.exactlyonce.PlannedWrite
    planned.plan(tasks.as_json())
    try:
        rows.write.format("kafka_exactly_once").option("sink.execution", tasks.execution).mode("append").save()
    finally:  # also where Spark has not begun: Java keeps a ticket, with its passwords, until then
        reports = planned.take(tasks.execution)
    return list(json.loads(reports))


def ticket_of(run: QueryRun) -> Ticket:
    """Return the ticket of the execution that was planned last."""
    ticket = run.coordinator.ticket
    assert ticket is not None
    return ticket


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
