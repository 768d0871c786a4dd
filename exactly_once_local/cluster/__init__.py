"""A broker, the connector and a Java for a laptop: what a demonstration and tests need beside the sink."""
