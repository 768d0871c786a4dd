"""The fault lab: a stream under seeded, replayable faults, judged by a reader that the sink does not use.

``python -m faultlab`` (``make faults``) runs it; docs/faults.md tells of it.
"""
