"""``format("kafka_exactly_once")``: Spark's Python data source over the engine.

For each micro-batch, Spark calls ``streamWriter`` in a planning process (which claims the sink), ``write`` in the
executors' Python workers, then ``streamWriter`` and ``commit`` or ``abort`` in a committing process. The three kinds of
process never share memory. Two more kinds only look at the class, before a query starts: so what writes, with all that
it imports (0.6 s of processor time), is imported where it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

from exactly_once.errors import UnsupportedMode

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from exactly_once.spark.writers import BatchWriter, Writer

FORMAT = "kafka_exactly_once"


class KafkaExactlyOnce(DataSource):
    """An exactly-once Kafka sink for Structured Streaming.

    ``df.write`` also writes a DataFrame: once for each ``write.id``, however often it is tried.

    Options: ``sink.id``, ``kafka.bootstrap.servers`` and, for a stream, ``checkpointLocation`` (required), ``topic``,
    and Spark's ``kafka.*`` producer options; see :class:`exactly_once.options.SinkOptions`.
    """

    def __init__(self, options: dict[str, str]):
        super().__init__(options)
        self._committing = False

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Spark unpickles the data source only in the committing process; the planning process makes a new one
        self.__dict__.update(state)
        self._committing = True

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return FORMAT

    def streamWriter(self, schema: StructType, overwrite: bool) -> Writer:
        """Return a writer for the micro-batch in flight.

        Raises
        ------
        ExactlyOnceError
            For everything that the sink refuses at start, before it writes anything.
        """
        if overwrite:
            from exactly_once.coordinator.start import complete_refused

            raise complete_refused()
        from exactly_once.spark.writers import stream_writer

        return stream_writer(self.options, schema, self._committing)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Return a writer for one batch write, which the option ``write.id`` names.

        Raises
        ------
        ExactlyOnceError
            For everything that the sink refuses at start, before it writes anything.
        """
        if overwrite:
            raise UnsupportedMode(
                "mode Overwrite would have to replace earlier records, but a log cannot", "Use mode('append')"
            )
        from exactly_once.spark.writers import batch_writer

        return batch_writer(self.options, schema)
