"""The project's code as syntax trees, for tests that compare it with the documentation."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("exactly_once", "exactly_once_local", "dagster_exactly_once", "resources", "sensors", "platform_assets")


@cache
def nodes() -> list[ast.AST]:
    """Return the syntax of all modules: importing them all would need Spark and Dagster."""
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    return [node for path in files for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
