"""Kafka as an output: the parts of Python tasks, and Kafka's share in each step of the protocol."""
