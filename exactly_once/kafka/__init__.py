"""Everything that talks to Kafka: records by kafka-python's connection or librdkafka, as ``sink.producer`` says; the
commit log by librdkafka; the control plane by kafka-python.
"""
