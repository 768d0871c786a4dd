"""The clients of Kafka: one connection, the control plane by kafka-python, errors by cause, rights and listeners."""
