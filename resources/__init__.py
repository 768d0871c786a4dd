"""The resources of this code location."""
