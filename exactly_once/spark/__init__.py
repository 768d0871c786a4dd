"""The Spark adapter: what the JVM asks of the coordinators, sessions, and ``foreach_batch``. The only place in the
engine that imports pyspark."""
