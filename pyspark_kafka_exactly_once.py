"""Found by Spark itself: it looks for ``DefaultSource`` in every installed module whose name begins with ``pyspark_``."""

from exactly_once.spark.data_source import KafkaExactlyOnce as DefaultSource

__all__ = ["DefaultSource"]
