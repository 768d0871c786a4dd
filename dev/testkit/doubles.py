"""Doubles of an Admin in unit tests."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest


def ask_the_double(monkeypatch: pytest.MonkeyPatch, module: ModuleType, *functions: str) -> None:
    """Let ``functions`` over an Admin, as ``module`` has imported them, call the double's method of the same name."""

    def asking(name: str) -> Any:
        return lambda admin, *args: getattr(admin, name)(*args)

    for name in functions:
        monkeypatch.setattr(module, name, asking(name))
