"""The resources of this code location: Spark, Kafka, and both by deployment."""
