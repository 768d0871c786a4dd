"""Speed as ratios: the exactly-once sink beside Spark's own Kafka sink, in turn, in one session."""
