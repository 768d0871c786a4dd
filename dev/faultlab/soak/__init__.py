"""The soak: a steady rate under random faults for hours, in pieces that each continue where the last one ended.

``python -m faultlab.soak`` (``make soak``) runs it; docs/lab/measurements.md has what it found.
"""
