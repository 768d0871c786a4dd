"""Aborts the open transactions of an ended query when Spark's own call of ``abort`` failed.

``query.stop()`` interrupts the query's thread, on which Spark also calls the writer's ``abort``. If the interrupt hits
that call, Spark logs "failed to abort" and ends the query. Two seconds later Spark kills the tasks, and their
transactions would stay open until the next start or their timeout. So the driver listens for the end of its queries.
"""

from __future__ import annotations

import logging
from typing import Any
from weakref import WeakSet

from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.listener import StreamingQueryListener

from exactly_once.coordinator.driver_state import FileStore
from exactly_once.coordinator.micro_batch import settle
from exactly_once.errors import ExactlyOnceError
from exactly_once.options import Guarantee, SinkOptions
from exactly_once.spark.data_source import FORMAT

log = logging.getLogger(__name__)

#: In PySpark 4.3.0 the class asked here has methods with types that are not in its jars (protobuf's), so asking it
#: through py4j breaks the driver's connection to the JVM.
_TESTED = "4.2."

_listening: WeakSet[SparkSession] = WeakSet()


def listen(spark: SparkSession) -> None:
    """Listen for the end of the queries that ``spark`` starts from now on; once for each session. Only on Spark 4.2,
    and not on Spark Connect: its queries run in another process.
    """
    if spark in _listening or not hasattr(spark, "_jsparkSession") or not spark.version.startswith(_TESTED):
        return
    spark.streams.addListener(Endings(spark))
    _listening.add(spark)


class Endings(StreamingQueryListener):
    """Aborts the open transactions of each of the session's exactly-once queries when it has ended, and ends its claim
    in this driver: the next start claims, also when somebody has taken the sink since.

    Takes Spark's events as JVM objects: PySpark's own wrapper converts every progress report to Python objects, which
    takes some hundred calls for each batch.
    """

    def __init__(self, spark: SparkSession):
        self._session = spark
        self._queries: dict[str, Any] = {}  # run id -> the query in the JVM

    @property
    def _jlistener(self) -> Any:
        """The object that :meth:`StreamingQueryManager.addListener` hands to the JVM."""
        assert SparkContext._jvm is not None
        return SparkContext._jvm.org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper(self)

    def onQueryStarted(self, event: Any) -> None:
        """Remember the query: after its end, the session no longer knows it."""
        query = self._session.streams.get(event.id().toString())
        if query is not None:
            self._queries[event.runId().toString()] = query._jsq.streamingQuery()

    def onQueryProgress(self, event: Any) -> None:
        """Nothing."""

    def onQueryIdle(self, event: Any) -> None:
        """Nothing."""

    def onQueryTerminated(self, event: Any) -> None:
        """Abort open, undecided transactions, unless the query runs again already: then its claim does that."""
        query = self._queries.pop(event.runId().toString(), None)
        try:
            options = _options(query)
            if options is None or options.guarantee is not Guarantee.EXACTLY_ONCE:
                return
            query_id = event.id().toString()
            store = FileStore(options.sink_id, options.checkpoint, _application_folder())
            settle(options, store, lambda: self._session.streams.get(query_id) is not None)
        except ExactlyOnceError as e:
            log.warning("a query has ended; its open transactions are left for the next start to end: %s", e)
        except Exception:  # Spark swallows what a listener raises, and loses its trace
            log.warning("a query has ended; its open transactions are left for the next start to end", exc_info=True)

    class Java:
        """The interface that py4j gives this class in the JVM."""

        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)


def _application_folder() -> str:
    """Return the folder that Spark's Python processes see as SPARK_LOCAL_DIRS; here the variable is the user's own."""
    assert SparkContext._jvm is not None
    env = SparkContext._jvm.org.apache.spark.SparkEnv.get()
    return str(env.blockManager().diskBlockManager().localDirs()[0].getPath())


def _options(query: Any) -> SinkOptions | None:
    """Return the sink's options; None when the query writes elsewhere, or ended before it had a plan."""
    try:
        write = query.logicalPlan()
        if write.table().name() != FORMAT:
            return None
    except Exception:  # py4j fails in many ways on a query without a plan, or on a sink of Spark's first API
        return None
    options: dict[str, str] = {}
    entries = write.writeOptions().iterator()
    while entries.hasNext():
        entry = entries.next()
        options[entry._1()] = entry._2()
    return SinkOptions.parse(CaseInsensitiveDict(options))
