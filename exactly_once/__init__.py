"""Exactly-once output from PySpark Structured Streaming to Kafka, by two-phase commit.

>>> import exactly_once
>>> spark = exactly_once.configure(SparkSession.builder).getOrCreate()  # doctest: +SKIP
>>> exactly_once.register(spark)                                  # doctest: +SKIP
>>> (df.writeStream.format("kafka_exactly_once")                  # doctest: +SKIP
...    .option("sink.id", "orders").option("topic", "orders_out")
...    .option("kafka.bootstrap.servers", "localhost:9092")
...    .option("checkpointLocation", "/data/checkpoints/orders").start())
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from exactly_once.errors import ExactlyOnceError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from exactly_once.participant import Participant
    from exactly_once.spark.foreach_batch import ForeachBatch

__all__ = [
    "ExactlyOnceError",
    "__version__",
    "attempt",
    "check",
    "configure",
    "foreach_batch",
    "jar",
    "register",
    "split",
    "starting_offsets",
    "trace_headers",
    "written",
]

__version__ = "1.0.0"


def configure(builder: SparkSession.Builder) -> SparkSession.Builder:
    """Add to a session that is not started yet what the sink needs: its jar, and Spark's Kafka connector.

    >>> spark = exactly_once.configure(SparkSession.builder.appName("orders")).getOrCreate()  # doctest: +SKIP

    The jar comes with this package and goes into ``spark.jars``. The connector goes into ``spark.jars.packages``, in
    the release for the PySpark that is installed; Spark downloads it from Maven Central, once. It is left out where
    ``spark.jars``, ``spark.jars.packages`` or Spark's own folder of jars has it already. What ``builder`` has in these
    two settings stays; as with any setting of a builder, it replaces what ``spark-defaults.conf`` has there.

    Without a network, download the connector and what it depends on beforehand, and name the files:

    >>> builder.config("spark.jars", "/jars/spark-sql-kafka-0-10_2.13-4.2.0.jar,...")          # doctest: +SKIP
    >>> spark = exactly_once.configure(builder).getOrCreate()                                 # doctest: +SKIP

    Where something else starts the session (spark-submit, a notebook, a cluster's service), add the file that
    :func:`jar` names to ``spark.jars`` there.

    Returns
    -------
    SparkSession.Builder
        The same builder.
    """
    from exactly_once.spark import session

    return session.configure(builder)


def jar() -> str:
    """Return the path of the sink's jar, for ``spark.jars`` and ``spark-submit --jars``."""
    from exactly_once.spark.session import JAR

    return str(JAR)


def register(spark: SparkSession) -> None:
    """Let ``format("kafka_exactly_once")`` of ``spark`` claim, decide and commit in this process; call it once for each
    session that is new.

    Without it the JVM starts a Python process of its own for that, as it does on Spark Connect, where this does
    nothing but check.

    Raises
    ------
    UnsupportedMode
        With spark.speculation: each copy of a task would hold a transaction open. On a Spark older than 3.5.
    SessionWithoutJar
        Without the jar of the sink.
    """
    from exactly_once.spark.modes import check_session
    from exactly_once.spark.session import has_jvm, warn_without_connector

    check_session(spark)
    if has_jvm(spark):
        from exactly_once.spark.jvm import connect

        connect(spark)
    warn_without_connector(spark)


def check(
    df: DataFrame, options: Mapping[str, str], *participants: Participant[Any], output_mode: str = "append"
) -> None:
    """Refuse at once what a stream or a write of ``df`` would refuse later, from inside of Spark.

    It checks the options (and suggests a name for a misspelt one), the columns, the session, the brokers, the topic,
    the rights, the checkpoint and the sink's commit log. It changes nothing. It takes about 0.1 s if the brokers
    answer, and gives up after 10 s on a broker that accepts a connection and then does not answer.

    >>> exactly_once.check(df, options)                                                         # doctest: +SKIP
    >>> df.writeStream.format("kafka_exactly_once").options(**options).start()                  # doctest: +SKIP

    Parameters
    ----------
    df : DataFrame
        The rows to write: a streaming DataFrame, or an ordinary one for ``df.write`` with ``write.id``.
    options : mapping
        The options of ``format("kafka_exactly_once")`` or of :func:`foreach_batch`: names and values are strings.
    participants
        The outputs other than Kafka that you give to :func:`foreach_batch`.
    output_mode : str
        The output mode of ``format("kafka_exactly_once")``; leave it out for :func:`foreach_batch`.

    Raises
    ------
    ExactlyOnceError
        When a start would be refused; its class and code are those of that refusal.
    """
    from exactly_once.spark.start import check

    check(df, options, participants, output_mode)


def foreach_batch(options: Mapping[str, str], *participants: Participant[Any]) -> ForeachBatch:
    """Return a ``foreachBatch`` function that writes each batch exactly once, to Kafka and ``participants`` or to none.

    For output mode Update, and for several outputs under one decision.

    >>> sink = exactly_once.foreach_batch(options, FileParticipant("archive", "/data/orders"))  # doctest: +SKIP
    >>> df.writeStream.foreachBatch(sink).option("checkpointLocation", "...").start()           # doctest: +SKIP

    Parameters
    ----------
    options : mapping
        The options of ``format("kafka_exactly_once")``; ``checkpointLocation`` equals the query's.
    participants
        Outputs other than Kafka, see :class:`exactly_once.participant.Participant`.

    Raises
    ------
    ExactlyOnceError
        When a start would be refused whatever the rows are: by the options, the names of the participants, the brokers,
        the topic, the rights, the checkpoint or the commit log.
    """
    from exactly_once.spark.foreach_batch import ForeachBatch

    return ForeachBatch(options, *participants)


def attempt(
    df: DataFrame,
    how: Callable[..., str | bytes | None] | str | StructType | Column,
    *columns: str | Column,
    catch: type[Exception] | tuple[type[Exception], ...] = Exception,
) -> DataFrame:
    """Try each row of ``df``, and add the column ``tried``: what is wrong with the row, and what it was before.

    >>> rows = exactly_once.attempt(events, with_tax)                                           # doctest: +SKIP
    >>> exactly_once.split(rows, "orders_priced", rejected="orders_rejected")                   # doctest: +SKIP

    A bad row stays in the result. ``tried.exception`` and ``tried.message`` say what is wrong with it, and are null for
    a good one. ``tried`` also has the row's ``key``, ``value``, ``headers``, ``topic``, ``partition``, ``offset`` and
    ``timestamp``, as they were before the first attempt; but for key and value these leave the row, since the sink
    would take them for columns of the output. A second attempt tries only the rows that are good so far.

    Parameters
    ----------
    df : DataFrame
        Rows of Spark's Kafka source, or any others. The option ``includeHeaders`` of the source keeps their headers.
    how : callable, str, StructType or Column
        A function: its result is the new ``value``, and a row for which it raises is bad. A schema (or its DDL): the
        column ``parsed`` has the JSON of ``value``; a row is bad if that is no object, does not fit the schema, or has
        no value for a field that is NOT NULL. A column of strings: null for a good row, else why the row is bad.
    columns
        The arguments of the function; by default the value, as bytes.
    catch : type or tuple of types
        The exceptions that make a row bad; any other one fails the batch.
    """
    from exactly_once.spark import split

    return split.attempt(df, how, *columns, catch=catch)


def split(rows: DataFrame, topic: str | None = None, *, rejected: str) -> DataFrame:
    """Address the rows of :func:`attempt`: the good ones to ``topic``, the others as they were to ``rejected``.

    A sink writes both in the same transactions. A rejected record has the key, the value and the headers of the record
    of the input, byte for byte, and further headers, which begin with ``__exactly_once.errors.``: ``exception``,
    ``message``, ``code``, ``topic``, ``partition`` and ``offset``. Its key and value are in the columns ``encoded_key``
    and ``encoded_value``, which the sink sends as they are, whatever format and schema ``key`` and ``value`` have.

    Parameters
    ----------
    rows : DataFrame
        With ``tried``, and with the columns of the good records: ``value`` and, as needed, ``key``, ``headers``,
        ``partition``, ``timestamp`` and ``topic``. Do not set the sink's option ``topic``.
    topic : str, optional
        The topic of the good records; without it, the column ``topic`` names it.
    rejected : str
        The topic of the others.

    Raises
    ------
    InvalidSchema
        A column is missing, or has a type that a record cannot have.
    """
    from exactly_once.spark.split import split

    return split(rows, topic, rejected=rejected)


def starting_offsets(options: Mapping[str, str], predecessor: str, *topics: str, beside: bool = False) -> str:
    """Return Spark's ``startingOffsets`` for a new query that continues after the last decided batch of an old sink.

    Retire the old sink first: ``exactly-once successor orders orders-v2``. Then each record of the input is in the
    output of one of the two, once.

    >>> options = {"sink.id": "orders-v2", ...}                                                 # doctest: +SKIP
    >>> begin = exactly_once.starting_offsets(options, "orders")                                # doctest: +SKIP
    >>> df = spark.readStream.format("kafka").option("startingOffsets", begin)                  # doctest: +SKIP

    You may leave the call in the program: once the query has a checkpoint, Spark does not read the option any more. The
    call then still fails while the old sink is not retired, so that a query that has read along takes over after that.

    Parameters
    ----------
    options : mapping
        The options of ``format("kafka_exactly_once")`` of the new query: ``sink.id``, ``checkpointLocation``,
        ``kafka.bootstrap.servers`` and any others that the connection needs.
    predecessor : str
        The old sink's id.
    topics
        The topics that this source of the new query reads. One that the old query did not read begins at its beginning.
        Default: those of the old query.
    beside : bool
        The old stream goes on, and the new query reads along from the last batch that is decided now. Write to another
        topic then: both write the same records.

    Raises
    ------
    ExactlyOnceError
        EO-REFUSED when the old sink is not retired for this one; errors of the connection as in :func:`written`.
    """
    from exactly_once.operation.successor import starting_offsets as find

    return find(options, predecessor, *topics, beside=beside)


def trace_headers(column: str | Column = "headers") -> Column:
    """Return the column ``headers`` of a record that continues the trace of its input, and has no other header of it.

    >>> events.select("key", "value", exactly_once.trace_headers())                             # doctest: +SKIP

    It keeps ``traceparent`` and ``tracestate``. Rows of Spark's Kafka source have headers with the option
    ``includeHeaders``; a row without headers gets none.

    Parameters
    ----------
    column : str or Column
        The headers of the input.
    """
    from exactly_once.spark.traces import trace_headers

    return trace_headers(column)


def written(options: Mapping[str, str], write_id: str) -> bool:
    """Return whether the batch write ``write_id`` is decided: then its rows are in the output once, or will be.

    False proves nothing: a decision may be in flight. Writing again is safe: a decided write writes nothing.

    Parameters
    ----------
    options : mapping
        The options of ``format("kafka_exactly_once")``: ``sink.id``, ``kafka.bootstrap.servers`` and any others that
        the connection needs.

    Raises
    ------
    InvalidOption
        An option of the connection, or ``sink.id``, is missing or has an invalid value.
    BrokerUnreachable
        The brokers did not answer within 10 s.
    NotAuthorized
        The principal may not read the commit log.
    CommitLogDamaged
        The commit log holds what no driver of this version writes.
    """
    from exactly_once.coordinator import batch_write
    from exactly_once.kafka.connection import Connection
    from exactly_once.protocol.names import check_sink_id

    sink_id = check_sink_id(options.get("sink.id", ""))
    return batch_write.written(Connection.from_options(options), sink_id, write_id) is not None
