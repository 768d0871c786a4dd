"""A Kafka broker and a Spark standalone cluster as processes of this machine."""
