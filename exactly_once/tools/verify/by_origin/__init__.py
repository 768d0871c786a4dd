"""Verification by origin: every input record against the output records that name it."""
