"""Found by Spark itself: it imports every installed module named ``pyspark_*`` and registers its ``DefaultSource``."""

from exactly_once.spark.data_source import KafkaExactlyOnce as DefaultSource

__all__ = ["DefaultSource"]
