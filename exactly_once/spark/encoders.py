"""The door to the add-on :mod:`exactly_once.formats`: it is loaded for a query that has a schema registry alone."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from exactly_once.framing import Framing, SparkType
from exactly_once.schema_options import Registry


def check(registry: Registry | None, types: Mapping[str, SparkType]) -> None:
    """Refuse columns that do not fit a schema which is known without the registry. Raise InvalidSchema."""
    if registry is not None:
        _formats().check(registry, types)


def resolve(registry: Registry, types: Mapping[str, SparkType] | None) -> Framing:
    """See :func:`exactly_once.formats.registry.schema_registry.resolve`."""
    found: Framing = _formats().resolve(registry, types)
    return found


def _formats() -> Any:
    return import_module("exactly_once.formats.registry")
