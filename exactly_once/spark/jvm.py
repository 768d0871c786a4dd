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
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import StructType

from exactly_once.coordinator import start
from exactly_once.coordinator.batch_write import WriteCoordinator
from exactly_once.coordinator.without_transactions import coordinator_of
from exactly_once.errors import BrokerUnreachable, ExactlyOnceError, ProtocolViolation, UnsupportedMode
from exactly_once.failpoints import reach
from exactly_once.options import Guarantee, SinkOptions
from exactly_once.protocol.names import commit_log_topic, namespace, slot_of
from exactly_once.protocol.part import Part
from exactly_once.protocol.planning import Batch, Plan
from exactly_once.protocol.records import KAFKA, Extent, Place, PreparedTransaction
from exactly_once.protocol.ticket import Ticket
from exactly_once.protocol.too_long import limit_ms, too_long_error
from exactly_once.spark.modes import check_planned, check_sources, check_speculation, check_task
from exactly_once.spark.run import QueryRun
from exactly_once.spark.session import check_jar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

#: Ended queries whose error is kept for callers in the driver's Python.
_REMEMBERED = 64


class Coordinators:
    """The coordinators of a driver's queries, by run id. Calls for different runs go on beside each other."""

    def __init__(self) -> None:
        self._runs: dict[str, QueryRun] = {}
        self._lock = threading.Lock()
        self._failures: OrderedDict[str, BaseException] = OrderedDict()

    def call(self, request: str) -> str:
        """Answer one request of Java's; never raises.

        Returns
        -------
        str
            ``{"ok": value}``, or ``{"error": {"code": ..., "text": ...}}``, where the text begins with the code.
        """
        run = ""
        try:
            asked = json.loads(request)
            run = asked.get("run", "")
            return json.dumps({"ok": _CALLS[asked["call"]](self, asked)})
        except ExactlyOnceError as e:
            error = e
            self._remember(run, e)
        except BaseException as e:  # of a library, or a mistake here
            log.exception("a call from the JVM failed")
            self._remember(run, e)
            error = ExactlyOnceError(
                f"{type(e).__name__}: {e}",
                "Start the query again; if the error repeats, report it with the traceback from the driver's log",
                "Decided batches stay decided; nothing else is visible to a read_committed reader",
            )
        return json.dumps({"error": {"code": error.code, "text": str(error)}})

    def failure(self, run: str) -> BaseException | None:
        """Return the last error of a run, as it was raised; None when there was none, or when it was long ago."""
        return self._failures.get(run)

    class Java:
        """The interface that py4j gives this class in the JVM."""

        implements = ("exactlyonce.Coordinator",)

    # -- calls ----------------------------------------------------------------------------------------------------

    def _check(self, asked: Mapping[str, Any]) -> None:
        batch = bool(asked.get("batch"))
        options = _options(asked, batch)
        options.java()
        if asked.get("schema"):
            _check_columns(options, StructType.fromJson(json.loads(asked["schema"])))
        with suppress(BrokerUnreachable):  # the first batch waits for brokers that restart
            start.check(asked["options"], batch=batch, pem=asked.get("pem"))

    def _plan(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        return self._plan_write(asked) if asked.get("write") else self._plan_batch(asked)

    def _plan_batch(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        if asked.get("overwrite"):
            raise start.complete_refused()
        with self._lock:
            run = self._runs.get(asked["run"])
            if run is None:
                run = self._runs[asked["run"]] = QueryRun(coordinator_of(_options(asked)))
        options = run.coordinator.options
        if options.guarantee is Guarantee.EXACTLY_ONCE:
            check_task(asked.get("settings", {}).get)
        reach("planning")
        with run.lock:
            ticket = _answer(run, asked["schema"], lambda batch: _check_batch(batch, asked))
        reach("planned")
        return ticket

    def _plan_write(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        if asked.get("overwrite"):
            raise UnsupportedMode(
                "mode Overwrite would have to replace earlier records, but a log cannot", "Use mode('append')"
            )
        check_speculation(asked.get("settings", {}).get("spark.speculation"))
        run = QueryRun(WriteCoordinator(_options(asked, batch=True)))
        try:
            ticket = _answer(run, asked["schema"])
        except BaseException:
            run.close()
            raise
        with self._lock:
            self._runs[asked["run"]] = run
        return ticket

    def _commit(self, asked: Mapping[str, Any]) -> None:
        run = self._runs.get(asked["run"])
        if run is None or run.coordinator.ticket is None:
            raise ProtocolViolation(
                f"the JVM asked to commit a batch of run {asked['run']}, which has planned none",
                "Start the stream again; if the error repeats, report it with this message",
            )
        with run.lock:
            run.coordinator.commit(_parts(asked), asked.get("batch") or 0)
        if run.writes_once:
            self._close(asked)

    def _abort(self, asked: Mapping[str, Any]) -> None:
        reach("aborting")
        run = self._runs.get(asked["run"])
        if run is None or run.coordinator.ticket is None:
            return
        try:
            with run.lock:
                run.coordinator.abort(asked.get("batch") or 0, _parts(asked))
        except Exception as e:  # raised, Spark would say "Writing job failed", and not why the batch did
            run.leave(e)
        if run.writes_once:
            self._close(asked)

    def _close(self, asked: Mapping[str, Any]) -> None:
        with self._lock:
            run = self._runs.pop(asked["run"], None)
        if run is not None:
            run.close()

    def _remember(self, run: str, error: BaseException) -> None:
        with self._lock:
            self._failures[run] = error
            while len(self._failures) > _REMEMBERED:
                self._failures.popitem(last=False)


_CALLS: dict[str, Callable[[Coordinators, Mapping[str, Any]], Any]] = {
    "check": Coordinators._check,
    "plan": Coordinators._plan,
    "commit": Coordinators._commit,
    "abort": Coordinators._abort,
    "close": Coordinators._close,
}


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
    server = vars(context._gateway).get("_callback_server")  # an attribute that is not there is asked of Java
    if server is not None and server.is_shutdown:  # to py4j, one that has been started is there
        context._gateway._callback_server = None
    ensure_callback_server_started(context._gateway)  # type: ignore[no-untyped-call]
    context._jvm.exactlyonce.Bridge.connect(coordinators())


# -- to and from JSON -------------------------------------------------------------------------------------------------


def _options(asked: Mapping[str, Any], batch: bool = False) -> SinkOptions:
    """Read the options of a request that begins a run; with it comes what only the JVM can read of them."""
    return SinkOptions.parse(asked["options"], batch, asked.get("pem"))


def _check_batch(batch: Batch, asked: Mapping[str, Any]) -> None:
    check_planned(batch, asked["query"], asked.get("batch"))
    check_sources(batch, asked.get("sources"))


def _check_columns(options: SinkOptions, types: StructType) -> frozenset[str]:
    return options.check_columns((f.name, f.dataType.simpleString()) for f in types.fields)


def _answer(run: QueryRun, schema: str, check: Callable[[Batch], None] | None = None) -> dict[str, Any]:
    """Check the columns, plan, and return the ticket for Java's tasks."""
    options = run.coordinator.options
    settings, types = options.java(), StructType.fromJson(json.loads(schema))
    names = _check_columns(options, types)
    run.check_formats(types)
    ticket = run.coordinator.plan(check)
    framing = run.framing(ticket.plan, types)
    exactly_once = options.guarantee is Guarantee.EXACTLY_ONCE
    read = names - {"topic"} if options.topic is not None else names  # the option topic goes before the column
    return {
        "plan": ticket.plan.value,
        "execution": ticket.execution,
        "batch": ticket.batch.batch_id,
        "query": "" if run.writes_once else ticket.batch.query_id,
        "guarantee": options.guarantee.value,
        "sink": options.sink_id,
        "ids": f"{namespace(options.sink_id)}{slot_of(ticket.token)}:",
        "log": commit_log_topic(options.sink_id),
        "log_end": ticket.log_end,
        "timeout_ms": ticket.timeout_ms,
        "limit_ms": limit_ms(ticket.timeout_ms) if exactly_once else 0,
        "too_long": _too_long(run, ticket) if exactly_once else "",
        "topic": options.topic,
        "columns": {name: i for i, name in enumerate(types.fieldNames()) if name in read},
        "key_prefix": framing.key.hex(),
        "value_prefix": framing.value.hex(),
        "encodings": {column: asdict(encoding) for column, encoding in framing.encodings.items()},
        "allowed": list(options.topics.allowed),
        "dead_letters": run.dead_letters(ticket.plan),
        "batch_headers": options.batch_headers,
        "lost": list(ticket.replay.get(KAFKA, {}).values()),
        "client": settings,
    }


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


def _parts(asked: Mapping[str, Any]) -> list[Part | None]:
    return [None if p is None else _part(asked["run"], p) for p in asked["parts"]]


def _part(run: str, said: Mapping[str, Any]) -> Part:
    handles = (_handle(said),) if "id" in said else ()
    refused = said.get("refused", ())
    return Part(said["execution"], run, said["part"], said["attempt"], Plan(said["plan"]), handles, tuple(refused))


def _handle(said: Mapping[str, Any]) -> PreparedTransaction:
    written = {(topic, partition): Extent(*extent) for topic, partition, *extent in said["written"]}
    place = min((Place(*p, e.first_offset) for p, e in written.items() if e.first_offset >= 0), default=None)
    return PreparedTransaction(
        transactional_id=said["id"],
        producer_id=said["producer"],
        epoch=said["epoch"],
        part=said["part"],
        records=said["records"],
        bytes=said["bytes"],
        digest=said["digest"],
        place=place,
        written=written,
        form=said["form"],
        dead=said.get("dead", 0),
    )
