"""Exactly-once output from PySpark Structured Streaming to Kafka, by two-phase commit.

>>> import exactly_once
>>> exactly_once.register(spark)                                  # doctest: +SKIP
>>> (df.writeStream.format("kafka_exactly_once")                  # doctest: +SKIP
...    .option("sink.id", "orders").option("topic", "orders_out")
...    .option("kafka.bootstrap.servers", "localhost:9092")
...    .option("checkpointLocation", "/data/checkpoints/orders").start())
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from exactly_once.errors import ExactlyOnceError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from exactly_once.participant import Participant
    from exactly_once.spark.foreach_batch import ForeachBatch

__all__ = ["ExactlyOnceError", "__version__", "foreach_batch", "register", "written"]

__version__ = "0.1.0"


def register(spark: SparkSession) -> None:
    """Let ``format("kafka_exactly_once")`` of ``spark`` claim, decide and commit in this process; call it once for each
    session that is new.

    Without it the JVM starts a Python process of its own for that, as it does on Spark Connect, where this does
    nothing but check.

    Raises
    ------
    UnsupportedMode
        With spark.speculation: each copy of a task would hold a transaction open. Without the sink's jar.
    """
    from exactly_once.spark.modes import check_session

    check_session(spark)
    if hasattr(spark, "_jsparkSession"):  # not on Spark Connect, whose JVM is not this process's
        from exactly_once.spark.jvm import connect

        connect(spark)


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
        When an option is missing, unknown or invalid.
    """
    from exactly_once.spark.foreach_batch import ForeachBatch

    return ForeachBatch(options, *participants)


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
    BrokerUnreachable, CommitLogDamaged, InvalidOption, NotAuthorized
    """
    from exactly_once.coordinator import batch_write
    from exactly_once.kafka.connection import Connection
    from exactly_once.protocol.names import check_sink_id

    sink_id = check_sink_id(options.get("sink.id", ""))
    return batch_write.written(Connection.from_options(options), sink_id, write_id) is not None
