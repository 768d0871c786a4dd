"""The Spark adapter: what the JVM asks of the coordinators, sessions, and ``foreach_batch``.

It is the only place in the engine that imports pyspark.
"""
