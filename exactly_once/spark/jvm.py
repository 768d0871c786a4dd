"""The coordinators' half that Spark's JVM calls.

``format("kafka_exactly_once")`` is a data source in Java, which moves the records; each query's claim, plan, decision
and completion are here.

One object, :class:`Coordinators`, answers for all queries of a driver. Java reaches it through py4j's callback server
(:func:`connect`), as it does the function of a ``foreachBatch``; or through the pipe of a child process
(:mod:`exactly_once.spark.serve`), where the driver has no Python. Requests and answers are JSON. An error is an answer
with a code: raised, it would reach the user as a Java exception around a Python traceback.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from exactly_once.coordinator import start
from exactly_once.coordinator.batch_write import WriteCoordinator
from exactly_once.coordinator.without_transactions import coordinator_of
from exactly_once.errors import BrokerUnreachable, ExactlyOnceError, ProtocolViolation
from exactly_once.failpoints import reach
from exactly_once.options import Guarantee, SinkOptions
from exactly_once.protocol.names import commit_log_topic, namespace, slot_of
from exactly_once.protocol.planning import Batch
from exactly_once.protocol.records import KAFKA
from exactly_once.protocol.ticket import Ticket
from exactly_once.protocol.too_long import limit_ms, too_long_error
from exactly_once.spark.border import (
    AbortRequest,
    CallAnswer,
    CheckRequest,
    CloseRequest,
    CommitRequest,
    EngineError,
    LostPart,
    PlanRequest,
    Request,
    TaskTicket,
    request_of,
)
from exactly_once.spark.modes import check_planned, check_sources, check_speculation, check_task
from exactly_once.spark.run import QueryRun
from exactly_once.spark.session import check_client, check_jar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)


class Coordinators:
    """The coordinators of a driver's queries, by run id. Calls for different runs go on beside each other."""

    def __init__(self) -> None:
        self._runs: dict[str, QueryRun] = {}
        self._lock = threading.Lock()

    def call(self, request: str) -> str:
        """Answer one :class:`~exactly_once.spark.border.Request` of Java's, as JSON; never raises.

        Returns
        -------
        str
            The JSON of an :class:`~exactly_once.spark.border.CallAnswer`.
        """
        try:
            return CallAnswer(self._answer(request_of(request))).as_json()
        except ExactlyOnceError as e:
            error = e
        except BaseException as e:  # a library's error, or a mistake here
            log.exception("a call from the JVM failed")
            error = ExactlyOnceError(
                f"{type(e).__name__}: {e}",
                "Start the query again; if the error repeats, report it with the traceback from the driver's log",
                "Decided batches stay decided; nothing else is visible to a read_committed reader",
            )
        return CallAnswer(error=EngineError(error.code, str(error))).as_json()

    class Java:
        """The interface that py4j gives this class in the JVM."""

        implements = ("exactlyonce.Coordinator",)

    # -- calls ----------------------------------------------------------------------------------------------------

    def _answer(self, request: Request) -> TaskTicket | None:
        match request:
            case PlanRequest(write=True):
                return self._plan_write(request)
            case PlanRequest():
                return self._plan_batch(request)
            case CheckRequest():
                self._check(request)
            case CommitRequest():
                self._commit(request)
            case AbortRequest():
                self._abort(request)
            case CloseRequest():
                self._close(request.run)
        return None

    def _check(self, request: CheckRequest) -> None:
        if request.mode is not None:
            start.check_mode(request.mode, request.batch)
        options = SinkOptions.parse(request.options, request.batch, request.pem)
        options.java()
        if request.schema:
            _check_columns(options, _types(request.schema))
        check_client()
        if not request.brokers:
            return
        with suppress(BrokerUnreachable):  # the first batch waits for brokers that restart
            start.check(request.options, batch=request.batch, pem=request.pem)

    def _plan_batch(self, request: PlanRequest) -> TaskTicket:
        if request.overwrite:
            raise start.complete_refused()
        with self._lock:
            run = self._runs.get(request.run)
            if run is None:
                options = SinkOptions.parse(request.options, pem=request.pem)
                run = self._runs[request.run] = QueryRun(coordinator_of(options))
        if run.coordinator.options.guarantee is Guarantee.EXACTLY_ONCE:
            check_task(request.settings.get)
        reach("planning")
        with run.lock:
            ticket = plan_tasks(run, _types(request.schema), lambda batch: _check_batch(batch, request))
        reach("planned")
        return ticket

    def _plan_write(self, request: PlanRequest) -> TaskTicket:
        check_speculation(request.settings.get("spark.speculation"))
        run = QueryRun(WriteCoordinator(SinkOptions.parse(request.options, batch=True, pem=request.pem)))
        try:
            ticket = plan_tasks(run, _types(request.schema))
        except BaseException:
            run.close()
            raise
        with self._lock:
            self._runs[request.run] = run
        return ticket

    def _commit(self, request: CommitRequest) -> None:
        run = self._runs.get(request.run)
        if run is None or run.coordinator.ticket is None:
            raise ProtocolViolation(
                f"the JVM asked to commit a batch of run {request.run}, which has planned none",
                "Start the stream again; if the error repeats, report it with this message",
            )
        with run.lock:
            run.coordinator.commit(request.results(), request.batch)
        if run.coordinator.writes_once:
            self._close(request.run)

    def _abort(self, request: AbortRequest) -> None:
        reach("aborting")
        run = self._runs.get(request.run)
        if run is None or run.coordinator.ticket is None:
            return
        try:
            with run.lock:
                run.coordinator.abort(request.batch, request.results())
        except Exception as e:  # if it were raised, Spark would say "Writing job failed", and not why the batch failed
            run.leave(e)
        if run.coordinator.writes_once:
            self._close(request.run)

    def _close(self, run_id: str) -> None:
        with self._lock:
            run = self._runs.pop(run_id, None)
        if run is not None:
            run.close()


@cache
def coordinators() -> Coordinators:
    """Return the coordinators of this process."""
    return Coordinators()


def connect(spark: SparkSession) -> None:
    """Let the JVM of ``spark`` reach the coordinators of this process; a second call changes nothing. Raise
    SessionWithoutJar.
    """
    from pyspark.java_gateway import ensure_callback_server_started

    check_jar(spark)
    context = spark.sparkContext
    assert context._jvm is not None and context._gateway is not None
    server = vars(context._gateway).get("_callback_server")  # py4j asks Java for an attribute that is not there
    if server is not None and server.is_shutdown:  # py4j takes a server that was started once for one that runs
        context._gateway._callback_server = None
    ensure_callback_server_started(context._gateway)  # type: ignore[no-untyped-call]
    context._jvm.exactlyonce.Bridge.connect(coordinators())


# -- planning ---------------------------------------------------------------------------------------------------------


def _check_batch(batch: Batch, request: PlanRequest) -> None:
    check_planned(batch, request.query, request.batch)
    check_sources(batch, request.sources)


def _check_columns(options: SinkOptions, types: StructType) -> frozenset[str]:
    return options.check_columns((f.name, f.dataType.simpleString()) for f in types.fields)


def _types(schema: str) -> StructType:
    return StructType.fromJson(json.loads(schema))


def plan_tasks(run: QueryRun, types: StructType, check: Callable[[Batch], None] | None = None) -> TaskTicket:
    """Check the columns of the rows, plan, and return the ticket for Java's tasks."""
    options = run.coordinator.options
    settings = options.java()
    names = _check_columns(options, types)
    run.check_formats(types)
    ticket = run.coordinator.plan(check)
    framing = run.framing(ticket.plan, types)
    exactly_once = options.guarantee is Guarantee.EXACTLY_ONCE
    read = names - {"topic"} if options.topic is not None else names  # the option topic goes before the column
    return TaskTicket(
        plan=ticket.plan,
        execution=ticket.execution,
        batch=ticket.batch.batch_id,
        query="" if run.coordinator.writes_once else ticket.batch.query_id,
        guarantee=options.guarantee,
        sink=options.sink_id,
        ids=f"{namespace(options.sink_id)}{slot_of(ticket.token)}:",
        log=commit_log_topic(options.sink_id),
        log_end=ticket.log_end,
        timeout_ms=ticket.timeout_ms,
        limit_ms=limit_ms(ticket.timeout_ms) if exactly_once else 0,
        too_long=_too_long(run, ticket) if exactly_once else "",
        topic=options.topic,
        columns={name: i for i, name in enumerate(types.fieldNames()) if name in read},
        key_prefix=framing.key.hex(),
        value_prefix=framing.value.hex(),
        encodings=framing.encodings,
        allowed=tuple(options.topics.allowed),
        dead_letters=run.dead_letters(ticket.plan),
        batch_headers=options.batch_headers,
        lost=tuple(LostPart(*rows) for rows in ticket.replay.get(KAFKA, {}).values()),
        client=settings,
    )


def _too_long(run: QueryRun, ticket: Ticket) -> str:
    """Return the error of a task that has been writing for too long, with places for its part and the time."""
    options, took_ms = run.coordinator.options, limit_ms(ticket.timeout_ms)
    return str(
        too_long_error(
            options.sink_id,
            options.checkpoint,
            ticket.batch,
            "its part {part} has been writing for {took_s} s",
            took_ms,
            ticket.timeout_ms,
            ticket.too_long,
            run.coordinator.longest_ms,
        )
    )
