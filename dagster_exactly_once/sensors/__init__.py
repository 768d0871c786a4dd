"""The sensors, which watch the streams and restart them: a pure verdict over the facts of each.

They are level-triggered: each tick looks at durable state, never at an event. So they miss nothing while the daemon is
away, and a repeated tick requests the same run key.
"""
