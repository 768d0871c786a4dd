"""Speed as ratios: the exactly-once sink and Spark's own Kafka sink, alternating in one session."""
