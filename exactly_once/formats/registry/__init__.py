"""Confluent's schema registry: its ids, and the encodings of columns by its schemas."""

from exactly_once.formats.registry.encoding import check
from exactly_once.formats.registry.schema_registry import resolve

__all__ = ["check", "resolve"]
