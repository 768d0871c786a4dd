"""Verification by the commit log: every decided part against the records that are in the output."""
