"""The commit log of a sink: its topic, its only writer, its readers, and the input offsets that a decision carries."""
