"""What Dagster hands to ops: Spark, Kafka, transactions, checkpoints, and the embedded broker. Each module stands
alone.
"""
