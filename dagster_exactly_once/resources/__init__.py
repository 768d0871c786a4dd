"""Dagster's resources for ops: Spark, Kafka, transactions, checkpoints; and the embedded broker."""
