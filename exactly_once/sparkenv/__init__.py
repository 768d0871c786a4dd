"""The environment of a Spark session: a Java, and the jars of ivy.xml, resolved once and checked."""
