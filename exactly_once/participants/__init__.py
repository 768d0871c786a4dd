"""The outputs that take part in a batch, each on :mod:`exactly_once.participant`: Kafka, files, PostgreSQL, tables."""
