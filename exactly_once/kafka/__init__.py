"""Everything that talks to Kafka: the records of Python tasks and the commit log by librdkafka; the control plane by
kafka-python.
"""
