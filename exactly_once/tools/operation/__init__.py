"""The operations on a sink: each once, for the terminal, Dagster and Python.

A module of this package that holds an :class:`~exactly_once.tools.operation.model.Operation` is all that a new one
needs: :func:`operations` finds it, and with it the command, its flags, the Dagster job and its configuration.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module

from exactly_once.tools.operation.model import Operation


def operations() -> list[Operation[object]]:
    """Return every operation, by the names of the modules."""
    modules = [import_module(f"{__name__}.{m.name}") for m in pkgutil.iter_modules(__path__) if not m.ispkg]
    found = [value for module in modules for value in vars(module).values() if isinstance(value, Operation)]
    return list({id(operation): operation for operation in found}.values())
