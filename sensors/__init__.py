"""What watches a stream and brings it back: each sensor is a pure verdict over facts, and a thin ``@sensor`` above it.

They are level-triggered: each tick looks at what is durable (runs in Dagster's storage, the commit log, the brokers,
the checkpoint) and never at an event. So nothing is missed while a recovery runs, before the first tick, or while the
daemon is away, and a tick that is repeated asks for the same run key.
"""
