"""Everything that talks to Kafka: the data path with librdkafka, the control plane with kafka-python."""
