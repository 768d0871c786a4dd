"""Outputs other than Kafka that take part in a batch, each on :mod:`exactly_once.participant`."""
