"""The project's code as syntax trees, for tests that compare it with the documentation, and scripts as modules."""

from __future__ import annotations

import ast
import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
PACKAGES = ("exactly_once", "dagster_exactly_once", "resources", "sensors", "platform_assets", "dev/exactly_once_local")


@cache
def nodes() -> list[ast.AST]:
    """Return the syntax of all modules: importing them all would need Spark and Dagster."""
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    return [node for path in files for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]


def loaded(path: Path) -> ModuleType:
    """Return a fresh module of a file that no package has."""
    spec = importlib.util.spec_from_file_location(f"loaded_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
