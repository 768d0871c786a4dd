"""Dagster's resources for ops: Spark, Kafka, transactions and checkpoints."""
