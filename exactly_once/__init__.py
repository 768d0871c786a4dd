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

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from exactly_once.errors import ExactlyOnceError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from exactly_once.coordinator.recover import RecoveryReport
    from exactly_once.inspection.findings import Inspection
    from exactly_once.kafka.connection import Connection
    from exactly_once.participant import Participant
    from exactly_once.spark.foreach_batch import ForeachBatch
    from exactly_once.tools.verify.report import Report

__all__ = [
    "ExactlyOnceError",
    "__version__",
    "attempt",
    "check",
    "configure",
    "foreach_batch",
    "inspect",
    "jar",
    "recover",
    "register",
    "split",
    "starting_offsets",
    "trace_headers",
    "verify",
    "written",
]

__version__ = "1.0.0"


def configure(builder: SparkSession.Builder) -> SparkSession.Builder:
    """Add to a session that is not started yet what the sink needs: its jar, and Spark's Kafka connector.

    >>> spark = exactly_once.configure(SparkSession.builder.appName("orders")).getOrCreate()  # doctest: +SKIP

    The jar comes with this package and goes into ``spark.jars``. The connector goes into ``spark.jars.packages``, in
    the release for the PySpark that is installed; Spark downloads it from Maven Central, once. It is left out where
    ``spark.jars``, ``spark.jars.packages`` or Spark's own folder of jars has it already, and where spark-submit has
    started this program: nobody would download it then. What these two settings have already stays: in ``builder``, or
    else as spark-submit, ``PYSPARK_SUBMIT_ARGS`` or ``spark-defaults.conf`` gives them.

    Without a network, download the connector and what it depends on beforehand, and name the files:

    >>> builder.config("spark.jars", "/jars/spark-sql-kafka-0-10_2.13-4.2.0.jar,...")          # doctest: +SKIP
    >>> spark = exactly_once.configure(builder).getOrCreate()                                 # doctest: +SKIP

    Where something else starts the JVM (spark-submit, ``PYSPARK_SUBMIT_ARGS`` with ``--jars``, a notebook, a cluster's
    service), add the file that :func:`jar` names to its jars there.

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
    from exactly_once.spark.location import located
    from exactly_once.tools.operation.successor.old_sink import starting_offsets as find

    return find(located(options), predecessor, *topics, beside=beside)


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
    from exactly_once.spark.columns import trace_headers

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
    from exactly_once.commitlog.commit_log import read_log
    from exactly_once.kafka.connection import Connection
    from exactly_once.protocol.names import check_sink_id

    sink_id = check_sink_id(options.get("sink.id", ""))
    return read_log(Connection.from_options(options), sink_id).write(write_id) is not None


def inspect(
    cluster: str | Mapping[str, str] | Connection, sink_id: str, *, readers: bool = False, budget_s: float = 10.0
) -> Inspection:
    """Return the state of a sink at this moment: owner, open transactions, unproven decisions, waiting readers.

    It changes nothing, and stops no driver.

    >>> found = exactly_once.inspect("broker:9092", "orders")                                   # doctest: +SKIP
    >>> found.quiet, found.oldest_s, [t.transactional_id for t in found.open]                   # doctest: +SKIP

    Parameters
    ----------
    cluster : str, mapping or Connection
        The brokers, ``host:port`` separated by commas; or, with security, the ``kafka.*`` options of the query.
    sink_id : str
    readers : bool
        Also find the consumer groups that wait.
    budget_s : float
        Seconds for the whole inspection.

    Returns
    -------
    Inspection
        With ``quiet``, ``open``, ``decided``, ``blocked``, ``owner`` and ``recent``; ``as_json()`` is what the command
        line prints of it. Ages are in seconds (``age_s``), moments in milliseconds since the epoch (``..._ms``). Of a
        sink that no driver has ever claimed, ``owner`` is None.

    Raises
    ------
    InvalidOption
        ``sink_id`` is no id of a sink, or the options name no cluster.
    BrokerUnreachable
        The brokers did not answer in time.
    NotAuthorized
        The principal may not see the sink's transactions, its commit log or its topics.
    CommitLogDamaged
        The commit log holds what no driver of this version writes.
    """
    from exactly_once.inspection.sink import inspect_sink
    from exactly_once.kafka.connection import Connection
    from exactly_once.protocol.names import check_sink_id

    return inspect_sink(Connection.to(cluster), check_sink_id(sink_id), budget_s, readers)


def recover(
    cluster: str | Mapping[str, str] | Connection,
    sink_id: str,
    *participants: Participant[Any],
    force: str = "",
    operator: str = "",
    budget_s: float = 60.0,
) -> RecoveryReport:
    """Bring a sink to rest whose driver is gone: commit what is decided, abort what is not, and verify. Idempotent.

    Safe beside another recovery: the later one continues. The next start of the stream takes the sink back.

    >>> report = exactly_once.recover("broker:9092", "orders")                                  # doctest: +SKIP
    >>> report.clean, report.sentence                                                           # doctest: +SKIP

    Parameters
    ----------
    cluster, sink_id
        As for :func:`inspect`.
    participants
        The sink's outputs other than Kafka.
    force : str
        The ``phrase`` of the refusal that it overrules; it states which driver will be fenced.
    operator : str
        Who operates the recovery, for its claim.
    budget_s : float
        Seconds for claiming the sink, and again for each of the two steps that end transactions.

    Returns
    -------
    RecoveryReport
        ``clean`` is False while something is open or readers wait; ``to_rewrite`` has the batches whose lost parts the
        next start of the stream writes again.

    Raises
    ------
    ExactlyOnceError
        EO-REFUSED while a driver works on the sink, or may: its ``phrase`` given as ``force`` overrules it.
        EO-EXPIRED, EO-UNFINISHED or EO-PARTICIPANT-MISSING where a decided batch cannot be completed.
    InvalidOption
        No driver has ever claimed the sink; otherwise as for :func:`inspect`.
    BrokerUnreachable, NotAuthorized, CommitLogDamaged
        As for :func:`inspect`.
    """
    from exactly_once.kafka.connection import Connection
    from exactly_once.tools.operation.model import OperationContext
    from exactly_once.tools.operation.recover import RECOVER, RecoveryParameters

    context = OperationContext(Connection.to(cluster), operator, others=participants, work_budget_s=budget_s)
    report: RecoveryReport = RECOVER.apply(context, RecoveryParameters(sink_id=sink_id, force=force)).value
    return report


def verify(
    cluster: str | Mapping[str, str] | Connection,
    sink_id: str,
    *participants: Participant[Any],
    checkpoint: str | None = None,
    origin: str | None = None,
    outputs_per_input: str = "1",
    inputs: Sequence[str] = (),
    topics: Sequence[str] = (),
    last: int | None = None,
    batches: int = 64,
    settle_s: float = 15.0,
    spark: SparkSession | None = None,
) -> Report:
    """Compare output, commit log, checkpoint and brokers of a sink, and name everything that is not exactly-once.

    It changes nothing, stops no driver, and may run while the stream does.

    >>> report = exactly_once.verify("broker:9092", "orders", origin="header:origin")           # doctest: +SKIP
    >>> report.clean, report.counts, report.records                                             # doctest: +SKIP

    Parameters
    ----------
    cluster, sink_id
        As for :func:`inspect`.
    participants
        The sink's outputs other than Kafka; parts in an output that is not given are unproven.
    checkpoint : str, optional
        The location of the stream's checkpoint.
    origin : str, optional
        The place of ``topic-partition-offset`` of its input record in each output record: ``header:NAME``, ``key``,
        ``value`` or ``json:FIELD``. With it, the output is compared with the input too.
    outputs_per_input : str
        With ``origin``: ``N``, ``at-most-N`` or ``any``.
    inputs : sequence of str
        With ``origin``: only these input topics.
    topics : sequence of str
        Further topics to search for transactions of the sink; with ``origin``, the output topics.
    last : int, optional
        With ``origin``: only the newest batches with at most so many offsets of input.
    batches : int
        The number of newest batches to prove by the commit log, which keeps 64.
    settle_s : float
        Seconds for which something that a healthy stream shows for a moment is read again before it is a finding.
    spark : SparkSession, optional
        With ``origin``: reads both topics, by its Kafka connector, and compares them; by default, this process does.

    Returns
    -------
    Report
        ``clean`` is True without a finding; ``findings``, ``counts`` by anomaly, what was proven (``batches``,
        ``parts``, ``records``), what was not (``unproven``). ``as_json()`` is what the command prints.

    Raises
    ------
    InvalidOption
        No driver has ever claimed the sink, or a parameter has no such value.
    ConnectorUnusable
        ``spark`` cannot read Kafka.
    ExtraMissing
        The extra ``tools`` is not installed.
    BrokerUnreachable, NotAuthorized, UnknownTopic, CommitLogDamaged, CommitLogBlocked, CheckpointUnusable
        Something that the answer needs cannot be read.
    """
    from exactly_once.inspection.words import never_claimed
    from exactly_once.kafka.connection import Connection
    from exactly_once.tools import needed

    with needed():
        from exactly_once.tools.verify.parameters import VerifyParameters
        from exactly_once.tools.verify.run import verify as run

    parameters = VerifyParameters(
        sink_id,
        checkpoint,
        batches,
        settle_s,
        origin or None,
        outputs_per_input=outputs_per_input,
        inputs=tuple(inputs),
        topics=tuple(topics),
        last=last,
    )
    elsewhere = None
    if spark is not None:
        from exactly_once.tools.verify.on_spark.origins import on_spark

        elsewhere = on_spark(spark)
    report = run(Connection.to(cluster), parameters, participants, elsewhere=elsewhere)
    if report.nothing_yet and not report.claimed:
        raise never_claimed(sink_id)
    return report
