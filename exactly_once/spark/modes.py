"""Settings of a session that rule out exactly-once output."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from exactly_once.errors import CheckpointUnusable, PrepareFailed, ProtocolViolation, UnsupportedMode
from exactly_once.protocol.planning import Batch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


#: Oldest release that works. ``pip`` demands it as well; but a session may run on another Spark, by ``SPARK_HOME`` or
#: Spark Connect.
OLDEST_SPARK = (3, 5)


def check_session(spark: SparkSession) -> None:
    """Raise UnsupportedMode, before anything begins, for a session of a Spark older than 3.5, or with
    spark.speculation: each copy of a task would hold a transaction open.
    """
    if tuple(map(int, spark.version.split(".")[:2])) < OLDEST_SPARK:
        raise UnsupportedMode(
            f"this session runs on Spark {spark.version}, and the sink needs Spark 3.5 or newer",
            "Run the session on Spark 3.5 or newer",
        )
    check_speculation(spark.conf.get("spark.speculation", None))


def check_task(setting: Callable[[str], str | None]) -> None:
    """Raise UnsupportedMode, before the tasks of an exactly-once batch: as :func:`check_session`, for a session without
    ``register()``; and with a spark.sql.streaming.stopTimeout, after which stop() returns while the stopped run still
    commits or aborts: the sink would confuse that run with one that starts meanwhile. ``setting`` returns the value of
    a setting as Spark has it for this query.
    """
    check_speculation(setting("spark.speculation"))
    stop_timeout = setting("spark.sql.streaming.stopTimeout")
    if (stop_timeout or "").rstrip("abcdefghijklmnopqrstuvwxyz ").strip(" 0"):  # in Spark's notation: 0, 0s, 10 s
        raise UnsupportedMode(
            f"spark.sql.streaming.stopTimeout={stop_timeout} lets stop() return while the query still commits its "
            "batch, and the sink could not tell that run from the next one",
            "Leave spark.sql.streaming.stopTimeout at 0: stop() then waits until the commit has ended, which takes a "
            "limited time",
        )


def check_planned(batch: Batch, query_id: str, batch_id: int | None = None) -> None:
    """Make sure that Spark runs ``batch``, which the checkpoint in the sink's options names; ``batch_id`` is None or -1
    where Spark does not say it. Raise ProtocolViolation, or PrepareFailed when another driver has written to the
    checkpoint since this one read it.
    """
    if query_id != batch.query_id:
        raise ProtocolViolation(
            f"Spark runs query {query_id}, but the checkpoint in the sink's options is of query {batch.query_id}",
            "Give the query the same checkpointLocation as the sink's options",
        )
    if batch_id in (None, -1, batch.batch_id):
        return
    differs = f"Spark runs batch {batch_id}, but the checkpoint names batch {batch.batch_id}"
    if batch_id is not None and batch_id < batch.batch_id:
        raise PrepareFailed(
            f"{differs}: another driver has written to it since this one read it",
            "Start the stream again; it resumes after that driver's batches. If this happens again, stop the other "
            "driver",
        )
    raise ProtocolViolation(
        differs, "Use trigger(processingTime=...) or trigger(availableNow=True); other modes are not supported"
    )


def check_sources(batch: Batch, sources: Collection[str] | None) -> None:
    """Raise CheckpointUnusable for a query that lacks a source of the batch: Spark runs a batch that it has planned
    again without the records of that source, and counts them as read.

    ``sources`` are the names of the query's sources, None where Spark does not say them: UnsupportedMode then, if the
    batch has named sources.
    """
    if batch.named is None:
        return
    if sources is None:
        raise UnsupportedMode(
            "the query has named sources, and this release of Spark does not say which ones: after a crash, it would "
            "leave out the records of one that was dropped",
            "Run the query on Spark 4.2 or 4.3, or leave the names of the sources out",
        )
    if dropped := sorted(batch.named.names.difference(sources)):
        raise CheckpointUnusable(
            f"the query has no source {', '.join(dropped)} any more, of which batch {batch.batch_id} has input: Spark "
            "has planned that batch and not finished it",
            f"Start the query with the source {', '.join(dropped)} until the batch is committed, and drop it then "
            "(under Dagster: put its topic back into source= for one run, best with mode: caught_up)",
        )


def running_sources(spark: SparkSession, query_id: str) -> list[str] | None:
    """Return the names of a query's sources; None where Spark has none to say (before 4.2), and in a release that keeps
    them elsewhere.
    """
    from py4j.protocol import Py4JError

    sources, jvm = [], spark.sparkContext._jvm
    assert jvm is not None
    try:
        running = (
            spark._jsparkSession.sharedState().activeStreamingQueries().get(jvm.java.util.UUID.fromString(query_id))
        )
        names = running.sourceIdMap().keysIterator()
        while names.hasNext():
            sources.append(str(names.next()))
    except (AttributeError, Py4JError):
        return None
    return sources


def check_speculation(value: str | None) -> None:
    """Raise UnsupportedMode for copies of tasks; ``value`` is that of spark.speculation."""
    if str(value).lower() == "true":
        raise UnsupportedMode(
            "spark.speculation=true runs copies of a task, and each copy would write a transaction of its own",
            "Start the session with spark.speculation=false",
        )
