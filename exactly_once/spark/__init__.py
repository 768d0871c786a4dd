"""The Spark adapter: the data source, its columns, its commit messages. The only place in the engine that imports
pyspark."""
