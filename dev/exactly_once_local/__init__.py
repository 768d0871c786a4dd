"""Kafka and Spark on one machine: a broker, a small Spark cluster, and the duel of two sinks under kill -9."""
