"""Outputs beside Kafka, and the suite that tests one: add-ons, each with an extra of its own."""
