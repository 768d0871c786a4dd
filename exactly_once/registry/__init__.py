"""The Confluent Schema Registry: the options that name it, and the schema ids before keys and values."""
