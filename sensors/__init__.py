"""The sensors, which watch a stream and restart it: each is a pure verdict over facts under a thin ``@sensor``.

They are level-triggered: each tick looks at durable state (runs in Dagster's storage, the commit log, the brokers, the
checkpoint) and never at an event. So they miss nothing while a recovery runs, before the first tick, or while the
daemon is away, and a repeated tick requests the same run key.
"""
