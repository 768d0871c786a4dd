"""What people copy stands on public names alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

#: The streams, their resources and their sensors. The data set comes from exactly_once_local, as a laptop has it.
COPIED = ("platform_assets/definitions.py", "platform_assets/flights/*.py", "resources/*.py", "sensors/*.py")


def imported() -> Iterator[tuple[str, str, str]]:
    """Each file, and what it imports of the two products: a module, and a name in it."""
    for path in (path for pattern in COPIED for path in ROOT.glob(pattern)):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            found = [(node.module, n.name) for n in node.names] if isinstance(node, ast.ImportFrom) else []
            found += [(n.name, "") for n in node.names] if isinstance(node, ast.Import) else []
            for module, name in found:
                if (module or "").split(".")[0] in ("exactly_once", "dagster_exactly_once"):
                    yield path.relative_to(ROOT).as_posix(), module or "", name


def test_what_people_copy_imports_only_public_names() -> None:
    """Guards against an example whose copy breaks with the next release."""
    reference = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    public = set(re.findall(r"`([a-z_.]+)`", reference.partition("## Public names\n")[2].partition("Also public")[0]))
    uses = list(imported())
    assert any(module == "dagster_exactly_once" for _, module, _ in uses), "the search finds something"
    assert [use for use in uses if use[1] not in public] == []
    for file, module, name in uses:
        names = getattr(import_module(module), "__all__", None)
        assert not name.startswith("_") and (not name or names is None or name in names), f"{file}: {module}.{name}"
