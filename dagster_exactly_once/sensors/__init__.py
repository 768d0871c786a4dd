"""The sensors, which watch the streams and restart them: each is a pure verdict over the facts of one stream, under a
thin ``@sensor`` over all streams of the code location.

They are level-triggered: each tick looks at durable state (runs in Dagster's storage, the commit log, the brokers, the
checkpoint) and never at an event. So they miss nothing while a recovery runs, before the first tick, or while the
daemon is away, and a repeated tick requests the same run key.
"""
