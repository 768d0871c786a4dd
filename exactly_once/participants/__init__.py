"""The participant of every sink, Kafka, and old names of those in :mod:`exactly_once.outputs`."""
