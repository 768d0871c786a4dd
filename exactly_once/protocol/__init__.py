"""The protocol, pure: names, records, what the commit log means, what a batch may do. No I/O, no Kafka, no Spark."""
